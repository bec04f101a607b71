"""Reference audio as the engine takes it: decoded, checked and hashed once, and kept in a bounded cache."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import Executor
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeVar

from stentor import audio
from stentor.audio import Recording
from stentor.models.info import ModelInfo
from stentor.once import LruCache
from stentor.server.config import MIB
from stentor.server.errors import invalid
from stentor.server.limits import LIMITS
from stentor.server.voices.references import Audio, References
from stentor.server.voices.store import VoiceStore
from stentor.server.voices.voice import Voice

if TYPE_CHECKING:
    from stentor.server.model_hosts import ModelHost

T = TypeVar("T")

CACHE_BYTES, CACHE_SECONDS = LIMITS.voice_cache_mb * MIB, LIMITS.voice_cache_seconds


class Recordings:
    """Recordings by what a request names. It is used on the event loop, and works in the models' threads.

    Requests that name the same audio at once have it decoded once.
    """

    def __init__(self, references: References, voices: VoiceStore) -> None:
        self.references, self.voices = references, voices
        self.cache = LruCache[Recording](CACHE_BYTES, lambda r: r.samples.nbytes, CACHE_SECONDS)
        self.hits = self.misses = 0
        self._under_way: dict[str, _Making] = {}

    async def named(self, host: ModelHost, source: str, param: str) -> Recording:
        """Load what a data: URI, base64, a URL or a path names. ApiError 400 names `param`."""
        references, longest = self.references, host.spec.reference_seconds[1]

        async def make(data: bytes | None, digest: str) -> Recording:
            found = await references.fetched(source, param) if data is None else data

            def load() -> Recording:
                return _loaded(host.spec, references.read(source, param, longest, found), param, digest)

            return await _in(host.references, load)

        if references.changes(source):
            return await make(None, "")
        if not references.holds(source):  # a URL may name other audio by and by
            return await self._once(f"{host.name}:{param}:{source}", lambda: make(None, ""))
        data, digest = await _in(host.references, _held, references, source, param)
        return await self._once(f"{host.name}:{param}:{digest}", lambda: make(data, digest))

    async def stored(self, host: ModelHost, voice: Voice) -> Recording | None:
        """Recording of an uploaded voice. None: it has been deleted or replaced since."""

        async def make() -> Recording:
            found = await asyncio.to_thread(self.voices.audio_of, voice)
            if found is None:
                raise _Gone
            return await _in(host.references, _loaded, host.spec, found, "voice", "")

        try:
            return await self._once(f"{host.name}:voice:{voice.name}:{voice.identity}", make)
        except _Gone:
            return None

    async def _once(self, key: str, make: Callable[[], Coroutine[Any, Any, Recording]]) -> Recording:
        """Return what is kept, else what is made once for all who wait. When nobody waits any more, it is given up."""
        if (kept := self.cache.get(key)) is not None:
            self.hits += 1
            return kept
        self.misses += 1
        making = self._under_way.get(key)
        if making is None:
            making = self._under_way[key] = _Making(asyncio.create_task(make()))
        making.waiting += 1
        try:
            recording = await asyncio.shield(making.task)
        finally:
            making.waiting -= 1
            if not making.waiting and self._under_way.get(key) is making:
                del self._under_way[key]
                making.task.cancel()
        self.cache.put(key, recording)
        return recording


@dataclass(eq=False)
class _Making:
    task: asyncio.Task[Recording]
    waiting: int = 0


class _Gone(Exception):
    """The voice has been deleted or replaced."""


def _in(pool: Executor, work: Callable[..., T], *args: Any) -> Awaitable[T]:
    return asyncio.get_running_loop().run_in_executor(pool, work, *args)


def _loaded(spec: ModelInfo, found: Audio, param: str, digest: str) -> Recording:
    """Decoded audio as the engine takes it. digest: of what was decoded, where it is known. It is for a thread."""
    samples, rate = found
    shortest, longest = spec.reference_seconds
    if len(samples) < shortest * rate:
        raise invalid(param, f"is {len(samples) / rate:.4g} s long, must be {shortest:g} to {longest:g} s")
    recording = replace(audio.checked(samples, rate, param, spec.reference_seconds), source=digest)
    assert recording.digest  # computed here, where it holds up nobody
    return recording


def _held(references: References, source: str, param: str) -> tuple[bytes, str]:
    """The file that a request holds, and its digest. It is for a thread."""
    data = references.held(source, param)
    return data, hashlib.sha256(data).hexdigest()
