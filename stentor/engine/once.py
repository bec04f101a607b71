"""Share slow work between callers: each result is computed once, in a thread pool, and cached
within a budget."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from dataclasses import dataclass
from math import inf
from typing import Generic, TypeVar

from stentor.errors import EngineError

T = TypeVar("T")


@dataclass(frozen=True)
class CacheCounts:
    """How often a result was there or under way (hits), how often it was made (misses), and what is
    cached."""

    hits: int = 0
    misses: int = 0
    entries: int = 0
    size: float = 0  # of the budget, in its unit


class LruCache(Generic[T]):
    """The values used last, by key, as long as their weights together are at most `budget`, and
    none beyond `seconds`.

    A value that weighs more by itself is not stored. The memory of one that has expired is free
    after the next `put`, unless others that were used before it have not.
    """

    def __init__(
        self,
        budget: float,
        weigh: Callable[[T], float] = lambda value: 1,
        seconds: float = inf,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.budget = budget
        self.weigh = weigh
        self.size = 0.0
        self._seconds = seconds
        self._clock = clock
        # with the time at which each expires
        self._items: OrderedDict[str, tuple[T, float]] = OrderedDict()

    def get(self, key: str) -> T | None:
        if key not in self._items:
            return None
        value, until = self._items[key]
        if until < self._clock():
            self._drop(key)
            return None
        self._items.move_to_end(key)
        return value

    def put(self, key: str, value: T) -> None:
        if key in self._items:
            self._drop(key)
        if self.weigh(value) > self.budget:
            return
        now = self._clock()
        self._items[key] = value, now + self._seconds
        self.size += self.weigh(value)
        while self.size > self.budget or next(iter(self._items.values()))[1] < now:
            self._drop(next(iter(self._items)))

    def _drop(self, key: str) -> None:
        self.size -= self.weigh(self._items.pop(key)[0])

    def __len__(self) -> int:
        return len(self._items)


class Claim(Generic[T]):
    """A caller's handle on shared work. Call `cancel` when you no longer need the result. `future`
    must not be cancelled."""

    def __init__(self, future: Future[T], release: Callable[[], None]) -> None:
        self.future = future
        self._release = release
        self._released = False

    @property
    def done(self) -> bool:
        return self.future.done()

    def result(self) -> T:
        """Waits. Raises what the work raised, and EngineError when the engine was closed before
        it."""
        try:
            return self.future.result()
        except CancelledError:
            raise EngineError("the engine has stopped: closed") from None

    def cancel(self) -> None:
        """Work that nobody wants and that has not begun is not done. Safe to call twice."""
        if not self._released:
            self._released = True
            self._release()


@dataclass(eq=False)
class _Job(Generic[T]):
    future: Future[T]
    waiting: int = 0


class OnceCache(Generic[T]):
    """Work by key. A cached result is returned at once: no lock is held while work is done."""

    def __init__(
        self, name: str, threads: int, cache: LruCache[T], start: Callable[[], None]
    ) -> None:
        """start: called in each of the threads before its first work."""
        self._pool = ThreadPoolExecutor(threads, name, start)
        self._cache = cache
        self._jobs: dict[str, _Job[T]] = {}
        self._lock = threading.Lock()  # guards all of this
        self._hits = self._misses = 0

    def claim(self, key: str, work: Callable[[], T], keep: bool = True) -> Claim[T]:
        """The result of `work`, which runs only if it is neither cached nor under way.

        All who wait for the same result get the error if it fails. The next claim tries again.
        """
        with self._lock:
            value = self._cache.get(key)
            job = self._jobs.get(key)
            self._hits += value is not None or job is not None
            if value is not None:
                return _there(value)
            if job is None:
                self._misses += 1
                job = self._jobs[key] = _Job(self._submit(key, work, keep))
            job.waiting += 1
            return Claim(job.future, lambda: self._leave(key, job))

    def counts(self) -> CacheCounts:
        with self._lock:
            return CacheCounts(self._hits, self._misses, len(self._cache), self._cache.size)

    def on_each_thread(self, count: int, work: Callable[[], object]) -> None:
        """Run `work` in each of the `count` threads at once, and wait. Only at start."""
        together = threading.Barrier(count)

        def run() -> None:
            together.wait()
            work()

        for future in [self._pool.submit(run) for _ in range(count)]:
            future.result()

    def close(self) -> None:
        """End the threads, after the work that they are doing. What waits fails."""
        self._pool.shutdown(cancel_futures=True)

    def _submit(self, key: str, work: Callable[[], T], keep: bool) -> Future[T]:
        try:
            return self._pool.submit(self._run, key, work, keep)
        except RuntimeError as e:  # after close
            raise EngineError("the engine has stopped: closed") from e

    def _run(self, key: str, work: Callable[[], T], keep: bool) -> T:
        try:
            value = work()
        except BaseException:
            with self._lock:
                del self._jobs[key]
            raise
        with self._lock:
            if keep:
                self._cache.put(key, value)
            del self._jobs[key]
        return value

    def _leave(self, key: str, job: _Job[T]) -> None:
        with self._lock:
            job.waiting -= 1
            if job.waiting == 0 and self._jobs.get(key) is job and job.future.cancel():
                del self._jobs[key]


def _there(value: T) -> Claim[T]:
    future: Future[T] = Future()
    future.set_result(value)
    return Claim(future, lambda: None)
