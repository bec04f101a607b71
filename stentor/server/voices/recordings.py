"""Reference audio as the engine takes it: decoded, checked and hashed once, and kept in a bounded cache."""

from __future__ import annotations

import asyncio
import hashlib
import itertools
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import Executor
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeVar

from stentor import audio
from stentor.audio import Recording
from stentor.models.base import ModelSpec
from stentor.server.config import MIB
from stentor.server.errors import ApiError
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
        self.cache = RecordingCache(CACHE_BYTES, CACHE_SECONDS)
        self._under_way: dict[str, _Making] = {}

    async def named(self, host: ModelHost, source: str, param: str) -> Recording:
        """What a data: URI, base64, a URL or a path names. ApiError 400 names `param`."""
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
        data, digest = await _in(host.pool, _held, references, source, param)
        return await self._once(f"{host.name}:{param}:{digest}", lambda: make(data, digest))

    async def stored(self, host: ModelHost, voice: Voice) -> Recording | None:
        """That of an uploaded voice. None: it has been deleted or replaced since."""

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
        """What is kept, or else what is made for all who wait. When nobody waits any more, it is given up."""
        if (kept := self.cache.get(key)) is not None:
            return kept
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


def _loaded(spec: ModelSpec, found: Audio, param: str, digest: str) -> Recording:
    """Decoded audio as the engine takes it. digest: of what was decoded, where it is known. It is for a thread."""
    samples, rate = found
    shortest, longest = spec.reference_seconds
    if len(samples) < shortest * rate:
        raise ApiError(
            400, f"{param}: is {len(samples) / rate:.4g} s long, must be {shortest:g} to {longest:g} s", param=param
        )
    recording = replace(audio.checked(samples, rate, param, spec.reference_seconds), source=digest)
    assert recording.digest  # computed here, where it holds up nobody
    return recording


def _held(references: References, source: str, param: str) -> tuple[bytes, str]:
    """The file that a request holds, and its digest. It is for a thread."""
    data = references.held(source, param)
    return data, hashlib.sha256(data).hexdigest()


class RecordingCache:
    """Recordings by key, at most `max_bytes` of samples. The least recently used goes first. None is returned after
    `seconds`, and what has not been used for so long goes with the next `put`. It is used on the event loop only."""

    def __init__(self, max_bytes: int, seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self.max_bytes, self.seconds, self._clock = max_bytes, seconds, clock
        self.bytes = self.hits = self.misses = 0
        self._kept: OrderedDict[str, tuple[float, Recording]] = OrderedDict()

    def get(self, key: str) -> Recording | None:
        found = self._kept.get(key)
        if found is None or self._expired(found[0]):
            self.drop(key)
            self.misses += 1
            return None
        self.hits += 1
        self._kept.move_to_end(key)
        return found[1]

    def put(self, key: str, recording: Recording) -> None:
        size = recording.samples.nbytes
        if size > self.max_bytes // 4:
            return
        self.drop(key)
        self._kept[key] = (self._clock(), recording)
        self.bytes += size
        while self.bytes > self.max_bytes or self._first_expired():
            self.drop(next(iter(self._kept)))

    def _first_expired(self) -> bool:
        return any(self._expired(put) for put, _ in itertools.islice(self._kept.values(), 1))

    def _expired(self, put: float) -> bool:
        return self._clock() - put > self.seconds

    def drop(self, key: str) -> None:
        old = self._kept.pop(key, None)
        if old is not None:
            self.bytes -= old[1].samples.nbytes

    def __len__(self) -> int:
        return len(self._kept)
