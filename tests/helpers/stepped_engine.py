"""An engine whose thread takes a step only when the test says so, on a clock that only steps move, and one that waits."""

from __future__ import annotations

import contextlib
import functools
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

from stentor import TTS, api
from stentor.engine.engine import Engine
from tests.helpers.invariants import check
from tests.helpers.patience import STUCK_S


class Clock:
    """Seconds as the engine sees them. A step takes `step`."""

    def __init__(self, step: float = 0.01) -> None:
        self.now, self.step = 1000.0, step

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


class Gate:
    """The engine's thread waits here before each step."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._permits = 0
        self._standing = self._open = self.ended = False

    def enter(self) -> None:
        """For the engine's thread: wait for leave to step."""
        with self._changed:
            self._standing = True
            self._changed.notify_all()
            assert self._changed.wait_for(lambda: self._permits or self._open, STUCK_S)
            self._permits -= 1
            self._standing = False

    def end(self) -> None:
        """The engine's thread ends."""
        with self._changed:
            self.ended = True
            self._changed.notify_all()

    def step(self, count: int) -> None:
        """Have so many steps made, or all until the thread ends."""
        with self._changed:
            self._permits += count
            self._changed.notify_all()
            assert self._changed.wait_for(
                lambda: self.ended or (self._standing and not self._permits), STUCK_S
            )

    def open(self) -> None:
        """From now on the thread need not wait."""
        with self._changed:
            self._open = True
            self._changed.notify_all()


class SteppedEngine(Engine):
    """`step` makes it go. Every step checks that each page and slot is held once."""

    def __init__(self, clock: Clock, *args: Any) -> None:
        self.gate, self.clock = Gate(), clock
        super().__init__(*args)

    def _run(self) -> None:
        try:
            super()._run()
        finally:
            self.gate.end()

    def _step(self) -> None:
        self.gate.enter()
        self._patience = 0.0  # it need not wait for a message: the test says when there is one
        self.clock.now += self.clock.step
        super()._step()
        check(self.scheduler)

    def step(self, count: int = 1) -> None:
        """Make so many steps, fewer if the engine ends."""
        self.gate.step(count)

    def close(self) -> None:
        self.gate.open()
        super().close()


@contextlib.contextmanager
def stepped_engines() -> Iterator[Clock]:
    """Inside, every `TTS` has a SteppedEngine, and the engine's modules have this clock."""
    clock = Clock()
    with contextlib.ExitStack() as stack:
        stack.enter_context(
            mock.patch.object(api, "Engine", functools.partial(SteppedEngine, clock))
        )
        for name, module in list(sys.modules.items()):
            if name.startswith("stentor.engine") and getattr(module, "time", None) is time:
                stack.enter_context(mock.patch.object(module, "time", clock))
        yield clock


def hold(tts: TTS) -> Callable[[threading.Event], None]:
    """A function that keeps the engine's thread, once it has read all messages before, until an event is set."""
    plain = tts.engine._handle

    def handle(message: Any) -> None:
        if isinstance(message, threading.Event):
            assert message.wait(STUCK_S)
        else:
            plain(message)

    tts.engine._handle = handle  # type: ignore[method-assign]
    return tts.engine.inbox.put  # type: ignore[return-value]


@contextlib.contextmanager
def read_at_once(tts: TTS) -> Iterator[None]:
    """The engine, which is idle, plans no step inside: one step admits what is submitted here."""
    submitted = threading.Event()
    hold(tts)(submitted)
    try:
        yield
    finally:
        submitted.set()
