"""What the engine keeps of an open request, and what it tells of itself."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from stentor.engine.sequence import Sequence
from stentor.engine.stream import Stream
from stentor.models.base import Prompt
from stentor.silence import FRAME_PEAK


@dataclass
class Request:
    """A sequence with what the device and the caller need of it. A request may take several prompts in turn."""

    seq: Sequence
    prompt: Prompt
    stream: Stream
    seed: int  # of the present prompt
    frames: int = 0  # delivered, of the present prompt
    kept: list[np.ndarray] = field(default_factory=list)  # those frames, if the next prompt needs them
    heard: bool = False  # audio that is not silent has come
    closed: bool = False  # the stream has had its last event

    def silent_lead(self, samples: np.ndarray, hop: int) -> int:
        """Frames at the start of this chunk that the request wants dropped if silent, and are."""
        wanted = self.prompt.trim_silent_frames - self.frames
        if wanted <= 0 or self.heard:
            return 0
        peaks = np.abs(samples[: wanted * hop]).reshape(-1, hop).max(axis=1)
        loud = np.flatnonzero(peaks > FRAME_PEAK)
        self.heard = len(loud) > 0
        return int(loud[0]) if len(loud) else len(peaks)


@dataclass
class Stats:
    """Counters since start, for /metrics, benchmarks and tests. Written by the engine's thread only."""

    submitted: int = 0
    finished: int = 0
    cancelled: int = 0
    failed: int = 0
    steps: int = 0
    prefills: int = 0
    frames: int = 0  # whose audio has been delivered
    step_seconds: float = 0.0  # that the turns of those steps took, their prefills and audio included


@dataclass(frozen=True)
class Health:
    """A snapshot for callers."""

    alive: bool
    error: str | None
    queued: int
    running: int
    free_slots: int
    free_pages: int
    pages: int
    preemptions: int
    eager_calls: int
    stats: Stats = field(default_factory=Stats)
