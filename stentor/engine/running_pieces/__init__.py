"""The running side of a family without steps, whatever its runtime: whole pieces, some per call."""
