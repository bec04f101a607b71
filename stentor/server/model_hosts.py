"""The models a server holds: loaded in the background, watched, restarted after a crash."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Literal

from stentor.engine.preparation import Ticket
from stentor.engine.request_state import Health
from stentor.errors import EngineError, InvalidRequest, ModelNotFound, StentorError
from stentor.models.base import ModelSpec
from stentor.server import memory
from stentor.server.adapters import HostAdapters
from stentor.server.config import ServerConfig
from stentor.server.errors import ApiError, clipped
from stentor.server.limits import LIMITS
from stentor.server.loader import Loader
from stentor.server.names import OPENAI_MODELS, is_usual_model
from stentor.server.residency import Residency
from stentor.server.warm_up import read_as_sent, warm_up
from stentor.text.lexicon import Lexicon

if TYPE_CHECKING:
    from stentor.api import TTS

log = logging.getLogger("stentor.server")

GiveUp = Callable[[int], None]  # ends the process with an exit code
Phase = Literal["loading", "warming", "ready", "restarting", "unloading", "unloaded", "reloading", "failed", "closed"]
AWAY = ("unloading", "unloaded", "reloading")  # phases in which a request has the model loaded
WATCH_SECONDS = 0.5
RESTARTS = LIMITS.restarts  # in a row
CRASHED = 70  # exit code (EX_SOFTWARE) when an engine cannot be brought back
WRONG = 2  # exit code when there is no such model or an option is wrong: another start would end the same way
THREADS = LIMITS.prepare_threads  # for tokenising text, per model
REFERENCE_THREADS = LIMITS.reference_threads  # for decoding reference audio


class ModelHost:
    """One model and its engine. Everything but the work of its two pools happens on the event loop."""

    def __init__(
        self,
        name: str,
        make: Callable[..., TTS],
        config: ServerConfig,
        give_up: GiveUp,
        loader: Loader,
        parsers: Executor,
    ) -> None:
        """parsers: threads that parse the bodies of requests."""
        self.name, self.config, self.loader = name, config, loader
        self.lexicon = Lexicon.of(None)  # the model's, from the first load on
        self.residency = Residency()
        self.others: list[ModelHost] = []  # of the same server
        self.adapters = HostAdapters(config.loras_of(name))
        self.phase: Phase = "loading"
        self.reason: str | None = None
        self.created = int(time.time())
        self.restarts = 0
        self.pool = ThreadPoolExecutor(THREADS, thread_name_prefix=f"stentor-prepare-{name}"[:60])
        self.references = ThreadPoolExecutor(REFERENCE_THREADS, thread_name_prefix=f"stentor-reference-{name}"[:60])
        self._make, self._give_up, self._parsers = make, give_up, parsers
        self._tts: TTS | None = None
        self._spec: ModelSpec | None = None
        self._task: asyncio.Task[None] | None = None
        self._seconds_per_request = 1.0

    @asynccontextmanager
    async def in_use(self) -> AsyncIterator[TTS]:
        """The model, which stays loaded inside. If it was unloaded, it is loaded first. ApiError 503 while there is
        none, and where that takes too long.

        Nothing outside may hold the model or its engine, or they would stay in memory.
        """
        with self.residency.use():
            if self.phase in AWAY:
                await self.residency.wait(self.name, lambda: self.phase in (*AWAY, "restarting"))
            yield self.tts

    @property
    def resident(self) -> bool:
        """Whether the model is in memory."""
        return self._tts is not None

    @property
    def known(self) -> bool:
        """Whether the model was ready once."""
        return self.residency.loads > 0

    @property
    def serves(self) -> bool:
        """Whether a request would be taken now, perhaps after the model has been loaded again."""
        return self.phase == "ready" or self.phase in AWAY

    @property
    def tts(self) -> TTS:
        """The loaded model. ApiError 503 while there is none. What may wait is inside `in_use`."""
        if self._tts is None or self.phase != "ready":
            reason = f": {self.reason}" if self.reason else ""
            raise ApiError(503, f"model {self.name!r} is {self.phase}{reason}", code="not_ready", retry_after=5)
        return self._tts

    @property
    def spec(self) -> ModelSpec:
        """Facts about the model, known from the first load on."""
        if self._spec is None:
            return self.tts.spec
        return self._spec

    def ticket(self) -> Ticket | None:
        """Have the engine expect a request, if there is one."""
        return None if self._tts is None else self._tts.engine.upcoming.ticket()

    @property
    def health(self) -> Health | None:
        return None if self._tts is None else self._tts.engine.health()

    def start(self) -> None:
        self._task = asyncio.create_task(self._live(), name=f"host {self.name}")

    async def close(self) -> None:
        self._become("closed")
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        await self._discard(collect=False)
        for pool in (self.pool, self.references):
            pool.shutdown(wait=False, cancel_futures=True)

    def note_duration(self, seconds: float) -> None:
        """Update the mean duration of a request, for Retry-After."""
        self._seconds_per_request += 0.1 * (seconds - self._seconds_per_request)

    @property
    def retry_after(self) -> float:
        """Seconds after which a refused request has a chance, from 1 to 60."""
        health = self.health
        if health is None:
            return self.residency.retry_after if self.phase in AWAY else 5.0
        slots = max(1, health.free_slots + health.running)
        return min(60.0, max(1.0, health.queued * self._seconds_per_request / slots))

    def _become(self, phase: Phase) -> None:
        self.phase = phase
        self.residency.changed()

    async def _live(self) -> None:
        """Load, watch, unload and restart the model until it fails for good or the server ends."""
        failures, code = 0, CRASHED
        while failures <= RESTARTS:
            began = time.monotonic()
            try:
                await self._load()
                await self._watch()
                await self._unload()
                continue
            except Exception as e:
                first = self._spec is None
                self.reason = _public(e)
                self._become("failed" if first else "restarting")  # those who wait for a reload go on waiting
                log.error("model %s: %s", self.name, e)
                if first and isinstance(e, InvalidRequest | ModelNotFound):
                    code = WRONG
                if first or not await asyncio.to_thread(self._restartable):
                    self._become("failed")
                    self._give_up(code)
                    return
            failures = 1 if time.monotonic() - began > LIMITS.settled_seconds else failures + 1
            self.restarts += 1
            self._become("restarting" if failures <= RESTARTS else "failed")
            await self._discard()
            await asyncio.sleep(0.2 * failures)
        self._become("failed")
        if not any(host.serves for host in self.others):
            self._give_up(code)

    async def _load(self) -> None:
        """Load the model, and speak with it unless a request waits to do so."""
        began, again = time.monotonic(), self.phase == "reloading"
        self._tts = await self.loader.load(lambda: self.adapters.made(self._make))
        self._spec, self.lexicon = self._tts.spec, self._tts.lexicon
        if self.config.warmup and not again:
            if self.phase == "loading":
                self._become("warming")
            await asyncio.to_thread(warm_up, self._tts)
        await self.loader.settle(collect=not again)
        if self.config.warmup and not self.known and self._spec.takes_reference:
            await read_as_sent(self._parsers, self.pool, self.references)
        self.reason = None
        self.residency.loaded(time.monotonic() - began)
        self._become("ready")
        log.info("model %s is ready after %.2f s", self.name, self.residency.load_seconds)

    async def _watch(self) -> None:
        """Check the engine until it fails, which raises EngineError, or has been idle for `idle_unload_seconds`."""
        assert self._tts is not None
        loop = asyncio.get_running_loop()
        trimmed = loop.time()
        while True:
            health = self._tts.engine.health()
            if not health.alive:
                raise EngineError(f"the engine has stopped: {health.error}")
            left = self.residency.seconds_left(self.config.idle_unload_seconds)
            if left <= 0:
                return
            if loop.time() - trimmed >= LIMITS.trim_seconds:
                await asyncio.to_thread(memory.trim)
                trimmed = loop.time()
            await asyncio.sleep(min(WATCH_SECONDS, left))

    async def _unload(self) -> None:
        """Free the idle model's memory, and return when a request wants it."""
        self._become("unloading")
        await self._discard()
        self.residency.unloads += 1
        self._become("unloaded")
        log.info("model %s is unloaded: it was idle", self.name)
        await self.residency.wanted.wait()
        self._become("reloading")

    async def _discard(self, collect: bool = True) -> None:
        if self._tts is not None:
            await self.loader.unload(self._taken(), collect)

    def _taken(self) -> TTS:
        """The model, which is not held here any more."""
        assert self._tts is not None
        tts, self._tts = self._tts, None
        return tts

    def _restartable(self) -> bool:
        """Whether a new engine can work. After a fault of a CUDA kernel the process cannot use the device."""
        if self.config.on_crash == "auto":
            return self._tts is None or self._tts.engine.device.answers()
        return self.config.on_crash == "restart"


def _public(error: Exception) -> str:
    """What everybody may read about a model's failure. The log has the rest."""
    if isinstance(error, EngineError):
        return "the engine has stopped"
    return clipped(str(error), LIMITS.error_chars) if isinstance(error, StentorError) else "internal error"


class ModelHosts:
    """All models by name or by that of one of their adapters. A request that names none, or one of `aliases`, gets the
    first. Where there is one model, usual names such as tts-1 mean it."""

    def __init__(self, hosts: list[ModelHost], aliases: Sequence[str]) -> None:
        self.all, self.aliases = hosts, aliases
        for host in hosts:
            host.others = [other for other in hosts if other is not host]

    def served(self) -> list[tuple[str, ModelHost]]:
        """Every name that a list of models has, with its model."""
        found = {h.name: h for h in self.all} | dict.fromkeys(self.aliases, self.all[0])
        if len(self.all) == 1:
            found |= {name: self.all[0] for name in OPENAI_MODELS if name not in found}
        return list(found.items())

    def listed(self) -> list[tuple[str, ModelHost]]:
        """The same with the names of adapters."""
        return [*self.served(), *((name, h) for h in self.all for name in h.adapters.paths)]

    def of_adapter(self, name: str) -> ModelHost | None:
        """The model that has an adapter of this name."""
        return next((h for h in self.all if name in h.adapters.paths), None)

    def arriving(self) -> Callable[[], None]:
        """A request for speech is about to be handled. Every engine expects it until what this returns is called, as
        nobody has read yet which model it names."""
        tickets = [ticket for host in self.all if (ticket := host.ticket()) is not None]

        def handled() -> None:
            for ticket in tickets:
                ticket.end()

        return handled

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
        known = ", ".join(n for h in self.all for n in (h.name, *h.adapters.paths))
        raise ApiError(
            404, f"model: {name!r} is not served here; served: {known}", param="model", code="model_not_found"
        )


def names(config: ServerConfig) -> list[tuple[str, str | None]]:
    """(name in the API, argument of TTS) of each model to load."""
    models: list[str | None] = list(config.models) or [None]
    given = config.served_model_name or tuple("stentor" if m is None else m for m in models)
    return list(zip(given, models, strict=False))  # one model may have more names
