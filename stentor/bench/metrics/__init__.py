"""Metrics computed from the records of a run."""
