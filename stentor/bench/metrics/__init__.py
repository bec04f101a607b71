"""What is computed from the records of a run."""
