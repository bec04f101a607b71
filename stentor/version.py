"""The version of the package, by itself: what marks audio imports nothing else."""

__version__ = "0.1.0"
