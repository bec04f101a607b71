"""Long prompts go in pieces of a token budget, and no running stream waits for more than one budget. Plain data."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stentor.engine.scheduling.prefill import StepPlan, by_prefill
from stentor.engine.scheduling.sequence import Phase, Sequence
from tests.helpers.fake_device import FakeDevice, all_free, scheduler

BUDGET = 16


def until(d: FakeDevice, reached: Callable[[], bool]) -> None:
    for _ in range(300):
        if reached():
            return
        d.step()
    raise AssertionError("that is never reached")


def pieces(plan: StepPlan) -> list[tuple[int, range]]:
    return [(seq.id, seq.piece) for seq in plan.prefill]


def test_a_prompt_longer_than_the_budget_goes_in_pieces_that_join():
    s = scheduler(pages=64, max_prefill_tokens=BUDGET)
    d = FakeDevice(s)
    seq = d.add(0, 40, 4)
    found = [pieces(d.step()) for _ in range(3)]
    assert found == [[(0, range(16))], [(0, range(16, 32))], [(0, range(32, 40))]]
    assert (seq.phase, seq.num_generated) == (Phase.RUNNING, 1)
    d.run()
    assert all_free(s, 4)


def test_streams_have_a_frame_between_any_two_budgets():
    s = scheduler(pages=128, max_prefill_tokens=BUDGET)
    d = FakeDevice(s)
    streams = [d.add(i, 4, 200) for i in range(2)]
    for _ in range(30):
        d.step()
    late = d.add(2, 60, 4)
    found = [(pieces(plan), plan.decode) for plan in (d.step() for _ in range(7))]
    cut = [range(16), range(16, 32), range(32, 48), range(48, 60)]
    assert [p for p, _ in found] == [[(2, cut[i // 2])] if i % 2 == 0 else [] for i in range(7)]
    assert [rows for _, rows in found] == [[] if i % 2 == 0 else streams for i in range(7)]
    assert late.num_generated == 1


@pytest.mark.parametrize("overlap_steps", [0, 1])
def test_short_prompts_take_what_a_long_one_leaves_of_the_budget(overlap_steps: int):
    s = scheduler(pages=64, max_prefill_tokens=BUDGET)
    d = FakeDevice(s, overlap_steps)
    d.add(0, 20, 4)
    d.add(1, 12, 4)
    d.add(2, 4, 4)
    assert [pieces(d.step()) for _ in range(2)] == [
        [(0, range(16))],
        [(0, range(16, 20)), (1, range(12))],
    ]
    assert pieces(d.step()) == [(2, range(4))]
    d.run()
    assert all_free(s, 4)


def test_what_fits_into_one_budget_is_not_cut():
    s = scheduler(pages=64, max_prefill_tokens=BUDGET)
    d = FakeDevice(s)
    d.add(0, 10, 4)
    d.add(1, 10, 4)
    assert pieces(d.step()) == [(0, range(10))]
    d.run()


@pytest.mark.parametrize("steps", [1, 2])
@pytest.mark.parametrize("overlap_steps", [0, 1])
def test_a_prefill_that_is_cancelled_halfway_gives_everything_back(steps: int, overlap_steps: int):
    s = scheduler(pages=64, max_prefill_tokens=BUDGET)
    d = FakeDevice(s, overlap_steps)
    seq = d.add(0, 40, 4)
    for _ in range(steps):
        d.step()
    assert seq.phase is Phase.PREFILLING
    s.cancel(seq)
    d.run()
    assert seq.phase is Phase.DONE
    assert all_free(s, 4)


def test_a_prefill_that_is_put_back_is_computed_again_from_the_beginning():
    s = scheduler(pages=64, max_prefill_tokens=BUDGET)
    long, short = (Sequence(i, length, 4, 0, 0, 0.08, True) for i, length in enumerate((20, 12)))
    s.add(long, 0.0)
    s.plan(0.0)
    s.observe(long, 0, 0)
    s.add(short, 0.0)
    assert pieces(s.plan(0.1)) == [(0, range(16, 20)), (1, range(12))]
    s.undo(long)
    s.undo(short)
    assert (long.num_scheduled, short.num_scheduled) == (0, 0)
    found = []
    for _ in range(2):
        plan = s.plan(0.2)
        found.append(pieces(plan))
        for seq in plan.prefill:
            s.observe(seq, int(seq.emits), 0)
    assert found == [[(0, range(16))], [(0, range(16, 20)), (1, range(12))]]


def test_a_resumed_request_computes_prompt_and_frames_in_pieces_and_is_then_decoded():
    s = scheduler(slots=2, pages=12, reserve_tokens=4, max_prefill_tokens=5)
    d = FakeDevice(s)
    young = [d.add(i, 8, 36) for i in range(2)][1]
    until(d, lambda: s.preemptions > 0)
    made = young.num_generated
    until(d, lambda: young.phase is Phase.PREFILLING)
    seen = [young.piece]
    while young.phase is Phase.PREFILLING and len(seen) < 20:
        d.step()
        seen.append(young.piece)
    assert [i for piece in seen for i in piece] == list(range(8 + made - 1))
    assert not any(piece.start < 8 < piece.stop for piece in seen), "a piece of prompt and frames"
    assert young.num_generated == made, "the frame after the last comes from a decode step"
    d.step()
    assert young.num_generated == made + 1
    d.run()
    assert young.num_generated == 36
    assert all_free(s, 2)


def test_a_half_prefilled_request_gives_its_pages_to_an_older_one_and_begins_again():
    s = scheduler(slots=3, pages=16, reserve_tokens=0, max_prefill_tokens=2)
    d = FakeDevice(s)
    old = d.add(0, 4, 30)
    until(d, lambda: old.num_generated == 3)
    s.prefills.took(60.0)  # its client's buffer may run dry: it is decoded while this prompt waits
    late = d.add(1, 44, 4)
    d.now += s.policy.max_prefill_delay
    d.step()
    assert late.phase is Phase.PREFILLING
    late.arrival = d.now
    until(d, lambda: late.phase is Phase.PREEMPTED)
    assert late.num_generated == 0
    assert old.phase is Phase.RUNNING
    d.run()
    assert (old.num_generated, late.num_generated) == (30, 4)
    assert all_free(s, 3)


def test_pieces_of_prompts_are_launched_before_frames_that_are_replayed():
    rows = [Sequence(i, 4, 3, evals, 0, 0.08, True) for i, evals in enumerate((9, 3, 9))]
    rows[0].piece = range(4, 6)
    assert [[s.id for s in group] for group in by_prefill(rows)] == [[1], [2], [0]]


class Waits:
    """Tokens that were prefilled since each running request had its last frame, or was resumed after preemption."""

    def __init__(self) -> None:
        self.since: Counter[int] = Counter()
        self.most = 0

    def note(self, plan: StepPlan, running: list[Sequence]) -> None:
        tokens = sum(len(seq.piece) for seq in plan.prefill)
        for seq in running:
            self.since[seq.id] += tokens
            self.most = max(self.most, self.since[seq.id])
        for seq in (*plan.decode, *plan.prefill):
            self.since[seq.id] = 0


@settings(max_examples=60, deadline=None)
@given(
    data=st.data(),
    overlap_steps=st.integers(0, 2),
    budget=st.integers(1, 20),
    pages=st.integers(12, 40),
)
def test_no_row_that_can_be_decoded_waits_for_more_than_one_budget(
    data: st.DataObject, overlap_steps: int, budget: int, pages: int
):
    """Joins, cancels and preemptions at random steps, with prompts that are shared and prompts that are not."""
    s = scheduler(slots=3, pages=pages, max_prefill_tokens=budget, min_cached_tokens=4)
    d, waits = FakeDevice(s, overlap_steps), Waits()
    alive: list[Sequence] = []

    def steps(count: int) -> None:
        for _ in range(count):
            ready = s.can_step(d.now + 0.01)
            plan = d.step()
            waits.note(plan, [q for q in ready if q.phase is Phase.RUNNING])

    for id in range(data.draw(st.integers(1, 8))):
        length = data.draw(st.integers(1, pages * 2))
        limit = data.draw(st.integers(1, pages * 4 - length))
        seq = d.add(id, length, min(limit, 30), data.draw(st.integers(1, 30)))
        seq.prefix = tuple(b"%d %d" % (id % 2, page) for page in range(length // 4))
        alive.append(seq)
        steps(data.draw(st.integers(0, 6)))
        if data.draw(st.integers(0, 4)) == 0:
            victim = data.draw(st.sampled_from(alive))
            if victim.phase is not Phase.DONE:
                s.cancel(victim)
    for _ in range(3000):
        steps(not s.idle or bool(d.in_flight))
    assert waits.most <= budget
    assert all_free(s, 3)
    for seq in alive:
        assert seq.cancelled or seq.num_generated == min(seq.max_frames, d.stops[seq.id])
