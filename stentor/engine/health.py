"""Counters and health of an engine, as its process and others read them. It imports no torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from typing import TypeVar

from stentor.engine.once import CacheCounts

Counts = TypeVar("Counts", "Stats", CacheCounts)


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


def combined(healths: Sequence[Health], before: Health | None = None) -> Health:
    """The health of several engines of one model: sums, alive and ready while one is. before:
    counters of engines that have ended."""
    counted = [*healths]
    if before is not None:
        counted.append(before)
    alive = any(h.alive for h in healths)
    error = None
    if not alive:
        error = next((h.error for h in healths), None)
    return Health(
        alive=alive,
        error=error,
        queued=sum(h.queued for h in healths),
        running=sum(h.running for h in healths),
        free_slots=sum(h.free_slots for h in healths),
        free_pages=sum(h.free_pages for h in healths),
        pages=sum(h.pages for h in healths),
        preemptions=sum(h.preemptions for h in counted),
        evictions=sum(h.evictions for h in counted),
        eager_calls=sum(h.eager_calls for h in counted),
        ready=any(h.ready for h in healths),
        stats=_sum(Stats, [h.stats for h in counted]),
        references=_sum(CacheCounts, [h.references for h in counted]),
        codec_states=_sum(CacheCounts, [h.codec_states for h in counted]),
        working=max(h.working for h in healths),
        gpu_bytes=sum(h.gpu_bytes for h in healths),
    )


def ended(health: Health, before: Health | None = None) -> Health:
    """The counters of an engine that has ended, and of those that ended before it."""
    total = combined([health], before)
    return replace(
        total,
        references=replace(total.references, entries=0, size=0),
        codec_states=replace(total.codec_states, entries=0, size=0),
    )


def _sum(kind: type[Counts], parts: Sequence[Counts]) -> Counts:
    """The sum of each field."""
    return kind(**{f.name: sum(getattr(part, f.name) for part in parts) for f in fields(kind)})
