"""An engine in the server's own process, for tests that look inside it or hold it up."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np

import stentor
from stentor.config import Policy
from stentor.errors import EngineError
from stentor.server.config import ServerConfig
from stentor.server.engines import messages as m
from stentor.server.engines.client import EngineClient
from stentor.server.engines.launch import EngineFactory
from stentor.server.engines.lifecycle import OwnedEngine, Start
from stentor.server.engines.process import BEAT_SECONDS, adapted, ready
from stentor.server.engines.service import EngineService
from stentor.server.model_hosts import ModelHost, names
from tests.helpers.wire import transmitted

Load = Callable[[str, str | None], Callable[..., stentor.TTS]]
"""load(name, model) gives what makes a model."""

Starting = Callable[[str, str | None], Start]
"""`start` of `create_app`."""


def local(load: Load, warm_up: bool = True) -> Starting:
    """Engines in this process."""

    def start(name: str, model: str | None) -> Start:
        make = load(name, model)

        def begin(adapters: Mapping[str, str], last: m.Ready | None, warm: bool) -> LocalEngine:
            again = (
                {}
                if last is None or not last.lora_options
                else {"loras": None, **last.lora_options}
            )
            return LocalEngine(name, lambda: make(**again), adapters, warm)

        return begin

    return start


def configured(config: ServerConfig) -> Starting:
    """Engines in this process with the options that a server's configuration gives those in other processes."""

    def start(name: str, model: str | None) -> Start:
        factory = factory_of(config, name)

        def begin(adapters: Mapping[str, str], last: m.Ready | None, warm: bool) -> LocalEngine:
            return LocalEngine(name, lambda: loaded(factory, last), adapters, warm)

        return begin

    return start


def factory_of(config: ServerConfig, name: str | None = None) -> EngineFactory:
    """How a server starts the engine of its model of this name, the first for none."""
    found = names(config)
    at = 0 if name is None else [n for n, _ in found].index(name)
    return EngineFactory(*found[at], config, at)


def loaded(factory: EngineFactory, last: m.Ready | None = None) -> stentor.TTS:
    """The model of an engine, as its process loads it."""
    return stentor.TTS(
        **factory.options(last), **factory.if_taken(last), policy=Policy(**factory.policy())
    )


def local_engine(host: ModelHost, at: int = 0) -> LocalEngine:
    """The engine of a model that runs in this process. at: its place among those of the model."""
    engine = host.engines[at]
    assert isinstance(engine, OwnedEngine)
    assert isinstance(engine.process, LocalEngine)
    return engine.process


class LocalEngine:
    """An engine in this process, around a model that `make` gives. Messages are encoded and decoded as on their way
    between processes."""

    def __init__(
        self,
        name: str,
        make: Callable[..., stentor.TTS],
        adapters: Mapping[str, str],
        warm_up: bool,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._thread = ThreadPoolExecutor(1, "stentor-commands")
        self.client = EngineClient(name, 0, self._send)
        self.ended: asyncio.Future[int] = self._loop.create_future()
        self.tts: stentor.TTS | None = None
        self._service: EngineService | None = None
        self._make, self._adapters, self._warm_up = make, adapters, warm_up
        self._loading = self._thread.submit(self._load)
        self._beating = asyncio.create_task(self._beat())

    def _load(self) -> None:
        try:
            tts, lost = adapted(self._make(), self._adapters, self._warm_up)
            self.tts = tts
            self._service = service = EngineService(tts, self._receive, float("inf"))
            service.connect(0)
            self._receive(0, [ready(tts, lost)], ())
            service.beat()
        except BaseException as e:
            self._receive(0, [m.Broken(m.error(e))], ())

    def _send(self, command: m.Command, arrays: Sequence[np.ndarray]) -> None:
        parts = transmitted([command], arrays)

        def handle() -> None:
            messages, data = m.commands(parts)
            if self._service is not None:
                self._service.handle(messages[0], m.Reader(data))

        with contextlib.suppress(RuntimeError):  # it has been closed
            self._thread.submit(handle)

    def _receive(self, api: int, events: Sequence[m.Event], arrays: Sequence[np.ndarray]) -> None:
        found, data = m.events(transmitted(events, arrays))
        with contextlib.suppress(RuntimeError):  # the loop has ended
            self._loop.call_soon_threadsafe(self.client.receive, found, m.Reader(data))

    async def _beat(self) -> None:
        """Do what the loop of a process does now and then."""
        await asyncio.wrap_future(self._loading)
        if self.tts is None or self._service is None:
            self.kill()
            return
        while (error := self.tts.engine.health().error) is None:
            self._service.beat()
            await asyncio.sleep(BEAT_SECONDS)
        self.client.lose(EngineError(f"the engine has stopped: {error}"))
        self.kill()

    def kill(self) -> None:
        if not self.ended.done():
            self.ended.set_result(1)

    async def close(self) -> None:
        """End it. What others may still hold of it, such as its client, holds no model."""
        await asyncio.wrap_future(self._loading)
        self._beating.cancel()
        self._thread.shutdown(wait=False, cancel_futures=True)
        service, tts, self._service, self.tts = self._service, self.tts, None, None
        if service is not None:
            service.close(EngineError("the engine has stopped: closed"))
        if tts is not None:
            await asyncio.to_thread(tts.close)
        self.client.lose(EngineError("the engine has stopped: closed"))
        self.kill()
