"""Check a scheduler between two steps."""

from __future__ import annotations

from collections import Counter

from stentor.engine.scheduling.pages import PageAllocator
from stentor.engine.scheduling.scheduler import Scheduler
from stentor.engine.scheduling.sequence import Phase


def check(scheduler: Scheduler) -> None:
    """Every slot is either free or held once, every page free or held by whom it should be.

    What is kept up with each change is what a look at all requests would find.
    """
    pages, live = scheduler.pages, scheduler.live
    check_pages(pages, [p for s in live for p in s.pages])
    frames = scheduler.tables.frames
    check_pages(frames, [p for s in live for p in s.frame_pages])
    slots = sorted([s.slot for s in live] + scheduler.free_slots)
    assert slots == list(range(len(slots))), "a slot was lost"
    assert len(scheduler.parked) <= scheduler.max_parked
    assert [s for s in live if s.phase is Phase.DRAINING] == sorted(
        scheduler.draining, key=live.index
    )
    for s in live:
        assert s.in_flight >= 0
        by_frame = [len(s.frame_pages) - len(s.frame_at) - 1] if frames.count else []
        assert s.room == min([len(s.pages) * pages.page_size - s.length, *by_frame]) or not s.pages
        assert bool(s.frame_pages) == bool(s.pages and frames.count)
        due = not s.cancelled and scheduler.audio.chunks.next_chunk(s)[0]
        assert not due or scheduler.audio.looks_at(s), "a chunk is due and nobody looks at it"
        holds = s.phase in (Phase.RUNNING, Phase.PREFILLING)
        assert holds == bool(s.pages) or (s.phase is Phase.DRAINING and s.keeps_pages), s
        if holds:
            assert s.length + s.num_scheduled - 1 <= len(s.pages) * pages.page_size
            assert not frames.count or len(s.frame_at) + s.num_scheduled <= len(s.frame_pages)
            assert s.piece.stop <= s.length + s.num_scheduled


def check_pages(pages: PageAllocator, held: list[int]) -> None:
    """`held` has each page once for each request that holds it."""
    assert Counter(held) == pages._holders, "holders were miscounted"
    free = [*pages._free, *pages._kept]
    assert sorted([*free, *pages._holders]) == list(range(pages.count)), (
        "a page was lost or is free twice"
    )
    assert {p: k for k, p in pages._page_of.items()} == pages._key_of
    assert set(pages._kept) <= set(pages._key_of)
