"""A simulated device whose work only takes time: streams, events and captured calls on a timeline.

schedule_sim.py runs the engine on it in real time. cells_sim.py has the timeline alone, in virtual time.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from stentor.engine.running.device import CODEC, LANGUAGE_MODEL, Device

LAUNCH = 1e-4  # host seconds of a graph launch, without the interpreter lock
SHARES = {
    LANGUAGE_MODEL: 0.7,
    CODEC: 0.4,
}  # speed of a stream while another is busy, by its priority


class SimulatedEvent:
    """An event of the timeline (as stentor.engine.running.device.Event)."""

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


@dataclass(eq=False)
class Work:
    left: float  # seconds, alone

    @property
    def done(self) -> bool:
        return self.left <= 1e-9


class Timeline:
    """Ordered work of several streams. Used from one thread only, the engine's where there is one.

    shares: the speed of a stream while another is busy, by its priority. clock: seconds.
    """

    def __init__(
        self, shares: Mapping[int, float] = SHARES, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.shares, self.clock, self.now = shares, clock, clock()
        self.streams: list[deque[Work | SimulatedEvent | Barrier]] = []
        self.priorities: list[int] = []
        self.current = 0
        self.busy = dict.fromkeys(shares, 0.0)  # seconds of all streams of a priority

    def stream(self, priority: int) -> SimulatedStream:
        """One more, which is empty."""
        self.streams.append(deque())
        self.priorities.append(priority)
        return SimulatedStream(self, len(self.streams) - 1)

    def put(self, item: Work | SimulatedEvent | Barrier) -> None:
        self.advance()
        self.streams[self.current].append(item)

    def advance(self) -> None:
        """Up to the present."""
        end = self.clock()
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
                self.busy[self.priorities[i]] += step
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
        return (
            dict.fromkeys(busy, 1.0)
            if len(busy) < 2
            else {i: self.shares[self.priorities[i]] for i in busy}
        )

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
            return item.done
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
    """A CPU whose streams and events are those of a timeline."""

    def __init__(self, name: str, stream_priorities: bool = True) -> None:
        super().__init__("cpu", stream_priorities)
        self.line = Timeline()

    def stream(self, priority: int = 0) -> Any:
        return self.line.stream(priority)

    def event(self) -> Any:
        return SimulatedEvent(self.line)

    def download(self, value: torch.Tensor) -> torch.Tensor:
        # audio is silence and never written
        return value if value.is_floating_point() else value.clone()


class SimulatedGraph:
    """A captured function: its values at once, its time on the timeline."""

    def __init__(self, line: Timeline, seconds: float, run: Callable[[], None]) -> None:
        self.line, self.seconds, self.run = line, seconds, run

    def replay(self) -> None:
        time.sleep(LAUNCH)
        self.run()
        self.line.put(Work(self.seconds))
