"""Writes that fail as on a full disk."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

FULL = "No space left on device"


def full(path: Path) -> Path:
    """A file to which nothing can be written."""
    path.parent.mkdir(exist_ok=True)
    path.symlink_to("/dev/full")
    return path


@contextmanager
def files_of_at_most(size: int) -> Iterator[None]:
    """This process writes so many bytes into a file. What follows is "File too large"."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
