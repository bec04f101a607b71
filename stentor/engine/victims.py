"""Who gives way when pages or slots run out. Pure policy on plain data. It imports no torch."""

from __future__ import annotations

from stentor.engine.sequence import Phase, Sequence
from stentor.engine.step_plan import StepPlan


def pick_victim(live: list[Sequence], plan: StepPlan, now: float) -> Sequence:
    """The request to preempt: one that waits for text or its reader, else the one with the most audio buffered.

    Of equal ones it is the youngest. It is never the oldest request that could go on, so that something always
    finishes, nor one that this very plan prefills. live: oldest first.
    """
    named = {id(s) for s in plan.prefill}
    holders = [s for s in live if s.phase in (Phase.RUNNING, Phase.PREFILLING) and id(s) not in named]
    if len(holders) == 1:
        return holders[0]
    if waiting := [s for s in holders if s.unread or s.num_scheduled >= s.max_schedulable]:
        return waiting[-1]
    return max(holders[1:], key=lambda s: (s.lead(now), s.arrival, s.id))


def longest_idle(live: list[Sequence]) -> Sequence | None:
    """The request that has waited for text or its reader for longest. None if every one has work."""
    return min((s for s in live if s.idle), key=lambda s: (s.last_audio, s.id), default=None)


def stuck(live: list[Sequence], parked: list[Sequence], max_parked: int) -> bool:
    """Whether no row can go on or give way. Readers may wait for one that has not begun, so unread rows must go on."""
    return len(parked) >= max_parked and all(s.idle for s in live) and not any(s.may_go_on for s in parked)
