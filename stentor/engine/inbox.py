"""Messages from callers to the engine's thread. A message reaches the thread, or its caller is told at once."""

from __future__ import annotations

import os
import queue
import threading
from dataclasses import dataclass

from stentor.engine.request_state import Request
from stentor.engine.stream import AppendText, Cancel, Taken
from stentor.errors import EngineError


@dataclass(frozen=True)
class Submit:
    """Message to the engine: queue this request."""

    request: Request


Message = Submit | Cancel | AppendText | Taken | None
"""None wakes the thread, so that it sees that the engine is closing."""


class Inbox:
    """A queue that can be closed. `put` and `close` exclude each other: what was put before is found by `rest`.

    A stream may be dropped by the garbage collector while its thread puts something else, hence the reentrant lock.
    """

    def __init__(self) -> None:
        self._messages: queue.SimpleQueue[Message] = queue.SimpleQueue()
        self._lock = threading.RLock()  # guards `refusal`
        self._process = os.getpid()
        self.refusal: str | None = None  # why nothing is taken any more

    @property
    def forked(self) -> bool:
        """Whether this is a forked child, which has a copy of the engine and no thread that runs it."""
        return os.getpid() != self._process

    def check_process(self) -> None:
        """EngineError in a forked child."""
        if self.forked:
            raise EngineError("the engine's thread did not follow into this forked process; load the model after fork")

    def check(self) -> None:
        """EngineError where no message would be read: the engine has stopped, or this is a forked child."""
        self.check_process()
        if self.refusal is not None:
            raise EngineError(f"the engine has stopped: {self.refusal}")

    def put(self, message: Message) -> None:
        """Hand over a message. EngineError if it would never be read. None is always taken."""
        if message is None:
            self._messages.put(None)
            return
        self.check()  # first: a forked child may have inherited a lock that is held
        with self._lock:
            self.check()
            self._messages.put(message)

    def get(self, wait: bool, timeout: float | None) -> Message:
        """The next message. queue.Empty if there is none, with `wait` not within `timeout` seconds."""
        return self._messages.get(wait, timeout)

    def close(self, reason: str) -> None:
        """Take nothing any more, and wake the thread. The first reason stays."""
        with self._lock:
            self.refusal = self.refusal or reason
        self._messages.put(None)

    def rest(self) -> list[Submit | Cancel | AppendText | Taken]:
        """All messages that were taken and not read."""
        left: list[Submit | Cancel | AppendText | Taken] = []
        while True:
            try:
                message = self._messages.get_nowait()
            except queue.Empty:
                return left
            if message is not None:
                left.append(message)
