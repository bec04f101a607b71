"""Signals that end a command."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

ENDING = (signal.SIGTERM, signal.SIGHUP)


class Terminated(KeyboardInterrupt):
    """A signal requested the end of the process. exit_code: as shells report it."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.exit_code = 128 + number


@contextmanager
def terminated_by_signals() -> Iterator[None]:
    """Raise Terminated in the main thread on SIGTERM and SIGHUP, so that they end a command as
    Ctrl-C does.

    A signal that is ignored, as SIGHUP is under nohup, stays so. Outside the main thread nothing
    changes.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    default = [number for number in ENDING if signal.getsignal(number) is signal.SIG_DFL]
    for number in default:
        signal.signal(number, _terminate)
    try:
        yield
    finally:
        for number in default:
            signal.signal(number, signal.SIG_DFL)


def _terminate(number: int, frame: FrameType | None) -> None:
    raise Terminated(number)
