"""The models of a server, each with one or several engines: their names, adapters and state."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager

from stentor.align.aligner import Aligners
from stentor.engine.health import Health, combined, ended
from stentor.models.info import ModelInfo
from stentor.server.config import ServerConfig
from stentor.server.engines.adapters import ModelAdapters
from stentor.server.engines.client import EngineClient
from stentor.server.engines.model_engine import AWAY, ModelEngine, Phase
from stentor.server.engines.pool import EnginePool
from stentor.server.errors import ApiError
from stentor.server.limits import LIMITS, Limits
from stentor.server.residency import Residency
from stentor.speech.client_names import OPENAI_MODELS, is_usual_model
from stentor.text.lexicon import Lexicon

GiveUp = Callable[[int], None]  # ends the process with an exit code

PHASES: tuple[Phase, ...] = (
    "ready",
    "reloading",
    "unloading",
    "unloaded",
    "restarting",
    "loading",
    "failed",
    "closed",
)
"""Phases of a model: the first of these in which one of its engines is."""


class ModelHost:
    """One model and its engines. Everything but the decoding of references, and finding when words
    are spoken, happens on the event loop."""

    def __init__(
        self, name: str, config: ServerConfig, give_up: GiveUp, limits: Limits = LIMITS
    ) -> None:
        """give_up(code): called when the model is lost for good. Its engines are added later."""
        self.name = name
        self.config = config
        self.limits = limits
        self.give_up = give_up
        self.lexicon = Lexicon.of(config.lexicon)
        self.aligners = Aligners(config.aligner)
        self.residency = Residency()
        self.others: list[ModelHost] = []  # of the same server
        self.listeners: list[Callable[[ModelEngine], None]] = []  # called when a phase has changed
        self.created = int(time.time())
        self.engines: list[ModelEngine] = []
        self.pool = EnginePool(self._reachable)
        self.adapters = ModelAdapters(config.loras_of(name), lambda: self.pool.clients)
        self.references = ThreadPoolExecutor(
            LIMITS.reference_threads, thread_name_prefix=f"stentor-reference-{name}"[:60]
        )
        self.clocks = ThreadPoolExecutor(1, thread_name_prefix=f"stentor-words-{name}"[:60])
        self._ended: Health | None = None  # counters of engines that have ended
        self._seconds_per_request = 1.0

    def _reachable(self) -> list[EngineClient]:
        """The engines that take requests, unless they have just been lost."""
        return [e.client for e in self.engines if e.phase == "ready" and e.client is not None]

    @asynccontextmanager
    async def in_use(self) -> AsyncIterator[EnginePool]:
        """The model, which stays loaded inside. If it was unloaded, it is loaded first. ApiError
        503 while there is none, and where that takes too long."""
        with self.residency.use():
            if any(engine.phase in AWAY for engine in self.engines):
                self.residency.wanted.set()  # all of them are loaded again
            if self.phase in AWAY:
                await self.residency.wait(self.name, lambda: self.phase in (*AWAY, "restarting"))
            self._check_ready()
            yield self.pool

    def _check_ready(self) -> None:
        """ApiError 503 while no engine is ready."""
        if self.phase == "ready":
            return
        if self.reason:
            reason = f": {self.reason}"
        else:
            reason = ""
        raise ApiError(
            503, f"model {self.name!r} is {self.phase}{reason}", code="not_ready", retry_after=5
        )

    # -- state --

    @property
    def phase(self) -> Phase:
        """Phase of the model: ready while one of its engines is."""
        phases = {engine.phase for engine in self.engines}
        return next(phase for phase in PHASES if phase in phases)

    @property
    def reason(self) -> str | None:
        """Reason why the model is not ready."""
        phase = self.phase
        if phase == "ready":
            return None
        return next((e.reason for e in self.engines if e.phase == phase and e.reason), None)

    @property
    def restarts(self) -> int:
        """Engines that were started again after a crash."""
        return sum(engine.restarts for engine in self.engines)

    @property
    def resident(self) -> bool:
        """Whether the model is in memory."""
        return any(engine.client is not None for engine in self.engines)

    @property
    def known(self) -> bool:
        """Whether the model was ready once."""
        return any(engine.known for engine in self.engines)

    @property
    def serves(self) -> bool:
        """Whether a request would be taken now, perhaps after the model has been loaded again."""
        return self.phase == "ready" or self.phase in AWAY

    @property
    def spec(self) -> ModelInfo:
        """Facts about the model, known from the first load on. ApiError 503 before."""
        for engine in self.engines:
            if engine.ready is not None:
                return engine.ready.info
        self._check_ready()
        return self.pool.info

    @property
    def health(self) -> Health | None:
        """How the engines were half a second ago at most, as one: their sums, and alive while one
        is. None: there is none."""
        healths = [health for e in self.engines if (health := e.health) is not None]
        if not healths:
            return None
        return combined(healths, self._ended)

    async def refresh(self) -> None:
        """Update `health` from the engines."""
        await asyncio.gather(*(engine.refresh() for engine in self.engines))

    def retire(self, health: Health | None) -> None:
        """Keep the counters of an engine that ends, so that those of the model never go back."""
        if health is not None:
            self._ended = ended(health, self._ended)

    def changed(self, engine: ModelEngine) -> None:
        """Report that an engine has entered another phase."""
        self.residency.changed()
        for listener in self.listeners:
            listener(engine)

    def note_failure(self, engine: ModelEngine, code: int) -> None:
        """An engine is lost for good. So is the server where that is its first load, or where no
        other engine serves."""
        serves = any(host.serves for host in (self, *self.others))
        if not engine.known or self.config.on_crash == "exit" or not serves:
            self.give_up(code)

    # -- start and end --

    def start(self) -> None:
        for engine in self.engines:
            engine.start()

    async def close(self) -> None:
        await asyncio.gather(*(engine.close() for engine in self.engines))
        self.references.shutdown(wait=False, cancel_futures=True)
        self.clocks.shutdown(wait=False, cancel_futures=True)

    def kill(self) -> None:
        """Kill the engines' processes. For any thread."""
        for engine in self.engines:
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


class ModelHosts:
    """All models by name or by that of one of their adapters. A request that names none, or one of
    `aliases`, gets the first. Where there is one model, usual names such as tts-1 mean it."""

    def __init__(self, hosts: list[ModelHost], aliases: Sequence[str]) -> None:
        self.all = hosts
        self.aliases = aliases
        for host in hosts:
            host.others = [other for other in hosts if other is not host]

    @property
    def engines(self) -> list[ModelEngine]:
        """The engines of all models, in the order of their numbers."""
        return [engine for host in self.all for engine in host.engines]

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
