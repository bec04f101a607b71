"""Building blocks that families share."""
