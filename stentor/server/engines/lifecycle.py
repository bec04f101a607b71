"""Lifecycle of an engine: it is loaded, watched, unloaded while idle and restarted after a
crash."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from typing import Protocol

from stentor.engine.health import Health
from stentor.errors import EngineError, InvalidRequest, ModelNotFound, StentorError
from stentor.server import memory
from stentor.server.engines.adapters import ModelAdapters
from stentor.server.engines.client import EngineClient
from stentor.server.engines.launch import ProcessEngine, restart_pause
from stentor.server.engines.messages import Ready
from stentor.server.engines.model_engine import EngineHost, ModelEngine
from stentor.server.errors import clipped
from stentor.server.limits import LIMITS, Limits
from stentor.server.residency import Residency
from stentor.server.stop_signals import CRASHED

log = logging.getLogger("stentor.server")

Start = Callable[[Mapping[str, str], Ready | None, bool], ProcessEngine]
"""Start an engine with these adapters, by name. The last `Ready` says what slots for adapters it
had. The flag is for whether the model is to speak before it is ready."""

WATCH_SECONDS = 0.5

# exit code when there is no such model or an option is wrong: another start would end the same way
WRONG = 2


class EngineOwner(EngineHost, Protocol):
    """The model of an engine that this process starts."""

    limits: Limits
    residency: Residency
    adapters: ModelAdapters
    give_up: Callable[[int], None]

    def retire(self, health: Health | None) -> None:
        """Keep the counters of an engine that ends."""

    def note_failure(self, engine: ModelEngine, code: int) -> None:
        """Note that an engine is lost for good. code: for the exit of the server."""


class OwnedEngine(ModelEngine):
    """An engine that this process starts and ends."""

    host: EngineOwner

    def __init__(self, host: EngineOwner, number: int, start: Start, loading: asyncio.Lock) -> None:
        """loading: the lock of its device, taken while an engine is loaded."""
        super().__init__(host, number)
        self.process: ProcessEngine | None = None  # while there is one
        self._start = start
        self._loading = loading
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.create_task(self._live(), name=f"host {self.host.name}")
        self._task.add_done_callback(self._note_keeper_end)

    def _note_keeper_end(self, task: asyncio.Task[None]) -> None:
        """End the server if the task that restarts this engine has failed: nothing else would."""
        if not task.cancelled() and task.exception() is not None:
            log.error("model %s is no longer watched", self.label, exc_info=task.exception())
            self.become("failed")
            self.host.give_up(CRASHED)

    async def close(self) -> None:
        self.become("closed")
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        await self._end()

    def kill(self) -> None:
        process = self.process
        if process is not None:
            process.kill()

    async def _live(self) -> None:
        """Load, watch, unload and restart the engine until it cannot be loaded or the server
        ends."""
        limits = self.host.limits
        crashes = 0  # of engines in a row
        failures = 0  # of loads in a row
        while True:
            began = time.monotonic()
            try:
                await self._load()
                failures = 0
                await self._watch()
                await self._unload()
                continue
            except Exception as e:
                self.reason = _public(e)
                log.error("model %s: %s", self.label, e)
                failures += self.phase != "ready"
                exits = self.host.config.on_crash == "exit"
                if not self.known or exits or failures > limits.restarts:
                    wrong = not self.known and isinstance(e, InvalidRequest | ModelNotFound)
                    await self._fail(WRONG if wrong else CRASHED)
                    return

            if time.monotonic() - began > limits.settled_seconds:
                crashes = 1
            else:
                crashes += 1
            self.restarts += 1
            self.become("restarting")
            await self._end()
            await asyncio.sleep(restart_pause(crashes, limits))

    async def _fail(self, code: int) -> None:
        """Note that the engine is lost for good."""
        self.become("failed")
        await self._end()
        self.host.note_failure(self, code)

    async def _load(self) -> None:
        """Start a process, once the loads of its device have ended. Return when it has spoken."""
        host = self.host
        async with self._loading:
            began = time.monotonic()
            # a reload is for a request, which need not wait for more speech
            warm_up = host.config.warmup and self.phase != "reloading"
            self.process = process = self._start(host.adapters.paths, self.ready, warm_up)
            self.client = process.client
            self.ready = await asyncio.shield(process.client.ready)

        async with host.adapters.updated(process.client, self.ready.lost):
            self.reason = None
            seconds = time.monotonic() - began
            host.residency.loaded(seconds)
            log.info("model %s is ready after %.2f s", self.label, seconds)
            self.become("ready")

    async def _watch(self) -> None:
        """Wait until the model has been idle for `idle_unload_seconds`. EngineError when its engine
        ends or is stuck."""
        assert self.process is not None
        process = self.process
        loop = asyncio.get_running_loop()
        trimmed = loop.time()
        while not process.ended.done():
            self._check(process.client, loop.time())
            seconds = self.host.residency.seconds_left(self.host.config.idle_unload_seconds)
            if seconds <= 0:
                return
            if loop.time() - trimmed >= self.host.limits.trim_seconds:
                await asyncio.to_thread(memory.trim)
                trimmed = loop.time()
            await asyncio.wait((process.ended,), timeout=min(WATCH_SECONDS, seconds))
        raise process.client.lost or EngineError("the engine has stopped")

    def _check(self, client: EngineClient, now: float) -> None:
        """EngineError if the engine's process, or a step in it, has not gone on for too long."""
        if client.health is None:
            working = 0.0
        else:
            working = client.health.working
        silent = now - client.beat_at
        if client.lost is not None:
            raise client.lost
        if max(working, silent) > self.host.limits.stuck_seconds:
            raise EngineError(f"the engine has not gone on for {max(working, silent):.0f} s")

    async def _unload(self) -> None:
        """Free the idle engine's memory, and return when a request wants the model."""
        residency = self.host.residency
        residency.wanted.clear()  # no request is in use now
        self.become("unloading")
        await self._end()
        residency.unloads += 1
        self.become("unloaded")
        log.info("model %s was idle and is unloaded", self.label)
        await residency.wanted.wait()
        self.become("reloading")

    async def _end(self) -> None:
        """End the process. What still runs on it ends with an error, at once where it is stuck."""
        process = self.process
        self.host.retire(self.health)
        self.process = None
        self.client = None
        if process is None:
            return
        if self.phase in ("restarting", "failed"):
            process.client.lose(EngineError(f"the engine has stopped: {self.reason}"))
            process.kill()
        await process.close()


def _public(error: Exception) -> str:
    """The public part of an engine's failure. The log has the rest."""
    if isinstance(error, EngineError):
        return "the engine has stopped"
    if isinstance(error, StentorError):
        return clipped(str(error), LIMITS.error_chars)
    return "internal error"
