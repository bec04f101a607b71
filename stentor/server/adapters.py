"""The LoRA adapters of a model that a server holds. A model that is loaded again has them again."""

from __future__ import annotations

import asyncio
import logging
import os
import threading
import weakref
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stentor.errors import InvalidRequest, StentorError
from stentor.server.config import ServerConfig
from stentor.server.errors import ApiError
from stentor.server.lora_modules import lora_modules

if TYPE_CHECKING:
    from stentor.api import TTS

log = logging.getLogger("stentor.server")


class HostAdapters:
    """Names and folders of the adapters of one model. Changed on the event loop, and where the model is made."""

    def __init__(self, given: Mapping[str, str]) -> None:
        self.paths = dict(given)  # in the order in which they were loaded
        self._given, self._again = bool(given), dict[str, Any]()
        self._lock = asyncio.Lock()
        self._current: weakref.ref[TTS] | None = None  # the last that was made, which others may unload
        self._guard = threading.Lock()  # of the names, while it is made

    def made(self, make: Callable[..., TTS]) -> TTS:
        """The model of `make(**arguments)`, with the adapters of this moment.

        The first load has all that it is made with, or fails. A later one has the slots of the first. An adapter that
        cannot be loaded again is logged and left out.
        """
        tts = make(**self._again)
        if self._given:  # those of the start need not be there any more
            self._again = {"loras": None, **tts.lora_options}
        with self._guard:
            self._current, names = weakref.ref(tts), [n for n in self.paths if n not in tts.loras]
        for name in names:
            try:
                tts.load_lora(name, self.paths[name])
            except StentorError as e:
                log.error("adapter %s is lost: %s", name, e)
                del self.paths[name]
        return tts

    async def load(self, tts: TTS, name: str, path: str) -> None:
        """Load an adapter while requests run. ApiError 400: a name is taken, no slot is free, or a tensor is wrong.
        ApiError 503: the model was lost meanwhile."""
        async with self._lock:
            if name in self.paths:
                raise ApiError(400, f"the lora adapter {name!r} has already been loaded", param="lora_name")
            try:
                await asyncio.to_thread(tts.load_lora, name, path)
            except StentorError as e:
                param = "lora_name" if isinstance(e, InvalidRequest) else "lora_path"
                raise ApiError(400, f"{param}: {e}", param=param) from e
            with self._guard:
                self._check(tts)
                self.paths[name] = path

    async def unload(self, tts: TTS, name: str) -> None:
        """Refuse the name from now on. Requests that have the adapter keep it. ApiError 404 if it is not loaded.
        ApiError 503: the model was lost meanwhile."""
        async with self._lock:
            if name not in self.paths:
                raise ApiError(404, f"the lora adapter {name!r} cannot be found", param="lora_name", code="not_found")
            with self._guard:
                self._check(tts)
                tts.unload_lora(name)
                del self.paths[name]

    def _check(self, tts: TTS) -> None:
        """ApiError 503 if another has been made, which has the names of that moment."""
        if self._current is None or self._current() is not tts:
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
    found = Path(path).resolve() if folder is None else Path(folder, path).resolve()
    if folder is None or not found.is_relative_to(Path(folder).resolve()):
        raise ApiError(403, "lora_path: lies outside of --allowed-lora-path", param="lora_path")
    if not os.path.exists(found):  # not an error where a name is too long
        raise ApiError(404, f"lora_path: there is no adapter at {path!r}", param="lora_path", code="not_found")
    return str(found)
