"""Features of reference audio, encoded once for all who ask, in threads and on CUDA streams of their own."""

from __future__ import annotations

import logging

import numpy as np
import torch

from stentor.audio import Recording
from stentor.engine.device import BACKGROUND, Device
from stentor.engine.encoder_graphs import EncoderGraphs
from stentor.engine.once import CacheCounts, Claim, LruCache, OnceCache
from stentor.engine.resampler import Resampler
from stentor.layers.types import eager
from stentor.layers.windows import STEP
from stentor.models.base import SpeechModel

log = logging.getLogger("stentor.engine")

ENCODINGS = 2  # at a time on a CPU. On a GPU one, which graphs keep busy, so that less of it runs beside the streams

Features = dict[str, np.ndarray]


class ReferenceEncoder:
    """The family's `encode`, for any thread but the engine's.

    Nobody waits for the audio of others, and who asks for what is kept waits for nothing.
    """

    def __init__(
        self, model: SpeechModel, device: Device, kept: int, columns: int = eager.columns, require_graphs: bool = False
    ) -> None:
        """kept: features that are kept. columns: of the largest window that is launched."""
        self.model, self.device = model, device
        self.threads = threads = 1 if device.cuda else ENCODINGS
        self._resampler = Resampler(device, model.spec.reference_rate)
        self._stream = device.stream(BACKGROUND)
        self._launch = EncoderGraphs(device, self._stream, require_graphs, columns)
        self.graphs = self._launch.graphs
        self._once = OnceCache[Features]("stentor-encode", threads, LruCache(kept), device.select)

    def encode(self, audio: Recording, role: str) -> Features:
        """Features of reference audio. Waits for them."""
        return self.claim(audio, role).result()

    def claim(self, audio: Recording, role: str) -> Claim[Features]:
        """Begin to encode as soon as a thread is free, for callers that must not wait."""
        return self._once.claim(role + audio.digest, lambda: self._encode(audio, role), audio.kept)

    def counts(self) -> CacheCounts:
        return self._once.counts()

    def warm_up(self) -> None:
        """Encode noise in every thread, so that the first voice costs what later ones do: graphs are captured,
        libraries have been loaded, and memory for the longest reference belongs to the stream."""
        spec = self.model.spec
        shortest, longest = (int(s * spec.reference_rate) for s in spec.reference_seconds)
        lengths = warm_lengths(shortest, longest) if self.device.cuda else [shortest]
        noise = [Recording(_noise(n), spec.reference_rate) for n in lengths] if spec.takes_reference else []

        def encode() -> None:
            with torch.inference_mode(), self.device.current(), self._stream.active():
                self._resampler.warm_up()
            with self._launch.capturing():
                for recording in noise:
                    try:
                        self._encode(recording, "reference")
                    except torch.OutOfMemoryError:  # requests with audio of this length will fail as this does
                        seconds = len(recording.samples) / recording.rate
                        log.warning("no memory to encode %.0f s of reference audio", seconds)

        if noise:
            self._once.on_each_thread(self.threads, encode)

    def close(self) -> None:
        """End the threads, after the encodings that they are doing."""
        self._once.close()

    def _encode(self, recording: Recording, role: str) -> Features:
        with torch.inference_mode(), self.device.current(), self._stream.active():
            try:
                features = self.model.encode(self._resampler(recording), role, self._launch)
                return {name: self.device.read(value) for name, value in features.items()}
            except torch.OutOfMemoryError:
                self.device.release_cached()
                raise


def warm_lengths(shortest: int, longest: int) -> list[int]:
    """Samples of recordings, longest first, that need all shapes that recordings of any length need.

    What sees all of a recording takes it in steps. A window is at least three quarters of the next one, so lengths that
    grow by a third need each of them as their last.
    """
    grown = [shortest]
    while (more := -(-4 * grown[-1] // 3)) < longest:
        grown.append(more)
    return sorted({*range(longest, shortest, -STEP), *grown}, reverse=True)


def _noise(count: int) -> np.ndarray:
    return np.random.default_rng(0).standard_normal(count).astype(np.float32) * np.float32(0.1)
