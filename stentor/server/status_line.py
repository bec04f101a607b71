"""One line on a terminal that shows how the server is doing: streams, first audio, speed.

It is drawn below the log and taken away before a line of the log is written. Elsewhere than on a
terminal there is none.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import TextIO

from prometheus_client.parser import text_string_to_metric_families

INTERVAL_SECONDS = 1.0
WINDOW = 30
"""Intervals whose requests the figures count."""
CLEAR = "\r\x1b[K"

RUNNING = "stentor:num_requests_running"
WAITING = "stentor:num_requests_waiting"
FIRST_AUDIO = "stentor:audio_audible_ttfa_s_bucket"
AUDIO = "stentor:audio_duration_s_sum"

Read = Callable[[], Awaitable[str]]
"""Reads the server's metrics, as Prometheus does."""


@dataclass
class Totals:
    """Figures of the server at one moment. first_audio: requests up to each bound in seconds."""

    running: float = 0.0
    waiting: float = 0.0
    audio_seconds: float = 0.0
    first_audio: dict[float, float] = field(default_factory=dict)


def totals(exposition: str) -> Totals:
    """Sum the metrics of all models."""
    now = Totals()
    for family in text_string_to_metric_families(exposition):
        for sample in family.samples:
            if sample.name == RUNNING:
                now.running += sample.value
            elif sample.name == WAITING:
                now.waiting += sample.value
            elif sample.name == AUDIO:
                now.audio_seconds += sample.value
            elif sample.name == FIRST_AUDIO:
                bound = float(sample.labels["le"])
                now.first_audio[bound] = now.first_audio.get(bound, 0.0) + sample.value
    return now


def median(before: Mapping[float, float], now: Mapping[float, float]) -> float | None:
    """Seconds of the median request between two histograms, within its bucket in proportion. None
    where there was no request."""
    bounds = sorted(now)
    counts = [now[bound] - before.get(bound, 0.0) for bound in bounds]
    if not counts or counts[-1] <= 0:
        return None
    middle = counts[-1] / 2
    low = 0.0
    below = 0.0
    for bound, count in zip(bounds, counts, strict=True):
        if count >= middle:
            if math.isinf(bound):
                return low
            return low + (bound - low) * (middle - below) / (count - below)
        low = bound
        below = count
    return low


def text(history: Sequence[Totals], seconds: float) -> str:
    """The line for totals of the last `seconds`, the oldest first."""
    before = history[0]
    now = history[-1]
    parts = [f"{now.running:.0f} streams"]
    if now.waiting:
        parts.append(f"{now.waiting:.0f} waiting")
    first_audio = median(before.first_audio, now.first_audio)
    if first_audio is not None:
        parts.append(f"first audio p50 {1000 * first_audio:.0f} ms")
    if seconds:
        rate = (now.audio_seconds - before.audio_seconds) / seconds
        parts.append(f"{rate:.1f} s of audio per second")
    return " · ".join(parts)


class StatusLine(logging.Filter):
    """Draws the line, and takes it away before a record is written: a filter of log handlers."""

    def __init__(self, stream: TextIO) -> None:
        super().__init__()
        self._stream = stream
        self._drawn = False

    def filter(self, record: logging.LogRecord) -> bool:
        """Leave nothing out."""
        self.clear()
        return True

    def draw(self, line: str) -> None:
        self._stream.write(f"{CLEAR}{line}\r")  # what an engine's process logs begins at the left
        self._stream.flush()
        self._drawn = True

    def clear(self) -> None:
        """Take the line away, if it is there."""
        if self._drawn:
            self._stream.write(CLEAR)
            self._stream.flush()
            self._drawn = False

    async def keep_drawn(self, read: Read) -> None:
        """Draw the line again and again until the task is cancelled."""
        history: deque[Totals] = deque(maxlen=WINDOW + 1)
        while True:
            history.append(totals(await read()))
            self.draw(text(history, INTERVAL_SECONDS * (len(history) - 1)))
            await asyncio.sleep(INTERVAL_SECONDS)


@contextmanager
def shown(stream: TextIO, handlers: Sequence[logging.Handler], read: Read) -> Iterator[None]:
    """Show the line on a terminal while the block runs, in the running event loop."""
    if not stream.isatty():
        yield
        return
    line = StatusLine(stream)
    for handler in handlers:
        handler.addFilter(line)
    task = asyncio.get_running_loop().create_task(line.keep_drawn(read))
    try:
        yield
    finally:
        task.cancel()
        with suppress(OSError):
            line.clear()
        for handler in handlers:
            handler.removeFilter(line)
