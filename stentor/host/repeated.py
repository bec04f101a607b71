"""Work that is repeated in a thread while something else runs."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def repeated(call: Callable[[], object], seconds: float, name: str) -> Iterator[None]:
    """Call `call` every `seconds` seconds in a thread of this name until the block ends."""
    finished = threading.Event()

    def run() -> None:
        while not finished.wait(seconds):
            call()

    thread = threading.Thread(target=run, name=name, daemon=True)
    thread.start()
    try:
        yield
    finally:
        finished.set()
        thread.join()
