"""Uploaded voices that requests have asked for lately, so that not each request looks at the disk in a thread."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass

from stentor.server.limits import LIMITS
from stentor.server.voices.store import VoiceStore, normal
from stentor.server.voices.voice import Voice

LOOK_SECONDS, KEEP_SECONDS = LIMITS.voice_look_seconds, LIMITS.voice_keep_seconds
STALE_SECONDS = 4 * LIMITS.voice_look_seconds  # what was not looked at for so long is looked at first: disks may hang


@dataclass(eq=False)
class _Known:
    voice: Voice
    seen: float  # when its file was looked at
    asked: float


class KnownVoices:
    """Voices of a store by name. It is used on the event loop.

    The file of a voice is looked at when it is first asked for, and every `LOOK_SECONDS` from then on. So a voice that
    another server replaces or deletes is heard for so long. What this server changes, it forgets at once.
    """

    def __init__(self, voices: VoiceStore) -> None:
        self.voices = voices
        self._known: dict[str, _Known] = {}
        self._changes = 0  # of this server
        self._looking: asyncio.Task[None] | None = None

    async def get(self, name: str) -> Voice | None:
        """The voice of this name, None if there is none."""
        key, now = normal(name), time.monotonic()
        known = self._known.get(key)
        if known is not None and now - known.seen < STALE_SECONDS:
            known.asked = now
            return known.voice
        changes = self._changes
        voice = await asyncio.to_thread(self.voices.get, name)
        if voice is not None and changes == self._changes:  # else it may be what the file was before
            self._known[key] = _Known(voice, now, now)
            self._look_from_now_on()
        return voice

    def forget(self, name: str) -> None:
        """Its file has changed."""
        self._changes += 1
        self._known.pop(normal(name), None)

    def close(self) -> None:
        """Look no more."""
        if self._looking is not None:
            self._looking.cancel()

    def _look_from_now_on(self) -> None:
        if self._looking is None or self._looking.done():
            self._looking = asyncio.create_task(self._look())

    async def _look(self) -> None:
        """Look at the files of all that are known, until none are."""
        while self._known:
            await asyncio.sleep(LOOK_SECONDS)
            now = time.monotonic()
            for key in [k for k, v in self._known.items() if now - v.asked > KEEP_SECONDS]:
                del self._known[key]
            before = dict(self._known)
            found = await asyncio.to_thread(lambda names: {n: self.voices.get(n) for n in names}, list(before))
            for key, voice in found.items():
                if self._known.get(key) is not before[key]:  # it was forgotten meanwhile
                    continue
                if voice is None:
                    del self._known[key]
                else:
                    before[key].voice, before[key].seen = voice, now
