"""Launches that only compile: a model's kernels are compiled in several threads before one of them runs.

Triton compiles a kernel, and the C code that launches it, when it is first launched, one after another. A start of
VoxCPM2 with an empty cache compiles 75 kernels, which take 0.3 s of a core each.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from typing import Any

THREADS = 16
"""At most. A fifth of a compilation is Python, which threads do one at a time."""

_ACTIVE = ContextVar("stentor_compile_only", default=False)  # of the thread


def compiles_only() -> bool:
    """Whether launches of this thread only compile."""
    return _ACTIVE.get()


class _NewKernel(Exception):
    """A kernel was compiled that no cache had."""


def first_is_new(call: Callable[[], object]) -> bool | None:
    """Run `call` and say whether no cache has its first kernel. It ends there if so. None: all of its kernels are
    loaded, or it has none."""
    from triton import knobs

    found: bool | None = None
    usual, caller = knobs.compilation.listener, threading.get_ident()

    def listen(*, cache_hit: bool, **told: Any) -> None:
        nonlocal found
        if usual is not None:
            usual(cache_hit=cache_hit, **told)
        if found is None and threading.get_ident() == caller:
            found = not cache_hit
            if found:
                raise _NewKernel

    knobs.compilation.listener = listen
    try:
        call()
    except _NewKernel:
        return True
    finally:
        knobs.compilation.listener = usual
    return found


@contextmanager
def compile_only(current: Callable[[], AbstractContextManager[None]]) -> Iterator[None]:
    """Inside, a launch of this thread whose kernel is not loaded begins to compile and load it, and launches nothing.

    It ends when all are loaded. A kernel that does not compile is left to its next launch, which says why. Kernels that
    were loaded before are launched: the caller sees to it that nothing runs. current: makes the device a thread's own.
    """
    from triton import AsyncCompileMode

    jobs: dict[Any, tuple[Future[Any], Callable[[Any], object]]] = {}

    def submit(key: Any, compile_fn: Any, finalize_fn: Any, *_: Any) -> None:
        """None, of which Triton launches nothing."""
        if key not in jobs:
            jobs[key] = pool.submit(_loaded, compile_fn, current), finalize_fn

    token = _ACTIVE.set(True)
    try:
        with ThreadPoolExecutor(min(THREADS, os.cpu_count() or 1), "stentor-triton") as pool:
            mode = AsyncCompileMode(pool)
            mode.submit = submit
            with mode:
                yield
    finally:
        _ACTIVE.reset(token)
    for future, keep in jobs.values():
        if future.exception() is None:
            keep(future.result())


def _loaded(compile_kernel: Callable[[], Any], current: Callable[[], AbstractContextManager[None]]) -> Any:
    """A compiled kernel, with its launcher. Both would otherwise be made by its first launch."""
    kernel = compile_kernel()
    with current():
        assert kernel.run is not None
    return kernel
