"""What holds of a scheduler between two steps."""

from __future__ import annotations

from stentor.engine.scheduler import Scheduler
from stentor.engine.sequence import Phase


def check(scheduler: Scheduler) -> None:
    """Every page and slot is either free or held once."""
    pages, live = scheduler.pages, scheduler.live
    held = [p for s in live for p in s.pages]
    assert len(held) == len(set(held)), "a page is held twice"
    assert len(held) + pages.available == pages.count, "a page was lost"
    slots = sorted([s.slot for s in live] + scheduler.free_slots)
    assert slots == list(range(len(slots))), "a slot was lost"
    assert len(scheduler.parked) <= scheduler.max_parked
    for s in live:
        assert s.in_flight >= 0
        assert (s.phase is Phase.RUNNING) == bool(s.pages), s
        if s.phase is Phase.RUNNING:
            assert s.length + s.num_scheduled - 1 <= len(s.pages) * pages.page_size
