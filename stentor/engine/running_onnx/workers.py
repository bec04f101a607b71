"""Threads that run rows. A call of onnxruntime holds no lock of Python's."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")
R = TypeVar("R")


class Workers:
    """`count` threads, the caller's among them where there is one."""

    def __init__(self, count: int) -> None:
        self.count = count
        self._pool: ThreadPoolExecutor | None = None
        if count > 1:
            self._pool = ThreadPoolExecutor(count, "stentor-row")

    def each(self, call: Callable[[T], R], items: Iterable[T]) -> list[R]:
        """call(item) for each item. Returns when all have run, and raises the first error then."""
        batch = list(items)
        if self._pool is None or len(batch) == 1:
            return [call(item) for item in batch]
        futures = [self._pool.submit(call, item) for item in batch]
        for future in futures:
            future.exception()  # nothing may still write a row when one has failed
        return [future.result() for future in futures]

    def start(self, call: Callable[[], R]) -> Future[R]:
        """Run `call` beside the caller, or at once where there is one thread."""
        if self._pool is not None:
            return self._pool.submit(call)
        future: Future[R] = Future()
        try:
            future.set_result(call())
        except Exception as e:
            future.set_exception(e)
        return future

    def close(self) -> None:
        """End the threads, after what they are running."""
        if self._pool is not None:
            self._pool.shutdown()
