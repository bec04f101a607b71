"""Caches on the event loop: reference audio as the engine takes it, decoded, checked and hashed
once, and the uploaded voices of recent requests, so that not each request looks at
the disk in a thread."""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import Executor
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeVar

from stentor import audio
from stentor.audio import Recording
from stentor.engine.once import LruCache
from stentor.models.info import ModelInfo
from stentor.server.limits import LIMITS, MIB
from stentor.server.voices.references import References
from stentor.server.voices.store import VoiceStore, normal
from stentor.server.voices.voice import Audio, Voice

if TYPE_CHECKING:
    from stentor.server.model_hosts import ModelHost

T = TypeVar("T")
Made = TypeVar("Made", bound=Recording | None)

LOOK_SECONDS = LIMITS.voice_look_seconds
KEEP_SECONDS = LIMITS.voice_keep_seconds
# what was not looked at for so long is looked at first: disks may hang
STALE_SECONDS = 4 * LIMITS.voice_look_seconds
CACHE_BYTES = LIMITS.voice_cache_mb * MIB
CACHE_SECONDS = LIMITS.voice_cache_seconds


class Recordings:
    """Recordings by what a request names. It is used on the event loop, and works in the models'
    threads.

    Requests that name the same audio at once have it decoded once.
    """

    def __init__(self, references: References, voices: VoiceStore) -> None:
        self.references = references
        self.voices = voices
        self.cache = LruCache[Recording](CACHE_BYTES, lambda r: r.samples.nbytes, CACHE_SECONDS)
        self.hits = self.misses = 0
        self._under_way: dict[str, _Making] = {}

    async def named(self, host: ModelHost, source: str, param: str) -> Recording:
        """Load what a data: URI, base64, a URL or a path names. ApiError 400 names `param`."""
        references = self.references
        longest = host.spec.reference_seconds[1]

        async def make(data: bytes | None, digest: str) -> Recording:
            if data is None:
                data_read = await references.fetched(source, param)
            else:
                data_read = data

            def load() -> Recording:
                return _loaded(
                    host.spec, references.read(source, param, longest, data_read), param, digest
                )

            return await _in(host.references, load)

        if references.changes(source):
            return await make(None, "")
        if not references.holds(source):  # a URL may name other audio by and by
            return await self._once(f"{host.name}:{param}:{source}", lambda: make(None, ""))
        data, digest = await _in(host.references, _held, references, source, param)
        return await self._once(f"{host.name}:{param}:{digest}", lambda: make(data, digest))

    async def stored(self, host: ModelHost, voice: Voice) -> Recording | None:
        """Recording of an uploaded voice. None: it has been deleted or replaced since."""

        async def make() -> Recording | None:
            audio = await asyncio.to_thread(self.voices.audio_of, voice)
            if audio is None:
                return None
            return await _in(host.references, _loaded, host.spec, audio, "voice", "")

        return await self._once(f"{host.name}:voice:{voice.name}:{voice.identity}", make)

    async def _once(
        self, key: str, make: Callable[[], Coroutine[Any, Any, Made]]
    ) -> Made | Recording:
        """Return what is kept, else what is made once for all who wait. It is cancelled once nobody
        waits for it."""
        cached = self.cache.get(key)
        if cached is not None:
            self.hits += 1
            return cached
        self.misses += 1
        making = self._under_way.get(key)
        if making is None:
            making = self._under_way[key] = _Making(asyncio.create_task(make()))
        making.waiting += 1
        try:
            recording: Made = await asyncio.shield(making.task)
        finally:
            making.waiting -= 1
            if not making.waiting and self._under_way.get(key) is making:
                del self._under_way[key]
                making.task.cancel()
        if recording is not None:
            self.cache.put(key, recording)
        return recording


@dataclass(eq=False)
class _Making:
    task: asyncio.Task[Any]
    waiting: int = 0


def _in(pool: Executor, work: Callable[..., T], *args: Any) -> Awaitable[T]:
    return asyncio.get_running_loop().run_in_executor(pool, work, *args)


def _loaded(spec: ModelInfo, found: Audio, param: str, digest: str) -> Recording:
    """Decoded audio as the engine takes it. digest: of what was decoded, where it is known. It is
    for a thread."""
    samples, rate = found
    recording = replace(audio.checked(samples, rate, param, spec.reference_seconds), source=digest)
    assert recording.digest  # computed here, where it holds up nobody
    return recording


def _held(references: References, source: str, param: str) -> tuple[bytes, str]:
    """The file that a request holds, and its digest. It is for a thread."""
    data = references.held(source, param)
    return data, hashlib.sha256(data).hexdigest()


@dataclass(eq=False)
class _Known:
    voice: Voice
    checked_at: float  # when its file was looked at
    used_at: float


class KnownVoices:
    """Voices of a store by name. It is used on the event loop.

    The file of a voice is read at its first use, and checked every `LOOK_SECONDS` from then on. So
    a voice replaced or deleted by another server stays in use for up to that long. What this server
    changes, it forgets at once.
    """

    def __init__(self, voices: VoiceStore) -> None:
        self.voices = voices
        self._known: dict[str, _Known] = {}
        self._changes = 0  # of this server
        self._looking: asyncio.Task[None] | None = None

    async def get(self, name: str) -> Voice | None:
        """The voice of this name, None if there is none."""
        key = normal(name)
        now = time.monotonic()
        entry = self._known.get(key)
        if entry is not None and now - entry.checked_at < STALE_SECONDS:
            entry.used_at = now
            return entry.voice
        changes = self._changes
        voice = await asyncio.to_thread(self.voices.get, name)
        # else it may be what the file was before
        if voice is not None and changes == self._changes:
            self._known[key] = _Known(voice, now, now)
            if self._looking is None or self._looking.done():
                self._looking = asyncio.create_task(self._look())
        return voice

    def forget(self, name: str) -> None:
        """Its file has changed."""
        self._changes += 1
        self._known.pop(normal(name), None)

    def close(self) -> None:
        """Look no more."""
        if self._looking is not None:
            self._looking.cancel()

    async def _look(self) -> None:
        """Look at the files of all that are known, until none are."""
        while self._known:
            await asyncio.sleep(LOOK_SECONDS)
            now = time.monotonic()
            for key in [k for k, v in self._known.items() if now - v.used_at > KEEP_SECONDS]:
                del self._known[key]
            before = dict(self._known)
            voices = await asyncio.to_thread(
                lambda names: {n: self.voices.get(n) for n in names}, list(before)
            )
            for key, voice in voices.items():
                if self._known.get(key) is not before[key]:  # it was forgotten meanwhile
                    continue
                if voice is None:
                    del self._known[key]
                else:
                    before[key].voice = voice
                    before[key].checked_at = now
