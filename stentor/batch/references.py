"""Audio that lines name as `reference` or `prompt`: each file is read once for all its lines."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from stentor.audio import Reference
from stentor.errors import InvalidRequest
from stentor.models.info import ReferenceAudio
from stentor.once import CacheCounts, LruCache, OnceCache

KEPT_BYTES = 256 * 2**20  # of samples. A file that was dropped is read again
THREADS = 2  # that read


class References:
    """Reference audio by path. For many threads, of which several that want one file wait for one reading."""

    def __init__(self, load: Callable[[Reference], ReferenceAudio], kept_bytes: int = KEPT_BYTES) -> None:
        """load: `TTS.load_reference`."""
        kept: LruCache[ReferenceAudio] = LruCache(kept_bytes, lambda audio: audio.samples.nbytes)
        self._load = load
        self._files = OnceCache("stentor-batch-reference", THREADS, kept, lambda: None)

    def load(self, param: str, path: Path, text: str | None) -> ReferenceAudio:
        """The audio of a file and its transcript. InvalidRequest names `param` and says what is wrong with the file."""
        claim = self._files.claim(str(path), lambda: self._load(Reference(path)))
        try:
            return ReferenceAudio(claim.result().recording, text)
        except InvalidRequest as e:
            raise InvalidRequest(param, e.message) from None
        finally:
            claim.leave()

    def counts(self) -> CacheCounts:
        """`misses`: files that were read. `hits`: lines that took one that was there or being read."""
        return self._files.counts()

    def close(self) -> None:
        """End the threads."""
        self._files.close()
