"""Counters and health of an engine, as its process and others read them. It imports no torch."""

from __future__ import annotations

from dataclasses import dataclass, field

from stentor.engine.once import CacheCounts


@dataclass
class Stats:
    """Count what happened since start, for /metrics, benchmarks and tests. Written by the engine's
    thread only."""

    submitted: int = 0
    finished: int = 0
    cancelled: int = 0
    failed: int = 0
    steps: int = 0
    prefills: int = 0
    prompt_tokens: int = 0  # of prefilled requests
    cached_tokens: int = 0  # of those, in pages already
    frames: int = 0  # whose audio has been delivered
    # spent in iterations that launched a step, with their prefills and audio
    step_seconds: float = 0.0


@dataclass(frozen=True)
class Health:
    """Snapshot of an engine for callers."""

    alive: bool
    error: str | None
    queued: int
    running: int
    free_slots: int
    free_pages: int
    pages: int
    preemptions: int
    evictions: int  # pages of the prefix cache that were given to requests
    eager_calls: int
    ready: bool = True  # alive, and the last requests did not all fail
    stats: Stats = field(default_factory=Stats)
    references: CacheCounts = field(default_factory=CacheCounts)  # encoded
    # after voices. `held` is in bytes
    codec_states: CacheCounts = field(default_factory=CacheCounts)
    # seconds since the present iteration of the engine's thread began. 0: it waits for messages
    working: float = 0.0
    gpu_bytes: int = 0  # of memory that torch has reserved
