"""A simulated device whose work only takes time: streams, events and captured calls on a timeline.

schedule_sim.py runs the engine on it.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from stentor.engine.device import Device

LAUNCH = 1e-4  # host seconds of a graph launch, without the interpreter lock
SHARES = (0.7, 0.4)  # speed of the language model's stream and of the codec's while both are busy


class SimulatedEvent:
    """An event of the timeline (as stentor.engine.device.Event)."""

    def __init__(self, line: Timeline) -> None:
        self.line, self.reached = line, False

    def record(self) -> None:
        self.line.put(self)

    def ready(self) -> bool:
        self.line.advance()
        return self.reached

    def wait_host(self) -> None:
        while not self.ready():
            time.sleep(max(2e-5, self.line.next_change()))

    def wait_stream(self) -> None:
        self.line.put(Barrier(self))


@dataclass
class Barrier:
    """Work of a stream that ends when another's has."""

    until: SimulatedEvent


@dataclass
class Work:
    left: float  # seconds, alone


class Timeline:
    """Ordered work of several streams in real time. Used from the engine's thread only."""

    def __init__(self) -> None:
        self.now = time.monotonic()
        self.streams: list[deque[Work | SimulatedEvent | Barrier]] = [deque(), deque(), deque()]
        self.current = 0
        self.busy = [0.0, 0.0, 0.0]

    def put(self, item: Work | SimulatedEvent | Barrier) -> None:
        self.advance()
        self.streams[self.current].append(item)

    def advance(self) -> None:
        """Up to the present."""
        end = time.monotonic()
        while True:
            self._settle()
            speeds = self._speeds()
            if not speeds:
                break
            step = min(end - self.now, *(self._head(i).left / v for i, v in speeds.items()))
            if step <= 0 and self.now >= end:
                break
            for i, v in speeds.items():
                self._head(i).left -= step * v
                self.busy[i] += step
            self.now += step
        self.now = end

    def next_change(self) -> float:
        """Seconds until some work is done."""
        return min((self._head(i).left / v for i, v in self._speeds().items()), default=0.0)

    def _head(self, stream: int) -> Work:
        head = self.streams[stream][0]
        assert isinstance(head, Work)
        return head

    def _speeds(self) -> dict[int, float]:
        busy = [i for i, s in enumerate(self.streams) if s and isinstance(s[0], Work)]
        return dict.fromkeys(busy, 1.0) if len(busy) < 2 else {i: SHARES[i] for i in busy}

    def _settle(self) -> None:
        """Drop what is done, on every stream."""
        moved = True
        while moved:
            moved = False
            for stream in self.streams:
                while stream and self._over(stream[0]):
                    stream.popleft()
                    moved = True

    @staticmethod
    def _over(item: Work | SimulatedEvent | Barrier) -> bool:
        if isinstance(item, Work):
            return item.left <= 1e-9
        if isinstance(item, Barrier):
            return item.until.reached
        item.reached = True
        return True


class SimulatedStream:
    def __init__(self, line: Timeline, index: int) -> None:
        self.line, self.index, self.cuda = line, index, None

    @contextmanager
    def active(self) -> Iterator[None]:
        before, self.line.current = self.line.current, self.index
        try:
            yield
        finally:
            self.line.current = before


class SimulatedDevice(Device):
    """A CPU whose streams and events are those of a timeline: language model, codec, copies."""

    def __init__(self, name: str) -> None:
        super().__init__("cpu")
        self.line = Timeline()
        self.streams_made = 0

    def stream(self, priority: int = 0) -> Any:
        self.streams_made += 1
        return SimulatedStream(self.line, self.streams_made - 1)

    def event(self) -> Any:
        return SimulatedEvent(self.line)

    def download(self, value: torch.Tensor) -> torch.Tensor:
        return value if value.is_floating_point() else value.clone()  # audio is silence and never written


class SimulatedGraph:
    """A captured function: its values at once, its time on the timeline."""

    def __init__(self, line: Timeline, seconds: float, run: Callable[[], None]) -> None:
        self.line, self.seconds, self.run = line, seconds, run

    def replay(self) -> None:
        time.sleep(LAUNCH)
        self.run()
        self.line.put(Work(self.seconds))
