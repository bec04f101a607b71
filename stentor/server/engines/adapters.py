"""LoRA adapters of a model on all of its engines."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager

from stentor.errors import InvalidRequest, StentorError
from stentor.server.engines.client import EngineClient
from stentor.server.errors import ApiError

log = logging.getLogger("stentor.server")


class ModelAdapters:
    """Names and folders of the LoRA adapters of one model. Each of its engines has all of them, and
    one that is loaded again has them again."""

    def __init__(
        self, paths: Mapping[str, str], clients: Callable[[], Sequence[EngineClient]]
    ) -> None:
        """clients: returns the engines that take requests now."""
        self.paths = dict(paths)  # in the order in which they were loaded
        self._clients = clients
        self._lock = asyncio.Lock()

    async def load(self, name: str, path: str) -> None:
        """Load an adapter on every engine while requests run. ApiError 400: a name is taken, no
        slot is free, or a tensor is wrong. ApiError 503: the engines were lost meanwhile."""
        async with self._lock:
            if name in self.paths:
                raise ApiError(
                    400, f"the lora adapter {name!r} has already been loaded", param="lora_name"
                )
            clients = self._clients()
            loads = [client.load_lora(name, path) for client in clients]
            errors = await _errors_of_running(clients, loads)
            if errors:
                await _unload(name, clients)
                e = errors[0]
                if isinstance(e, InvalidRequest):
                    param = "lora_name"
                else:
                    param = "lora_path"
                raise ApiError(400, f"{param}: {e}", param=param) from e
            self.paths[name] = path

    async def unload(self, name: str) -> None:
        """Refuse the name from now on. Requests that have the adapter keep it. ApiError 404 if it
        is not loaded. ApiError 503: the engines were lost meanwhile."""
        async with self._lock:
            if name not in self.paths:
                raise ApiError(
                    404,
                    f"the lora adapter {name!r} cannot be found",
                    param="lora_name",
                    code="not_found",
                )
            clients = self._clients()
            errors = await _errors_of_running(clients, [c.unload_lora(name) for c in clients])
            if errors:
                raise errors[0]
            del self.paths[name]

    @asynccontextmanager
    async def updated(self, client: EngineClient, lost: Sequence[str]) -> AsyncIterator[None]:
        """Load what the others have on a started engine. Inside, none is loaded or unloaded.

        lost: adapters that it could not load again, which the others unload too: requests with
        such a name would fail on one engine and not on another."""
        async with self._lock:
            lost = [*lost, *await self._load_missing(client)]
            for name in [name for name in client.adapters if name not in self.paths]:
                await client.unload_lora(name)
            for name in lost:
                self.paths.pop(name, None)
                await _unload(name, self._clients())
            yield

    async def _load_missing(self, client: EngineClient) -> list[str]:
        """Load what was loaded on others meanwhile. Returns the names that it cannot load."""
        lost = []
        for name, path in self.paths.items():
            if name in client.adapters:
                continue
            try:
                await client.load_lora(name, path)
            except StentorError as e:
                if client.lost is not None:
                    raise
                log.error("adapter %s is lost: %s", name, e)
                lost.append(name)
        return lost


async def _errors_of_running(
    clients: Sequence[EngineClient], calls: Sequence[Awaitable[None]]
) -> list[StentorError]:
    """Await a call of each engine. Returns the errors of those that still run. ApiError 503 if none
    does: others, which have the names of that moment, take their place."""
    results = await asyncio.gather(*calls, return_exceptions=True)
    if all(client.lost is not None for client in clients):
        raise ApiError(
            503, "the model has been started again; try again", code="not_ready", retry_after=5
        )
    errors = []
    for client, result in zip(clients, results, strict=True):
        if client.lost is not None or result is None:
            continue
        if not isinstance(result, StentorError):
            raise result
        errors.append(result)
    return errors


async def _unload(name: str, clients: Sequence[EngineClient]) -> None:
    """Unload an adapter from the engines that have it."""
    calls = [client.unload_lora(name) for client in clients if name in client.adapters]
    await asyncio.gather(*calls, return_exceptions=True)
