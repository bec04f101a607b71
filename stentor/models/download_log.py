"""Log lines of a download from the Hub, for servers without a terminal. On a terminal the Hub's
library draws bars.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from stentor.host.repeated import repeated

log = logging.getLogger("stentor.models")

POLL_SECONDS = 1.0
STEP = 10
"""Percent between two lines."""
GB = 1e9


class Progress:
    """The lines of one download. total: reads the bytes of all files, once the first arrive."""

    def __init__(self, name: str, cached: int, total: Callable[[], int]) -> None:
        self._name = name
        self._cached = cached
        self._read_total = total
        self._total: int | None = None
        self._next = STEP

    def line(self, cached: int) -> str | None:
        """Line to log when `cached` bytes are in the cache. None until another 10 % are there."""
        if cached <= self._cached:
            return None
        if self._total is None:
            self._total = self._read_total()
        if self._total <= 0:
            return None
        percent = min(100 * cached // self._total, 100)
        if percent < self._next:
            return None
        self._next = percent // STEP * STEP + STEP
        return (
            f"downloading {self._name}: {percent} % "
            f"({cached / GB:.2f} of {self._total / GB:.2f} GB)"
        )


@contextmanager
def logged(
    name: str,
    cached: Callable[[], int],
    total: Callable[[], int],
    poll_seconds: float = POLL_SECONDS,
) -> Iterator[None]:
    """Log the progress of a download while the block runs, unless stderr is a terminal.

    cached: reads the bytes in the cache. total: reads the bytes of all files. Both may raise
    OSError: then there is no line.
    """
    if sys.stderr.isatty():
        yield
        return
    progress = Progress(name, cached(), total)

    def poll() -> None:
        # a file is renamed, or the Hub does not answer: the next poll tries again
        with suppress(OSError):
            line = progress.line(cached())
            if line is not None:
                log.info("%s", line)

    with repeated(poll, poll_seconds, "download-log"):
        yield
