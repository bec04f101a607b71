"""The rule for run-ons: when an utterance is far too long for its text, and where it is cut.

A model sometimes fails to stop. An answer that is not streamed is thrown away in that case and
generated again with the next seed (`SpokenSegment.retry`). A stream has been sent, so it is only
cut.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from stentor.audio.silence import guard_peak

if TYPE_CHECKING:
    from stentor.engine.stream import Chunk
    from stentor.models.base import Prompt
    from stentor.models.info import ModelInfo, ReferenceAudio


def runaway_frames(prompt: Prompt) -> int | None:
    """Return the frames beyond which an utterance counts as a run-on, None for no limit.

    The number grows while live text arrives. It covers one prompt, so a request of several prompts
    has none.
    """
    if prompt.continuation is None:
        return prompt.runaway_frames
    return None


@dataclass(frozen=True)
class GuardRule:
    """Settings of a guard, which always notes run-ons. cuts: end them where they begin.
    silent_seconds: end an utterance after this much silence inside it."""

    cuts: bool = False
    silent_seconds: float = math.inf


NOTES_ONLY = GuardRule()
"""No utterance is cut."""


class Guard:
    """Watches one try of an utterance, chunk by chunk.

    It counts samples and frames of the whole try, never those of a chunk, so the result does not
    depend on how the audio is cut into chunks: a codec may deliver a frame's last samples with the
    next chunk. references: those of its request.
    """

    def __init__(
        self, spec: ModelInfo, references: Sequence[ReferenceAudio], rule: GuardRule
    ) -> None:
        self.ran_on = False
        self._rule = rule
        self._frames = 0
        self._samples = 0
        self._silence = Silence(spec, references, rule.silent_seconds)
        self._hop = spec.hop

    def check(self, chunk: Chunk, runaway: int | None) -> Chunk:
        """Return the part of the next chunk that is delivered, with `finish` set if the guard ends
        the try there.

        runaway: see `runaway_frames`. An utterance of exactly that many frames ran on unless it
        stopped by itself.
        """
        frames = self._frames  # before this chunk
        samples = self._samples
        self._frames += len(chunk.frames)
        self._samples += len(chunk.samples)
        if runaway is not None:
            at_limit = self._frames == runaway and chunk.finish == "length"
            self.ran_on = self._frames > runaway or at_limit
        if not self._rule.cuts:
            return chunk

        end = self._silence.end_in(chunk.samples)
        if runaway is not None and self._frames > runaway:
            limit = max(0, runaway * self._hop - samples)
            if end is None or limit < end:
                return _cut(chunk, limit, runaway - frames, "guard_length")
        if end is not None:
            self.ran_on = False
            return _cut(
                chunk, end, math.ceil((samples + end) / self._hop) - frames, "guard_silence"
            )
        return chunk


def _cut(chunk: Chunk, samples: int, frames: int, finish: str) -> Chunk:
    frames = max(0, frames)
    return replace(
        chunk,
        samples=chunk.samples[:samples],
        frames=chunk.frames[:frames],
        attended=chunk.attended[:frames],
        finish=finish,
    )


class Silence:
    """Finds where an utterance has been silent for too long, in blocks of a frame's samples from
    its beginning on."""

    def __init__(
        self, spec: ModelInfo, references: Sequence[ReferenceAudio], seconds: float
    ) -> None:
        self._level = guard_peak(reference.recording.peak for reference in references)
        self._block = spec.hop
        self._max_samples = seconds * spec.sample_rate
        self._silent = 0  # samples at the end of all complete blocks
        self._pending = 0  # samples of the block that is not complete, with their peak
        self._peak = 0.0

    def end_in(self, samples: np.ndarray) -> int | None:
        """Return where in the next float32 samples [n] the utterance is to end, None if it goes
        on."""
        before = self._pending
        complete, self._pending = divmod(before + len(samples), self._block)
        padded = np.pad(np.abs(samples), (before, -(before + len(samples)) % self._block))
        peaks = padded.reshape(-1, self._block).max(axis=1, initial=0.0)
        if len(peaks):
            peaks[0] = max(peaks[0], self._peak)
        self._peak = float(peaks[complete]) if self._pending else 0.0
        for i in range(complete):
            if peaks[i] > self._level:
                self._silent = 0
            else:
                self._silent += self._block
            if self._silent > self._max_samples:
                return (i + 1) * self._block - before
        return None
