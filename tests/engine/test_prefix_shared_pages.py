"""No page is lost, freed under a reader, or written while it is shared: with pieces, turns, failures and few pages."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from stentor.engine.scheduling.sequence import Phase, Sequence
from tests.helpers.fake_device import all_free, scheduler
from tests.helpers.invariants import check
from tests.helpers.page_contents import PageContents, Talk

SLOTS, PAGES, SIZE = 3, 18, 4


class SharedPages(RuleBasedStateMachine):
    """Requests whose prompts begin alike, on a device that knows what each page holds."""

    @initialize(budget=st.integers(1, 20), overlap=st.integers(0, 2))
    def start(self, budget: int, overlap: int) -> None:
        self.scheduler = scheduler(
            SLOTS, PAGES, SIZE, max_prefill_tokens=budget, min_cached_tokens=SIZE, reserve_tokens=0
        )
        self.device = PageContents(self.scheduler, overlap)
        self.open: list[Sequence] = []

    @rule(
        voice=st.integers(0, 1),
        adapter=st.integers(0, 2),
        shared=st.integers(1, 20),
        own=st.integers(0, 6),
        turns=st.lists(st.integers(1, 4), max_size=2),
        frames=st.integers(1, 12),
        stop=st.integers(1, 14),
    )
    def join(
        self,
        voice: int,
        shared: int,
        own: int,
        turns: list[int],
        frames: int,
        stop: int,
        adapter: int = 0,
    ) -> None:
        tokens = [("voice", voice, i) for i in range(shared)] + [
            ("own", len(self.open), i) for i in range(own)
        ]
        assert len(tokens) + sum(turns) + frames * (1 + len(turns)) <= PAGES * SIZE
        self.open.append(self.device.join(Talk(list(tokens), turns, adapter), frames, stop))

    @rule(count=st.integers(1, 8))
    def step(self, count: int) -> None:
        for _ in range(count):
            self.device.step()
            check(self.scheduler)

    @rule()
    def fail(self) -> None:
        self.device.fail_next = True

    @precondition(lambda self: self.open)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        live = [*self.scheduler.live, *self.scheduler.queue]
        if live:
            self.scheduler.cancel(data.draw(st.sampled_from(live)))

    @rule(voice=st.integers(0, 1), count=st.integers(1, 3))
    def leave_a_prefill_halfway(self, voice: int, count: int) -> None:
        """The next request with this voice finds what was launched of it, and nothing else."""
        self.join(voice, 20, 6, [], 2, 9)
        first = self.open[-1]
        self.step(count)
        if first.phase is Phase.PREFILLING:
            self.scheduler.cancel(first)
            self.join(voice, 20, 5, [], 2, 9)

    @invariant()
    def every_page_is_accounted_for(self) -> None:
        check(self.scheduler)

    def teardown(self) -> None:
        self.device.fail_next = False
        for _ in range(1500):
            if self.scheduler.idle and not self.device.in_flight:
                break
            self.device.step()
        assert all_free(self.scheduler, SLOTS)
        assert all(seq.phase is Phase.DONE for seq in self.open)


TestSharedPages = SharedPages.TestCase
TestSharedPages.settings = settings(max_examples=40, stateful_step_count=25, deadline=None)


def test_a_turn_finds_all_but_the_last_page_of_what_it_repeats() -> None:
    s = scheduler(2, 64, SIZE, max_prefill_tokens=8, min_cached_tokens=1000)
    device = PageContents(s, 0)
    device.join(Talk([("own", i) for i in range(10)], [5, 6]), 9, 100)
    device.run()
    assert [seq.length for seq in device.done] == [10, 24, 39]
    assert [seq.num_cached for seq in device.done] == [
        0,
        (10 + 8) // SIZE * SIZE,
        (24 + 8) // SIZE * SIZE,
    ]
    assert device.repeated == 16 + 32
    assert all_free(s, 2)


def test_a_turn_goes_before_the_queue_and_takes_no_other_place_while_streams_run() -> None:
    """Neither a batching window nor a prefill in flight holds it up, and the streams have a frame in the same step."""
    s = scheduler(2, 64, SIZE, batching_window=10.0)
    device = PageContents(s, 0)
    other = device.join(Talk([("other", i) for i in range(4)]), 60, 100)
    device.join(Talk([("own", i) for i in range(4)], [3]), 3, 100)
    waiting = device.join(Talk([("late", i) for i in range(4)]), 3, 100)
    while not device.done:
        device.step()
    plan = device.step()
    assert [seq.continues for seq in plan.admitted] == [True]
    assert plan.decode == [other]
    assert waiting.phase is Phase.QUEUED


def test_a_row_that_needs_pages_takes_those_that_a_turn_has_left() -> None:
    """The next prompt computes them again. Nobody is preempted for pages that no running request holds."""
    s = scheduler(2, 8, SIZE, reserve_tokens=0)
    device = PageContents(s, 0)
    ended = device.join(Talk([("own", i) for i in range(8)], [2]), 3, 100)
    running = device.join(Talk([("other", i) for i in range(8)]), 16, 100)
    s.audio.plan = lambda *_: []  # type: ignore[method-assign]  # no audio comes, so the first is not complete
    for _ in range(10):
        device.step()
    assert ended.phase is Phase.DRAINING
    assert ended.pages
    for _ in range(10):
        device.step()
    assert ended.pages == []
    assert s.preemptions == 0
    assert running.num_generated == 16
