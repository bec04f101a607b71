"""Features of reference audio, cached by content, for any thread."""

from __future__ import annotations

import hashlib
import threading
from collections import OrderedDict
from concurrent.futures import Future
from typing import Generic, TypeVar

import numpy as np
import torch

from stentor.engine.device import Device
from stentor.models.base import SpeechModel

T = TypeVar("T")

ENCODINGS = 2  # at a time: each takes memory on the device beside the engine's

Features = dict[str, np.ndarray]


class NotEncoded(Exception):
    """The features of this audio are not in the cache."""


class ReferenceEncoder:
    """The family's `encode` with a cache. Unlike the rest of the engine it runs in its callers' threads.

    Audio that several callers ask for at once is encoded once. No other caller waits for it.
    """

    def __init__(self, model: SpeechModel, device: Device, kept: int) -> None:
        self.model, self.device = model, device
        self._features = LruCache[Features](kept)
        self._running: dict[str, Future[Features]] = {}
        self._lock = threading.Lock()  # guards both, and is never held while audio is encoded
        self._free = threading.Semaphore(ENCODINGS)

    def encode(self, samples: np.ndarray, role: str) -> Features:
        """Features of reference audio, mono float32 [n] at the family's `reference_rate`. Waits for the device.

        All who wait for the same audio get the error if it fails. The next call tries again.
        """
        key = digest(samples) + role
        with self._lock:
            features, encoding = self._features.get(key), self._running.get(key)
            first = features is None and encoding is None
            if first:
                self._running[key] = encoding = Future()
        if features is not None:
            return features
        assert encoding is not None
        if first:
            self._run(key, encoding, samples, role)
        return encoding.result()

    def cached(self, samples: np.ndarray, role: str) -> Features:
        """Features that are in the cache. Otherwise it raises NotEncoded, and does not wait."""
        key = digest(samples) + role
        with self._lock:
            features = self._features.get(key)
        if features is None:
            raise NotEncoded
        return features

    def _run(self, key: str, encoding: Future[Features], samples: np.ndarray, role: str) -> None:
        """Encode for all who wait."""
        try:
            with self._free, torch.inference_mode(), self.device.current():
                wav = torch.from_numpy(samples).to(self.device.torch)
                features = {n: self.device.read(t) for n, t in self.model.encode(wav, role).items()}
        except BaseException as e:
            with self._lock:
                del self._running[key]
            encoding.set_exception(e)
            return
        with self._lock:
            self._features.put(key, features)
            del self._running[key]
        encoding.set_result(features)


class LruCache(Generic[T]):
    """The values used last, by key, at most `most`."""

    def __init__(self, most: int) -> None:
        self.most = most
        self._items: OrderedDict[str, T] = OrderedDict()

    def get(self, key: str) -> T | None:
        if key in self._items:
            self._items.move_to_end(key)
        return self._items.get(key)

    def put(self, key: str, value: T) -> None:
        self._items[key] = value
        if len(self._items) > self.most:
            self._items.popitem(last=False)


def digest(a: np.ndarray) -> str:
    """A key for an array's content, shape and dtype."""
    return hashlib.sha256(np.ascontiguousarray(a).tobytes()).hexdigest() + str((a.shape, a.dtype))
