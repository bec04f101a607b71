"""`stentor say` and `stentor voices`."""
