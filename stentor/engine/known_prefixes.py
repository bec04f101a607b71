"""Keys of prompts in a voice that was used before, without hashing what they have in common with the last one."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Any

import numpy as np

from stentor.engine.once import LruCache
from stentor.engine.prefix import adapter_identity, chained, frame_digests, page_contents, prefix_keys
from stentor.models.base import Prompt

VOICES = 64  # whose last prompts are kept: 0.2 MB of 28 s at most


@dataclass(eq=False, slots=True)
class _Known:
    """What a prompt's keys are of, and the keys."""

    lora: bytes
    frames: np.ndarray
    frame_at: np.ndarray
    digests: list[bytes]  # of the frames
    contents: list[bytes]
    keys: tuple[bytes, ...]

    def same_frames(self, prompt: Prompt) -> bool:
        """Whether a prompt has these frames at these places. Most often they are what the encoder has kept."""
        same = self.frames is prompt.frames or _content(self.frames) == _content(prompt.frames)
        return same and _content(self.frame_at) == _content(prompt.frame_at)


class KnownPrefixes:
    """Keys as by `prefix.prefix_keys`. Prompts with given frames are compared with the last one in their voice, which
    takes a fraction of the time of hashing 28 s. Thread-safe. Nobody may change the arrays of a prompt."""

    def __init__(self, page_size: int) -> None:
        self.page_size = page_size
        self._last: LruCache[_Known] = LruCache(VOICES)
        self._lock = threading.Lock()

    def keys(self, prompt: Prompt) -> tuple[bytes, ...]:
        """A key for each full page of the prompt."""
        if not len(prompt.frames):
            return prefix_keys(prompt, self.page_size)
        voice = str(hash((len(prompt.frames), prompt.frames[0].tobytes(), prompt.frames[-1].tobytes())))
        with self._lock:
            last = self._last.get(voice)
        lora, digests = adapter_identity(prompt), self._digests(prompt, last)
        contents = page_contents(prompt, self.page_size, digests)
        equal = 0 if last is None or last.lora != lora else _equal_at_first(last.contents, contents)
        keys = chained(() if last is None else last.keys[:equal], contents[equal:], lora)
        with self._lock:
            self._last.put(voice, _Known(lora, prompt.frames, prompt.frame_at, digests, contents, keys))
        return keys

    def _digests(self, prompt: Prompt, last: _Known | None) -> list[bytes]:
        """As `frame_digests`. Those of the last prompt in its voice are not computed again."""
        pages = prompt.length // self.page_size
        known = last.digests[:pages] if last is not None and last.same_frames(prompt) else []
        return known if len(known) == pages else known + frame_digests(prompt, self.page_size, len(known))


def _equal_at_first(a: list[bytes], b: list[bytes]) -> int:
    """How many are equal before the first that differ."""
    pairs = zip(a, b, strict=False)
    return next((i for i, (one, other) in enumerate(pairs) if one != other), min(len(a), len(b)))


def _content(a: np.ndarray) -> tuple[tuple[int, ...], np.dtype[Any], bytes]:
    """Shape, dtype and bytes of an array."""
    return a.shape, a.dtype, a.tobytes()
