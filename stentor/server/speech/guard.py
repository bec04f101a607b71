"""The guard against speech that does not end: it stops a segment that is far too long or has fallen silent."""

from __future__ import annotations

import numpy as np

from stentor.engine.stream import Chunk
from stentor.models.info import ModelInfo, SpeechRequest
from stentor.server.limits import LIMITS
from stentor.silence import guard_peak

SILENT_SECONDS = LIMITS.silent_seconds  # after which a segment is taken to have ended


class Guard:
    """Checks every frame of one segment, so the result does not depend on how the audio is cut into chunks."""

    def __init__(self, spec: ModelInfo, request: SpeechRequest) -> None:
        self.spec = spec
        given = (request.reference, *request.more_references, request.prompt)
        self._level = guard_peak(audio.recording.peak for audio in given if audio is not None)
        self.frames = self.silent = 0

    def check(self, chunk: Chunk, max_frames: int | None) -> tuple[np.ndarray, str | None]:
        """Return the samples to deliver, and why the segment ends after them (None: it continues). max_frames: so many
        are a run-on. None: no number is."""
        hop = self.spec.hop
        lacking = len(chunk.frames) * hop - len(chunk.samples)  # of the first frame
        peaks = np.abs(np.pad(chunk.samples, (lacking, 0))).reshape(-1, hop).max(axis=1, initial=0.0)
        for i, loud in enumerate((peaks > self._level).tolist()):
            self.frames += 1
            self.silent = 0 if loud else self.silent + 1
            if self.silent * hop > SILENT_SECONDS * self.spec.sample_rate:
                return chunk.samples[: (i + 1) * hop - lacking], "guard_silence"
            if self.frames == max_frames and (chunk.finish is None or i + 1 < len(peaks)):
                return chunk.samples[: (i + 1) * hop - lacking], "guard_length"
        return chunk.samples, None
