"""A request's preparation in its model's threads. It ends soon after its request has been given up."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Executor
from typing import TypeVar

from stentor.text.front_end import Check

T = TypeVar("T")


class Abandoned(Exception):
    """This work is not needed any more: its request was cancelled, timed out, or lost its client."""


async def prepare(pool: Executor, work: Callable[[Check], T]) -> T:
    """`work(check)`, run in `pool`. Cancelling this call makes `check` raise Abandoned.

    A thread cannot be stopped from outside. `work` therefore calls `check` between the parts of what may take long.
    """
    abandoned = threading.Event()

    def check() -> None:
        if abandoned.is_set():
            raise Abandoned

    try:
        return await asyncio.get_running_loop().run_in_executor(pool, work, check)
    finally:
        abandoned.set()
