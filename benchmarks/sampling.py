"""A thread that reads something at intervals while a benchmark runs."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from typing import Self


class Sampling(ABC):
    """Calls `read` every `seconds` in a thread of its own, from entry to exit."""

    def __init__(self, seconds: float) -> None:
        self._seconds, self._over = seconds, threading.Event()
        self._thread = threading.Thread(target=self._run)

    @abstractmethod
    def read(self) -> None:
        """Take one sample."""

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._over.wait(self._seconds):
            self.read()
