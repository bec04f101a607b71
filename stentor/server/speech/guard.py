"""The guard against speech that does not end: it stops a segment that is far too long or has fallen silent."""

from __future__ import annotations

import numpy as np

from stentor.engine.stream import Chunk
from stentor.models.base import ModelSpec, Prompt
from stentor.retry import runaway_frames
from stentor.server.limits import LIMITS
from stentor.silence import GUARD_PEAK

SILENT_SECONDS = LIMITS.silent_seconds  # after which a segment is taken to have ended


class Guard:
    """Checks every frame of one segment, so the result does not depend on how the audio is cut into chunks."""

    def __init__(self, spec: ModelSpec, prompt: Prompt) -> None:
        self.spec, self.prompt = spec, prompt
        self.frames = self.silent = 0

    @property
    def max_frames(self) -> int | None:
        """Frames that are too many. None: no number is."""
        return runaway_frames(self.prompt)

    def check(self, chunk: Chunk) -> tuple[np.ndarray, str | None]:
        """The samples to deliver, and why the segment ends after them (None: it continues)."""
        hop = self.spec.hop
        peaks = np.abs(chunk.samples).reshape(-1, hop).max(axis=1, initial=0.0)
        for i, loud in enumerate((peaks > GUARD_PEAK).tolist()):
            self.frames += 1
            self.silent = 0 if loud else self.silent + 1
            if self.silent * hop > SILENT_SECONDS * self.spec.sample_rate:
                return chunk.samples[: (i + 1) * hop], "guard_silence"
            if self.frames == self.max_frames and (chunk.finish is None or i + 1 < len(peaks)):
                return chunk.samples[: (i + 1) * hop], "guard_length"
        return chunk.samples, None
