"""The models a server holds: started in the background, watched, unloaded while idle and restarted
after a crash."""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager
from typing import Literal

from stentor.align.aligner import Aligners
from stentor.engine.health import Health
from stentor.errors import EngineError, InvalidRequest, ModelNotFound, StentorError
from stentor.models.info import ModelInfo
from stentor.server import memory
from stentor.server.config import ServerConfig
from stentor.server.engines.client import EngineClient
from stentor.server.engines.launch import ProcessEngine, restart_pause
from stentor.server.engines.messages import Ready
from stentor.server.errors import ApiError, clipped
from stentor.server.limits import LIMITS, Limits
from stentor.server.stop_signals import CRASHED
from stentor.speech.client_names import OPENAI_MODELS, is_usual_model
from stentor.text.lexicon import Lexicon

log = logging.getLogger("stentor.server")
GiveUp = Callable[[int], None]  # ends the process with an exit code
Start = Callable[[Mapping[str, str], Ready | None, bool], ProcessEngine]
"""Start an engine with these adapters, by name. The last `Ready` says what slots for adapters it
had. The flag is for whether the model is to speak before it is ready."""
Phase = Literal[
    "loading", "ready", "restarting", "unloading", "unloaded", "reloading", "failed", "closed"
]
AWAY = ("unloading", "unloaded", "reloading")  # phases in which a request has the model loaded
WATCH_SECONDS = 0.5
# exit code when there is no such model or an option is wrong: another start would end the same way
WRONG = 2


class Residency:
    """The uses of one model: who waits until it is loaded again, and for how long it has been idle.
    Everything happens on the event loop."""

    def __init__(self, limits: Limits = LIMITS) -> None:
        self.limits = limits
        self.uses = self.waiting = 0
        self.loads = self.unloads = 0
        self.load_seconds = 1.0  # what the last load took
        self.wanted = asyncio.Event()  # somebody waits for the model
        self._changed = asyncio.Event()
        self._idle_since = 0.0

    @contextmanager
    def use(self) -> Iterator[None]:
        """Count the model as used inside the block. Its idle time begins behind it."""
        self.uses += 1
        try:
            yield
        finally:
            self.uses -= 1
            self._idle_since = asyncio.get_running_loop().time()

    def loaded(self, seconds: float) -> None:
        """Note a load, and how long it took."""
        self.loads += 1
        self.load_seconds = seconds
        self._idle_since = asyncio.get_running_loop().time()
        self.wanted.clear()

    def seconds_left(self, idle_seconds: float | None) -> float:
        """Seconds until the model has been idle for so long, if nobody uses it meanwhile. None: it
        may stay."""
        if self.uses or idle_seconds is None:
            return math.inf
        return self._idle_since + idle_seconds - asyncio.get_running_loop().time()

    def changed(self) -> None:
        """The model's phase has changed: those who wait look at it."""
        self._changed.set()
        self._changed = asyncio.Event()

    async def wait(self, name: str, away: Callable[[], bool]) -> None:
        """Have the model loaded, and return once `away` is false. ApiError 503 if too many wait, or
        if it takes too long."""
        if self.waiting >= self.limits.load_waiting:
            raise self._refusal(f"too many requests wait until model {name!r} is loaded")
        self.waiting += 1
        self.wanted.set()
        try:
            async with asyncio.timeout(self.limits.load_seconds):
                while away():
                    await self._changed.wait()
        except TimeoutError:
            raise self._refusal(f"model {name!r} is still being loaded") from None
        finally:
            self.waiting -= 1

    def _refusal(self, message: str) -> ApiError:
        return ApiError(503, message, code="model_loading", retry_after=self.retry_after)

    @property
    def retry_after(self) -> float:
        """Seconds after which the model may be there, from 1 to 60."""
        return min(60.0, max(1.0, self.load_seconds))


class HostAdapters:
    """Names and folders of the LoRA adapters of one model. A model that is loaded again has them
    again."""

    def __init__(self, given: Mapping[str, str]) -> None:
        self.paths = dict(given)  # in the order in which they were loaded
        self._lock = asyncio.Lock()

    async def load(self, client: EngineClient, name: str, path: str) -> None:
        """Load an adapter while requests run. ApiError 400: a name is taken, no slot is free, or a
        tensor is wrong. ApiError 503: the engine was lost meanwhile."""
        async with self._lock:
            if name in self.paths:
                raise ApiError(
                    400, f"the lora adapter {name!r} has already been loaded", param="lora_name"
                )
            try:
                await client.load_lora(name, path)
            except StentorError as e:
                _check_alive(client)
                if isinstance(e, InvalidRequest):
                    param = "lora_name"
                else:
                    param = "lora_path"
                raise ApiError(400, f"{param}: {e}", param=param) from e
            self.paths[name] = path

    async def unload(self, client: EngineClient, name: str) -> None:
        """Refuse the name from now on. Requests that have the adapter keep it. ApiError 404 if it
        is not loaded. ApiError 503: the engine was lost meanwhile."""
        async with self._lock:
            if name not in self.paths:
                raise ApiError(
                    404,
                    f"the lora adapter {name!r} cannot be found",
                    param="lora_name",
                    code="not_found",
                )
            try:
                await client.unload_lora(name)
            except StentorError:
                _check_alive(client)
                raise
            del self.paths[name]


def _check_alive(client: EngineClient) -> None:
    """ApiError 503 if the engine is gone. Another, which has the names of that moment, takes its
    place."""
    if client.lost is not None:
        raise ApiError(
            503, "the model has been started again; try again", code="not_ready", retry_after=5
        )


class ModelHost:
    """One model and its engine. Everything but the decoding of references, and finding when words
    are spoken, happens on the event loop."""

    def __init__(
        self,
        name: str,
        start: Start,
        config: ServerConfig,
        give_up: GiveUp,
        loading: asyncio.Lock,
        limits: Limits = LIMITS,
    ) -> None:
        """loading: the lock of its device, taken while a model is loaded."""
        self.name = name
        self.config = config
        self.limits = limits
        self.lexicon = Lexicon.of(config.lexicon)
        self.aligners = Aligners(config.aligner)
        self.residency = Residency()
        self.others: list[ModelHost] = []  # of the same server
        self.listeners: list[Callable[[ModelHost], None]] = []  # called when the phase has changed
        self.adapters = HostAdapters(config.loras_of(name))
        self.phase: Phase = "loading"
        self.reason: str | None = None
        self.created = int(time.time())
        self.restarts = 0
        self.references = ThreadPoolExecutor(
            LIMITS.reference_threads, thread_name_prefix=f"stentor-reference-{name}"[:60]
        )
        self.clocks = ThreadPoolExecutor(1, thread_name_prefix=f"stentor-words-{name}"[:60])
        self.engine: ProcessEngine | None = None  # while this process has one
        self._client: EngineClient | None = None
        self._start = start
        self._give_up = give_up
        self._loading = loading
        self._ready: Ready | None = None  # of the last load
        self._task: asyncio.Task[None] | None = None
        self._seconds_per_request = 1.0

    @asynccontextmanager
    async def in_use(self) -> AsyncIterator[EngineClient]:
        """The model, which stays loaded inside. If it was unloaded, it is loaded first. ApiError
        503 while there is none, and where that takes too long."""
        with self.residency.use():
            if self.phase in AWAY:
                await self.residency.wait(self.name, lambda: self.phase in (*AWAY, "restarting"))
            yield self.client

    @property
    def resident(self) -> bool:
        """Whether the model is in memory."""
        return self._client is not None

    @property
    def known(self) -> bool:
        """Whether the model was ready once."""
        return self._ready is not None

    @property
    def serves(self) -> bool:
        """Whether a request would be taken now, perhaps after the model has been loaded again."""
        return self.phase == "ready" or self.phase in AWAY

    @property
    def client(self) -> EngineClient:
        """The engine of the loaded model. ApiError 503 while there is none. What may wait is inside
        `in_use`."""
        if self._client is None or self.phase != "ready":
            if self.reason:
                reason = f": {self.reason}"
            else:
                reason = ""
            raise ApiError(
                503, f"model {self.name!r} is {self.phase}{reason}", code="not_ready", retry_after=5
            )
        return self._client

    @property
    def spec(self) -> ModelInfo:
        """Facts about the model, known from the first load on. ApiError 503 before."""
        if self._ready is None:
            return self.client.info
        return self._ready.info

    @property
    def health(self) -> Health | None:
        """How the engine was half a second ago at most. None: there is none."""
        if self._client is None:
            return None
        return self._client.health

    async def refresh(self) -> None:
        """Update `health` from the engine."""
        if self._client is not None and self.phase == "ready":
            await self._client.refresh()

    def start(self) -> None:
        self._task = asyncio.create_task(self._live(), name=f"host {self.name}")
        self._task.add_done_callback(self._note_keeper_end)

    def _note_keeper_end(self, task: asyncio.Task[None]) -> None:
        """End the server if the task that restarts this model has failed: nothing else would."""
        if not task.cancelled() and task.exception() is not None:
            log.error("model %s is no longer watched", self.name, exc_info=task.exception())
            self._become("failed")
            self._give_up(CRASHED)

    async def close(self) -> None:
        self._become("closed")
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        await self._end_engine()
        self.references.shutdown(wait=False, cancel_futures=True)
        self.clocks.shutdown(wait=False, cancel_futures=True)

    def kill(self) -> None:
        """Kill the engine's process. For any thread."""
        engine = self.engine
        if engine is not None:
            engine.kill()

    def note_duration(self, seconds: float) -> None:
        """Update the mean duration of a request, for Retry-After."""
        self._seconds_per_request += 0.1 * (seconds - self._seconds_per_request)

    @property
    def retry_after(self) -> float:
        """Seconds after which a refused request has a chance, from 1 to 60."""
        health = self.health
        if health is None:
            if self.phase in AWAY:
                return self.residency.retry_after
            return 5.0
        slots = max(1, health.free_slots + health.running)
        return min(60.0, max(1.0, health.queued * self._seconds_per_request / slots))

    def _become(self, phase: Phase) -> None:
        self.phase = phase
        self.residency.changed()
        for listener in self.listeners:
            listener(self)

    async def _live(self) -> None:
        """Load, watch, unload and restart the model until it cannot be loaded or the server
        ends."""
        crashes = failures = 0  # in a row: of engines, and of loads
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
                log.error("model %s: %s", self.name, e)
                failures += self.phase != "ready"
                if (
                    not self.known
                    or self.config.on_crash == "exit"
                    or failures > self.limits.restarts
                ):
                    wrong = not self.known and isinstance(e, InvalidRequest | ModelNotFound)
                    await self._fail(WRONG if wrong else CRASHED)
                    return
            if time.monotonic() - began > self.limits.settled_seconds:
                crashes = 1
            else:
                crashes = crashes + 1
            self.restarts += 1
            self._become("restarting")
            await self._end_engine()
            await asyncio.sleep(restart_pause(crashes, self.limits))

    async def _fail(self, code: int) -> None:
        """The model is lost for good. So is the server where no other model serves."""
        first = not self.known
        self._become("failed")
        await self._end_engine()
        if first or self.config.on_crash == "exit" or not any(host.serves for host in self.others):
            self._give_up(code)

    async def _load(self) -> None:
        """Start an engine, once the loads of its device have ended. Return when it has spoken."""
        async with self._loading:
            began = time.monotonic()
            # then a request waits to do so
            warm_up = self.config.warmup and self.phase != "reloading"
            self.engine = engine = self._start(self.adapters.paths, self._ready, warm_up)
            self._client = engine.client
            self._ready = await asyncio.shield(engine.client.ready)
        for name in self._ready.lost:
            self.adapters.paths.pop(name, None)
        self.reason = None
        self.residency.loaded(time.monotonic() - began)
        log.info("model %s is ready after %.2f s", self.name, self.residency.load_seconds)
        self._become("ready")

    async def _watch(self) -> None:
        """Wait until the model has been idle for `idle_unload_seconds`. EngineError when its engine
        ends or is stuck."""
        assert self.engine is not None
        engine = self.engine
        loop = asyncio.get_running_loop()
        trimmed = loop.time()
        while not engine.ended.done():
            self._check(engine.client, loop.time())
            seconds = self.residency.seconds_left(self.config.idle_unload_seconds)
            if seconds <= 0:
                return
            if loop.time() - trimmed >= self.limits.trim_seconds:
                await asyncio.to_thread(memory.trim)
                trimmed = loop.time()
            await asyncio.wait((engine.ended,), timeout=min(WATCH_SECONDS, seconds))
        raise engine.client.lost or EngineError("the engine has stopped")

    def _check(self, client: EngineClient, now: float) -> None:
        """EngineError if the engine's process, or a step in it, has not gone on for too long."""
        if client.health is None:
            working = 0.0
        else:
            working = client.health.working
        silent = now - client.beat_at
        if client.lost is not None:
            raise client.lost
        if max(working, silent) > self.limits.stuck_seconds:
            raise EngineError(f"the engine has not gone on for {max(working, silent):.0f} s")

    async def _unload(self) -> None:
        """Free the idle model's memory, and return when a request wants it."""
        self._become("unloading")
        await self._end_engine()
        self.residency.unloads += 1
        self._become("unloaded")
        log.info("model %s was idle and is unloaded", self.name)
        await self.residency.wanted.wait()
        self._become("reloading")

    async def _end_engine(self) -> None:
        """End the engine. What still runs on it ends with an error, at once where it is stuck."""
        engine, self.engine, self._client = self.engine, None, None
        if engine is None:
            return
        if self.phase in ("restarting", "failed"):
            engine.client.lose(EngineError(f"the engine has stopped: {self.reason}"))
            engine.kill()
        await engine.close()


def _public(error: Exception) -> str:
    """The public part of a model's failure. The log has the rest."""
    if isinstance(error, EngineError):
        return "the engine has stopped"
    if isinstance(error, StentorError):
        return clipped(str(error), LIMITS.error_chars)
    return "internal error"


class ModelHosts:
    """All models by name or by that of one of their adapters. A request that names none, or one of
    `aliases`, gets the first. Where there is one model, usual names such as tts-1 mean it."""

    def __init__(self, hosts: list[ModelHost], aliases: Sequence[str]) -> None:
        self.all = hosts
        self.aliases = aliases
        for host in hosts:
            host.others = [other for other in hosts if other is not host]

    async def refreshed(self) -> list[ModelHost]:
        """All models, once each engine has reported its state, or some time has passed."""
        await asyncio.gather(*(host.refresh() for host in self.all))
        return self.all

    def served(self) -> list[tuple[str, ModelHost]]:
        """Every name that a list of models has, with its model."""
        hosts = {h.name: h for h in self.all} | dict.fromkeys(self.aliases, self.all[0])
        if len(self.all) == 1:
            hosts |= {name: self.all[0] for name in OPENAI_MODELS if name not in hosts}
        return list(hosts.items())

    def listed(self) -> list[tuple[str, ModelHost]]:
        """List served models with the names of adapters."""
        return [*self.served(), *((name, h) for h in self.all for name in h.adapters.paths)]

    def of_adapter(self, name: str) -> ModelHost | None:
        """The model that has an adapter of this name."""
        return next((h for h in self.all if name in h.adapters.paths), None)

    def voices(self, model: str | None = None) -> list[str]:
        """The voices of one model, or of all that are known by now."""
        if model is None:
            hosts = self.all
        else:
            hosts = [self.named(model)]
        return [v for h in hosts if h.serves for v in h.spec.voices]

    def named(self, name: str | None) -> ModelHost:
        """The model of a name, the first for none. ApiError 404 for a model that is not here."""
        if not name or name in self.aliases:
            return self.all[0]
        for host in self.all:
            if host.name == name:
                return host
        if (adapted := self.of_adapter(name)) is not None:
            return adapted
        if len(self.all) == 1 and is_usual_model(name):
            return self.all[0]
        served = ", ".join(n for h in self.all for n in (h.name, *h.adapters.paths))
        raise ApiError(
            404,
            f"model: {name!r} is not served here; served: {served}",
            param="model",
            code="model_not_found",
        )


def names(config: ServerConfig) -> list[tuple[str, str | None]]:
    """(name in the API, argument of TTS) of each model to load."""
    models: list[str | None] = list(config.models) or [None]
    served = config.served_model_name or tuple("stentor" if m is None else m for m in models)
    return list(zip(served, models, strict=False))  # one model may have more names
