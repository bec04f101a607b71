"""Loads and unloads the models of a process, one after another, in one thread."""

from __future__ import annotations

import asyncio
import gc
import os
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, TypeVar

import torch

from stentor.server import memory

if TYPE_CHECKING:
    from stentor.api import TTS
    from stentor.engine.device import Device

T = TypeVar("T")


class Loader:
    """One per server. It alone freezes and thaws what the garbage collector visits, which is the whole process's."""

    def __init__(self, threads: int | None = None) -> None:
        """threads: of torch, which a load takes on a CPU beside other models. None: all."""

        def begin() -> None:
            if threads is not None:
                torch.set_num_threads(threads)

        self._thread = ThreadPoolExecutor(1, "stentor-load", begin)
        self._resident = 0
        self.loading = False  # a model is being made, which nothing can stop

    async def load(self, make: Callable[[], TTS]) -> TTS:
        """`make()`, once the loads before it have ended. If this call is cancelled, what is made is closed."""

        def made_alone() -> TTS:
            self.loading = True
            try:
                return make()
            finally:
                self.loading = False

        making = self._thread.submit(made_alone)
        try:
            made = await asyncio.wrap_future(making)
        except asyncio.CancelledError:
            making.add_done_callback(_close)
            raise
        self._resident += 1
        return made

    async def run(self, work: Callable[[], T]) -> T:
        """`work()` in the thread."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)

    async def settle(self, collect: bool) -> None:
        """A model is loaded. Its objects are not visited by later collections, which would take 130 ms without audio.

        collect: what the load has left is freed first. That takes 0.1 s or more.
        """
        if collect:
            await self.run(memory.collect)
        gc.freeze()

    async def unload(self, tts: TTS, collect: bool) -> None:
        """Stop a model and free what it takes. The caller keeps no reference to it.

        collect: its memory is needed. At the end of a server it is not, and nobody waits for other loads.
        """
        device = tts.engine.device
        await (self.run(tts.close) if collect else asyncio.to_thread(tts.close))
        del tts
        self._resident -= 1
        gc.unfreeze()
        if collect:
            await self.run(lambda: _free(device))
        if self._resident:
            gc.freeze()

    def close(self) -> None:
        """Accept no more work. What runs ends."""
        self._thread.shutdown(wait=False, cancel_futures=True)


def _close(making: Future[TTS]) -> None:
    if not making.cancelled() and making.exception() is None:
        making.result().close()


def _free(device: Device) -> None:
    memory.collect()
    device.release_cached()


def cpu_share(models: int) -> int | None:
    """CPU threads that each of several models takes at most. None: there is one, which may take all."""
    return None if models <= 1 else max(1, (os.cpu_count() or 1) // models)
