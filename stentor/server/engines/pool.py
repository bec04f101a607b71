"""Requests to a model over its engines: each goes to the one with the fewest open requests, which
count over all API processes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from stentor.engine.scheduling.sequence import Place
from stentor.errors import EngineError
from stentor.models.info import Adapter, ModelInfo, SpeechRequest
from stentor.server.engines.client import EngineClient, EngineStream

TRY_EVERY = 32
"""Requests of which one may go to an engine whose last ones all failed. A success makes it ready
again."""


@dataclass(frozen=True, eq=False)
class PoolAdapter(Adapter):
    """An adapter on all engines that have loaded it, each in a slot of its own."""

    engines: Mapping[EngineClient, Adapter]

    def on(self, client: EngineClient) -> Adapter:
        """The adapter on one engine. InvalidRequest if that engine was started after it was
        unloaded."""
        return self.engines.get(client) or client.adapter(self.name)


class EnginePool:
    """The engines of a model that take requests. With one engine it is that."""

    def __init__(self, reachable: Callable[[], Sequence[EngineClient]]) -> None:
        """reachable: returns the engines that are ready, also those that have just been lost."""
        self._reachable = reachable
        self._next = 0  # where the search begins, so that equal engines take turns

    @property
    def clients(self) -> list[EngineClient]:
        """The engines that take requests."""
        return [client for client in self._reachable() if client.lost is None]

    @property
    def info(self) -> ModelInfo:
        """Facts about the model."""
        return self._pick().info

    def _pick(self, near: EngineStream | None = None) -> EngineClient:
        """The engine of a stream if it takes requests, else the one with the fewest open requests.
        EngineError if there is none."""
        clients = self.clients
        if not clients:
            errors = (client.lost for client in self._reachable())
            raise next(filter(None, errors), EngineError("the engine has stopped"))
        if near is not None and near.client in clients:
            return near.client

        healthy = [c for c in clients if c.health is None or c.health.ready]
        # one whose requests all fail has the fewest open ones
        if not healthy or self._next % TRY_EVERY == TRY_EVERY - 1:
            healthy = clients
        turn = self._next % len(healthy)
        return min([*healthy[turn:], *healthy[:turn]], key=_open_requests)

    # -- requests --

    def request(self, text: str, lora: str | None = None, **options: Any) -> SpeechRequest:
        """Check a request, as `TTS.request` does. InvalidRequest names the field that is wrong."""
        request = self._pick().request(text, **options)
        if lora is None:
            return request
        return replace(request, lora=self.adapter(lora))

    def adapter(self, name: str) -> Adapter:
        """The loaded adapter of a name. InvalidRequest if there is none."""
        engines = {c: c.adapters[name] for c in self.clients if name in c.adapters}
        if not engines:
            return self._pick().adapter(name)
        first = next(iter(engines.values()))
        return PoolAdapter(first.name, first.number, first.identity, first.path, engines)

    def submit(
        self,
        request: SpeechRequest,
        streaming: bool,
        place: Place = Place.NEW,
        request_id: str = "",
        traced: bool = False,
        near: EngineStream | None = None,
    ) -> EngineStream:
        """Queue a request. near: an earlier stream, on whose engine it stays while that takes
        requests. EngineError if no engine does. The stream raises Overloaded if the engine does
        not read."""
        client = self._pick(near)
        self._next += 1
        return client.submit(
            _on(client, request), streaming, place, request_id=request_id, traced=traced
        )

    async def check(self, request: SpeechRequest) -> None:
        """Have a request's prompt made, and no more. InvalidRequest for what only the family can
        judge."""
        client = self._pick()
        await client.check(_on(client, request))

    async def speakable(self, texts: Sequence[str]) -> list[bool]:
        """Return which texts the model can speak anything of. EngineError if the engine is
        gone."""
        return await self._pick().speakable(texts)


def _open_requests(client: EngineClient) -> int:
    return client.open


def _on(client: EngineClient, request: SpeechRequest) -> SpeechRequest:
    """The request with the adapter that its engine has."""
    if isinstance(request.lora, PoolAdapter):
        return replace(request, lora=request.lora.on(client))
    return request
