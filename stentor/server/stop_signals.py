"""SIGTERM and SIGINT of a server's process: flags that a handler sets, and a thread that ends what
does not stop.

Python runs a handler between two instructions of the main thread, and that may be inside a write to
the log. Logging from there raises "reentrant call", the log swallows it, and the signal is lost. So
the handler assigns, and puts into a queue whose `put` may interrupt itself. Everything else happens
on the event loop and in the thread.
"""

from __future__ import annotations

import os
import queue
import signal
import threading
import time
from collections.abc import Callable
from types import FrameType

CRASHED = 70
"""Exit code (EX_SOFTWARE) of a process whose model cannot be loaded or whose engine has stopped, or
that did not stop."""

# in this order: whoever sees SIGTERM handled may send both
SIGNALS = (signal.SIGINT, signal.SIGTERM)


class StopSignals:
    """Requests to stop this process. Any signal stops it, a second SIGINT ends running requests, a
    third one skips the rest."""

    def __init__(self, hurry_at_once: bool = False) -> None:
        """hurry_at_once: the first SIGINT ends running requests too, as only another process sends
        one."""
        self.requested = False
        self.hurried = False  # running requests get no more time
        self.forced = False  # nor do other processes
        self.signal: signal.Signals | None = None  # the first one
        self.exit_code = CRASHED  # if the process has to be ended
        # end other processes, if this one has to be ended
        self.kills: list[Callable[[], None]] = []
        self._hurry_at_once = hurry_at_once
        self._requests: queue.SimpleQueue[None] = queue.SimpleQueue()

    def install(self) -> None:
        """Handle both signals, in the main thread."""
        for number in SIGNALS:
            signal.signal(number, self.handle)

    def handle(self, number: int, frame: FrameType | None = None) -> None:
        """Note a signal. It may interrupt anything, itself too: do not log, lock or raise here."""
        again = number == signal.SIGINT and (self.requested or self._hurry_at_once)
        self.forced = self.forced or (again and self.hurried)
        self.hurried = self.hurried or again
        self.signal = self.signal or signal.Signals(number)
        self.request()

    def request(self) -> None:
        """Stop the process, as a signal would."""
        self.requested = True
        self._requests.put(None)

    def finish(self, code: int) -> None:
        """Ignore further signals, as the process ends with this exit code. Threads that are busy
        may delay that."""
        for number in SIGNALS:
            signal.signal(number, signal.SIG_IGN)
        self.exit_code = code
        self.hurried = True
        self.request()

    def watch(self, drain_seconds: float, exit_seconds: float) -> None:
        """Start the thread that ends this process once it should have stopped, whatever its event
        loop does.

        drain_seconds: for running requests. exit_seconds: for everything after them."""
        seconds = (drain_seconds, exit_seconds)
        threading.Thread(target=self._watch, args=seconds, daemon=True, name="stentor-stop").start()

    def _watch(self, drain_seconds: float, exit_seconds: float) -> None:
        self._requests.get()
        deadline = time.monotonic() + drain_seconds + exit_seconds
        while True:
            if self.hurried:
                deadline = min(deadline, time.monotonic() + exit_seconds)
            try:
                self._requests.get(timeout=max(0.0, deadline - time.monotonic()))
            except queue.Empty:
                break
        for kill in self.kills:
            kill()
        os._exit(self.exit_code)  # no line of the log: whoever reads it may be what hangs
