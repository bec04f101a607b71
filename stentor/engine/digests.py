"""Digests of arrays that come again as the very same objects, such as a voice's frames, which the encoder keeps."""

from __future__ import annotations

import threading

import numpy as np

from stentor.audio import digest
from stentor.engine.once import LruCache


class Digests:
    """`audio.digest`, computed once for an array while it is among the last `kept`. Nobody may change such an array.
    Thread-safe."""

    def __init__(self, kept: int) -> None:
        self._kept: LruCache[tuple[np.ndarray, str]] = LruCache(kept)
        self._lock = threading.Lock()

    def of(self, array: np.ndarray) -> str:
        """The key of an array."""
        name = str(id(array))  # of no other array while this one is kept
        with self._lock:
            found = self._kept.get(name)
        if found is None:
            found = array, digest(array)
            with self._lock:
                self._kept.put(name, found)
        return found[1]
