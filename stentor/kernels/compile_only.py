"""Launches that only compile: a model's kernels are compiled in several threads before one of them runs.

Triton compiles a kernel, and the C code that launches it, when it is first launched, one after another. A start of
VoxCPM2 with an empty cache compiles 75 kernels, which take 0.3 s of a core each.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, suppress
from contextvars import ContextVar
from pathlib import Path
from typing import Any

import torch

PACKAGE = Path(__file__).parents[1]
THREADS = 16
"""At most. A fifth of a compilation is Python, which threads do one at a time."""

_ACTIVE = ContextVar("stentor_compile_only", default=False)  # of the thread


def compiles_only() -> bool:
    """Whether launches of this thread only compile."""
    return _ACTIVE.get()


def stamp_of(start: str) -> Path:
    """A file beside Triton's compiled kernels that says that a start of this kind has compiled its kernels into them.

    start: names what decides which kernels it compiles, beside the versions of libraries and the sources here.
    """
    import triton

    digest = hashlib.sha256(f"{start} {triton.__version__} {torch.__version__}".encode())
    for file in sorted(f for kind in ("*.py", "*.cu", "*.cuh") for f in PACKAGE.rglob(kind)):
        digest.update(file.read_bytes())
    return Path(triton.knobs.cache.dir) / f"stentor-start-{digest.hexdigest()[:32]}"


@contextmanager
def compile_only(current: Callable[[], AbstractContextManager[None]]) -> Iterator[None]:
    """Inside, a launch of this thread whose kernel is not loaded begins to compile and load it, and launches nothing.

    It ends when all are loaded. A kernel that does not compile is left to its next launch, which says why. Kernels that
    were loaded before are launched: the caller sees to it that nothing runs. current: makes the device a thread's own.
    """
    from triton import AsyncCompileMode

    jobs: dict[Any, tuple[Future[Any], Callable[[Any], object]]] = {}

    def load(compiled: Future[Any]) -> None:
        """Launchers are made one at a time (launchers.py), which no thread that compiles is to wait for."""
        loader.submit(_load, compiled, current)

    def submit(key: Any, compile_fn: Any, finalize_fn: Any, *_: Any) -> None:
        """None, of which Triton launches nothing."""
        if key not in jobs:
            compiled = pool.submit(compile_fn)
            compiled.add_done_callback(load)
            jobs[key] = compiled, finalize_fn

    token = _ACTIVE.set(True)
    try:
        with (
            ThreadPoolExecutor(1, "stentor-launchers") as loader,
            ThreadPoolExecutor(min(THREADS, os.cpu_count() or 1), "stentor-triton") as pool,
        ):
            mode = AsyncCompileMode(pool)
            mode.submit = submit
            with mode:
                yield
    finally:
        _ACTIVE.reset(token)
    for future, keep in jobs.values():
        if future.exception() is None:
            keep(future.result())


def _load(compiled: Future[Any], current: Callable[[], AbstractContextManager[None]]) -> None:
    """Load a compiled kernel with its launcher, as its first launch would. What is wrong with it shows then."""
    with suppress(Exception), current():
        assert compiled.result().run is not None
