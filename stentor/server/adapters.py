"""The LoRA adapters of a model that a server holds. A model that is loaded again has them again."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping
from pathlib import Path

from stentor.errors import InvalidRequest, StentorError
from stentor.server.config import ServerConfig
from stentor.server.engines.client import EngineClient
from stentor.server.errors import ApiError
from stentor.server.lora_modules import lora_modules


class HostAdapters:
    """Names and folders of the adapters of one model."""

    def __init__(self, given: Mapping[str, str]) -> None:
        self.paths = dict(given)  # in the order in which they were loaded
        self._lock = asyncio.Lock()

    async def load(self, client: EngineClient, name: str, path: str) -> None:
        """Load an adapter while requests run. ApiError 400: a name is taken, no slot is free, or a tensor is wrong.
        ApiError 503: the engine was lost meanwhile."""
        async with self._lock:
            if name in self.paths:
                raise ApiError(400, f"the lora adapter {name!r} has already been loaded", param="lora_name")
            try:
                await client.load_lora(name, path)
            except StentorError as e:
                _check(client)
                param = "lora_name" if isinstance(e, InvalidRequest) else "lora_path"
                raise ApiError(400, f"{param}: {e}", param=param) from e
            self.paths[name] = path

    async def unload(self, client: EngineClient, name: str) -> None:
        """Refuse the name from now on. Requests that have the adapter keep it. ApiError 404 if it is not loaded.
        ApiError 503: the engine was lost meanwhile."""
        async with self._lock:
            if name not in self.paths:
                raise ApiError(404, f"the lora adapter {name!r} cannot be found", param="lora_name", code="not_found")
            try:
                await client.unload_lora(name)
            except StentorError:
                _check(client)
                raise
            del self.paths[name]


def _check(client: EngineClient) -> None:
    """ApiError 503 if the engine is gone. Another, which has the names of that moment, takes its place."""
    if client.lost is not None:
        raise ApiError(503, "the model has been started again; try again", code="not_ready", retry_after=5)


def allowed(config: ServerConfig, path: str) -> str:
    """The path of an adapter, if the operator allows to load it at run time: it is one of --lora-modules, or lies in
    --allowed-lora-path. ApiError 403 for others, whether they exist or not, 404 for one that does not exist, and 400
    for what is no path."""
    if "\0" in path:
        raise ApiError(400, "lora_path: holds a NUL character", param="lora_path")
    if path in {m.path for m in lora_modules(config.lora_modules)}:
        return path
    folder = config.allowed_lora_path
    found = Path(os.path.realpath(path if folder is None else Path(folder, path)))  # of a loop: a path with the loop
    if folder is None or not found.is_relative_to(os.path.realpath(folder)):
        raise ApiError(403, "lora_path: lies outside of --allowed-lora-path", param="lora_path")
    if not os.path.exists(found):  # not an error where a name is too long
        raise ApiError(404, f"lora_path: there is no adapter at {path!r}", param="lora_path", code="not_found")
    return str(found)
