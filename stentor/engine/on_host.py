"""Parts of the running sides that compute when they are called: threads, steps that have run, and
the voices of a model that takes no recordings."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from threading import Barrier, Lock
from typing import Any, TypeVar

import numpy as np

from stentor.config import EngineConfig
from stentor.engine.once import CacheCounts, Claim
from stentor.engine.scheduling.audio_scheduler import AudioJob
from stentor.engine.scheduling.sequence import Sequence
from stentor.errors import EngineError
from stentor.host.machine import cpus

T = TypeVar("T")
R = TypeVar("R")

Rows = np.ndarray | list[np.ndarray]
Arrays = tuple[Rows, Rows, Rows]
"""Samples [B, n * hop], frames [B, n, *frame] and text positions [B, n, ATTENDED_WIDTH or 0], each
padded or a list of rows."""


def threads_of(config: EngineConfig) -> int:
    """Threads that an engine may use on the CPU."""
    if config.threads is not None:
        return config.threads
    allowed = cpus()
    if config.max_threads is not None:
        return min(allowed, config.max_threads)
    return allowed


class Workers:
    """`count` threads, the caller's among them where there is one. A call of onnxruntime holds no
    lock of Python's.

    set_up: called first in each thread but the caller's. wake: called at the end of each call that
    `start` began.
    """

    def __init__(self, count: int, set_up: Callable[[], None] = lambda: None) -> None:
        self.count = count
        self.wake: Callable[[], None] = lambda: None
        self._pool: ThreadPoolExecutor | None = None
        if count > 1:
            self._pool = ThreadPoolExecutor(count, "stentor-row", set_up)

    def each(self, call: Callable[[T], R], items: Iterable[T]) -> list[R]:
        """call(item) for each item. Returns when all have run, and raises the first error then."""
        batch = list(items)
        if self._pool is None or len(batch) == 1:
            return [call(item) for item in batch]
        futures = [self._pool.submit(call, item) for item in batch]
        for future in futures:
            future.exception()  # nothing may still write a row when one has failed
        return [future.result() for future in futures]

    def in_each(self, call: Callable[[], object]) -> None:
        """Run `call` once in each thread, one after the other. Raises the first error."""
        if self._pool is None:
            call()
            return
        all_begun = Barrier(self.count)
        turn = Lock()

        def run() -> None:
            all_begun.wait()  # or one thread would take two turns
            with turn:
                call()

        for future in [self._pool.submit(run) for _ in range(self.count)]:
            future.result()

    def start(self, call: Callable[[], R]) -> Future[R]:
        """Run `call` beside the caller, or at once where there is one thread."""
        if self._pool is not None:
            running = self._pool.submit(call)
            running.add_done_callback(lambda _: self.wake())
            return running
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


class Now:
    """Work that has run. Implements engine.side.Done."""

    def ready(self) -> bool:
        return True

    def wait_host(self) -> None:
        return


class Finished:
    """Completion of a future. Implements engine.side.Done."""

    def __init__(self, future: Future[Arrays]) -> None:
        self._future = future

    def ready(self) -> bool:
        return self._future.done()

    def wait_host(self) -> None:
        self._future.exception()


@dataclass
class HostStep:
    """A step that has run. Implements engine.side.InFlightStep.

    report: frames generated and stop value of the slots, by slot.
    """

    sequences: list[Sequence]
    report: tuple[list[int], list[int]]
    prefill: bool
    launched_at: float
    prefilled_at: float = 0.0

    @classmethod
    def ran(
        cls,
        sequences: list[Sequence],
        report: tuple[list[int], list[int]],
        prefill: bool,
        launched_at: float,
    ) -> HostStep:
        """Make the report of a step that ends now."""
        return cls(sequences, report, prefill, launched_at, time.monotonic())

    @property
    def finished(self) -> Now:
        return Now()

    def result(self) -> tuple[list[int], list[int], list[int]]:
        generated, stop = self.report
        return generated, stop, generated


@dataclass
class HostAudio:
    """A codec call on a thread. Implements engine.side.InFlightAudio. Row i belongs to job i."""

    jobs: list[AudioJob]
    future: Future[Arrays]

    @property
    def rows(self) -> range:
        return range(len(self.jobs))

    @property
    def finished(self) -> Finished:
        return Finished(self.future)

    def arrays(self) -> Arrays:
        return self.future.result()


class NoVoices:
    """Encoder and codec primer of a model that takes no recordings."""

    def claim(self, source: Any) -> Claim[Any]:
        raise EngineError("this model takes no recordings")

    def counts(self) -> CacheCounts:
        return CacheCounts()


class HostSide:
    """Members of a running side that has no device of its own (engine.side.RunningSide)."""

    def __init__(self, workers: Workers) -> None:
        self.workers = workers
        self.overlap_steps = 0
        self.eager_calls = 0
        self.on_gpu = False
        self.encoder = NoVoices()
        self.primer = NoVoices()

    def set_up_thread(self) -> None:
        """The runtime brings its own settings."""

    def caller_thread(self) -> AbstractContextManager[object]:
        return nullcontext()

    def warm_up(self) -> None:
        """The first call takes no longer than later ones."""

    def announces_audio(self, wake: Callable[[], None]) -> bool:
        self.workers.wake = wake
        return True

    def serving(self) -> AbstractContextManager[None]:
        return nullcontext()

    def is_fatal(self, error: Exception) -> bool:
        return False

    def out_of_memory(self, error: Exception) -> bool:
        return isinstance(error, MemoryError)

    def release_cached(self) -> None:
        """Nothing is cached."""

    def device_bytes(self) -> int:
        return 0

    def close(self) -> None:
        self.workers.close()
