"""Features of reference audio, cached by content, for any thread."""

from __future__ import annotations

import hashlib
import threading
from collections import OrderedDict
from typing import Generic, TypeVar

import numpy as np
import torch

from stentor.engine.device import Device
from stentor.models.base import SpeechModel

T = TypeVar("T")

VOICES_KEPT = 64  # values that a cache holds


class ReferenceEncoder:
    """The family's `encode` behind a cache. Unlike the rest of the engine it runs in its callers' threads."""

    def __init__(self, model: SpeechModel, device: Device) -> None:
        self.model, self.device = model, device
        self._features = LruCache[dict[str, np.ndarray]]()
        self._lock = threading.Lock()  # one encoding at a time

    def encode(self, samples: np.ndarray, role: str) -> dict[str, np.ndarray]:
        """Features of reference audio, mono float32 [n] at the family's `reference_rate`. Waits for the device."""
        key = digest(samples) + role
        with self._lock:
            features = self._features.get(key)
            if features is None:
                with torch.inference_mode():
                    wav = torch.from_numpy(samples).to(self.device.torch)
                    features = {n: self.device.read(t) for n, t in self.model.encode(wav, role).items()}
                self._features.put(key, features)
        return features


class LruCache(Generic[T]):
    """The VOICES_KEPT values used last, by key."""

    def __init__(self) -> None:
        self._items: OrderedDict[str, T] = OrderedDict()

    def get(self, key: str) -> T | None:
        if key in self._items:
            self._items.move_to_end(key)
        return self._items.get(key)

    def put(self, key: str, value: T) -> None:
        self._items[key] = value
        if len(self._items) > VOICES_KEPT:
            self._items.popitem(last=False)


def digest(a: np.ndarray) -> str:
    """A key for an array's content, shape and dtype."""
    return hashlib.sha256(np.ascontiguousarray(a).tobytes()).hexdigest() + str((a.shape, a.dtype))
