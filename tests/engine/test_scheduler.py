"""Admission, prefill, decode and preemption, on plain data."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stentor.engine.scheduling.prefill import by_num_evals
from stentor.engine.scheduling.scheduler import Scheduler
from stentor.engine.scheduling.sequence import Phase, Place, Sequence
from tests.helpers.fake_device import FakeDevice, all_free, scheduler
from tests.helpers.invariants import check


def test_a_request_waits_in_line_until_a_slot_is_free():
    s = scheduler(slots=1)
    d = FakeDevice(s)
    first, second = d.add(0, 4, 3), d.add(1, 4, 3)
    d.step()
    assert (first.phase, second.phase) == (Phase.RUNNING, Phase.QUEUED)
    d.run()
    assert [q.id for q in d.done] == [0, 1]
    assert all_free(s, 1)


def test_what_follows_a_part_that_has_ended_goes_before_what_waits_in_order():
    s = scheduler(slots=1)
    d = FakeDevice(s)
    running = d.add(0, 4, 3)
    d.step()
    waiting = d.add(1, 4, 3)
    nexts = [Sequence(i, 4, 3, 0, 0, 0.08, True, Place.NEXT) for i in (2, 3)]
    for seq in nexts:
        d.stops[seq.id] = 4
        s.add(seq, d.now)
    admitted = Sequence(4, 4, 3, 0, 0, 0.08, True, Place.ADMITTED)
    d.stops[4] = 4
    s.add(admitted, d.now)
    assert list(s.queue) == [*nexts, waiting, admitted]
    d.run()
    assert [q.id for q in d.done] == [0, 2, 3, 1, 4]
    assert running.phase is Phase.DONE
    assert all_free(s, 1)


@pytest.mark.parametrize("overlap_steps", [0, 1])
def test_a_live_request_waits_for_text_and_its_audio_comes_as_far_as_its_text(overlap_steps: int):
    s = scheduler(pages=32)
    d = FakeDevice(s, overlap_steps)
    live, other = d.add(0, 4, 20), d.add(1, 4, 20)
    live.max_schedulable = 6
    for _ in range(40):
        d.step()
    assert (live.num_generated, live.phase, other.phase) == (6, Phase.RUNNING, Phase.DONE)
    assert d.chunks[0] == [
        (0, 1),
        (1, 2),
        (3, 2),
        (5, 1),
    ]  # the last two are less than the ramp asks for
    assert s.inert
    live.max_schedulable = 20
    assert not s.inert
    d.run()
    assert live.num_generated == live.audio_delivered == 20
    assert all_free(s, 4)


def test_frames_that_are_heard_take_no_text_where_a_request_says_so():
    s = scheduler(pages=32)
    d = FakeDevice(s)
    live = d.add(0, 4, 20)
    live.max_schedulable, live.emitted_is_free = 3, True
    for _ in range(40):
        d.step()
    assert (live.num_generated, live.phase) == (20, Phase.DONE)


def test_a_request_without_text_gives_way_even_if_it_is_the_oldest():
    s = scheduler(slots=2, pages=12, reserve_tokens=4)
    d = FakeDevice(s)
    live, young = d.add(0, 8, 36), d.add(1, 8, 36)
    live.max_schedulable = 10
    for _ in range(60):
        d.step()
    assert (live.phase, young.phase) == (Phase.PREEMPTED, Phase.DONE)
    live.max_schedulable = 36
    d.run()
    assert live.num_generated == 36
    assert all_free(s, 2)


def test_a_preempted_request_does_not_wait_for_the_text_of_others():
    """The host may hold no row, so the idle request keeps its slot and gives only its pages."""
    s = scheduler(slots=2, pages=12, reserve_tokens=4, max_parked=0)
    d = FakeDevice(s)
    idle, young = d.add(0, 8, 36), d.add(1, 8, 36)
    idle.max_schedulable = 25
    for _ in range(200):
        d.step()
    assert (idle.phase, idle.num_generated, young.phase) == (Phase.PREEMPTED, 25, Phase.DONE)
    idle.max_schedulable = 36
    d.run()
    assert idle.num_generated == 36
    assert all_free(s, 2)


def test_a_queued_request_that_finds_a_slot_does_not_wait_for_pages_of_idle_ones():
    s = scheduler(slots=4, pages=12, reserve_tokens=4, max_parked=0)
    d = FakeDevice(s)
    idle = d.add(0, 8, 36)
    idle.max_schedulable = 25
    for _ in range(60):
        d.step()
    queued = d.add(1, 20, 8)
    for _ in range(60):
        d.step()
    assert (idle.phase, queued.phase) == (Phase.PREEMPTED, Phase.DONE)
    idle.max_schedulable = 36
    d.run()
    assert all_free(s, 4)


def test_a_preempted_request_without_text_is_not_resumed_and_holds_nobody_up():
    s = scheduler(slots=2, pages=12, reserve_tokens=4)
    d = FakeDevice(s)
    d.add(0, 8, 36)
    live = d.add(1, 8, 36)
    live.max_schedulable = 10
    for _ in range(60):
        d.step()
    assert (live.phase, live.num_generated) == (Phase.PREEMPTED, 10)
    assert len(d.done) == 1
    live.max_schedulable = 36
    d.run()
    assert live.num_generated == 36
    assert all_free(s, 2)


def test_pages_are_allocated_as_a_request_runs_and_freed_when_it_ends():
    s = scheduler(pages=32)
    d = FakeDevice(s)
    seq = d.add(0, 4, 60)
    d.step()
    before = len(seq.pages)
    for _ in range(20):
        d.step()
    assert len(seq.pages) > before
    d.run()
    assert all_free(s, 4)


def test_no_more_pages_are_held_than_the_limit_needs():
    s = scheduler(pages=32, reserve_tokens=64)
    d = FakeDevice(s)
    seq = d.add(0, 4, 5)
    d.step()
    assert len(seq.pages) == s.pages.pages_for(4 + 5)


def test_when_pages_run_out_the_youngest_waits_and_later_resumes():
    s = scheduler(slots=2, pages=12, reserve_tokens=4)
    d = FakeDevice(s)
    old, young = d.add(0, 8, 36), d.add(1, 8, 36)
    while not s.preemptions:
        d.step()
    assert young.phase is Phase.PREEMPTED
    assert young.pages == []
    assert young.slot >= 0
    assert old.phase is Phase.RUNNING
    d.run()
    assert (old.num_generated, young.num_generated) == (36, 36)
    assert all_free(s, 2)


def test_nothing_new_is_admitted_while_a_preempted_request_waits_for_pages():
    s = scheduler(slots=3, pages=12, reserve_tokens=4)
    d = FakeDevice(s)
    d.add(0, 8, 36)
    young = d.add(1, 8, 36)
    while not s.preemptions:
        d.step()
    late = d.add(2, 1, 1)
    d.step()
    assert young.phase is Phase.PREEMPTED
    assert late.phase is Phase.QUEUED
    d.run()
    assert late.phase is Phase.DONE


@pytest.mark.parametrize("steps", [0, 1, 2, 5])
def test_a_cancelled_request_gives_everything_back(steps: int):
    s = scheduler()
    d = FakeDevice(s, overlap_steps=1)
    seq, other = d.add(0, 8, 20), d.add(1, 8, 20)
    for _ in range(steps):
        d.step()
    s.cancel(seq)
    d.run()
    assert seq.phase is Phase.DONE
    assert other.num_generated == 20
    assert all_free(s, 4)


def test_a_preempted_request_can_be_cancelled():
    s = scheduler(slots=2, pages=12, reserve_tokens=4)
    d = FakeDevice(s, overlap_steps=1)
    d.add(0, 8, 36)
    young = d.add(1, 8, 36)
    while young.phase is not Phase.PREEMPTED:
        d.step()
    s.cancel(young)
    d.run()
    assert young.phase is Phase.DONE
    assert all_free(s, 2)


def test_a_stream_with_enough_audio_buffered_pauses():
    s = scheduler(max_ahead=0.4)
    d = FakeDevice(s)
    seq = d.add(0, 4, 60)
    for _ in range(20):
        d.step()
    assert seq.num_scheduled < 20
    d.run()
    assert seq.num_generated == 60


def test_prefill_keeps_to_its_token_budget():
    s = scheduler(pages=64, max_prefill_tokens=16)
    d = FakeDevice(s)
    for id in range(3):
        d.add(id, 10, 4)
    assert len(d.step().admitted) == 1
    d.run()


def test_a_prompt_longer_than_the_budget_is_prefilled_alone():
    s = scheduler(pages=64, max_prefill_tokens=16)
    d = FakeDevice(s)
    d.add(0, 40, 4)
    d.add(1, 2, 4)
    assert [q.id for q in d.step().admitted] == [0]
    d.run()


def test_requests_whose_prefill_is_put_back_are_resumed_together():
    s = scheduler()
    a, b = (Sequence(i, 4, 4, 0, 0, 0.08, True) for i in range(2))
    s.add(a, 0.0)
    s.add(b, 0.0)
    plan = s.plan(1.0)
    assert plan.admitted == [a, b]
    s.undo(a)
    s.undo(b)
    check(s)
    assert s.plan(1.0).resumed == [a, b]


@settings(max_examples=60, deadline=None)
@given(
    data=st.data(),
    overlap_steps=st.integers(0, 2),
    slots=st.integers(1, 4),
    pages=st.integers(8, 40),
)
def test_invariants_hold_under_any_schedule(
    data: st.DataObject, overlap_steps: int, slots: int, pages: int
):
    """Up to 200 requests over the examples: joins, cancels and failures at random steps; `check` runs every step."""
    s = scheduler(slots=slots, pages=pages, reserve_tokens=data.draw(st.integers(0, 16)))
    d = FakeDevice(s, overlap_steps)
    alive: list[Sequence] = []
    for id in range(data.draw(st.integers(1, 12))):
        length = data.draw(st.integers(1, 12))
        limit = data.draw(st.integers(1, pages * 4 - length))
        alive.append(
            d.add(
                id, length, min(limit, 40), data.draw(st.integers(1, 40)), data.draw(st.booleans())
            )
        )
        for _ in range(data.draw(st.integers(0, 4))):
            d.step()
        if data.draw(st.integers(0, 4)) == 0:
            victim = data.draw(st.sampled_from(alive))
            if victim.phase is not Phase.DONE:
                s.cancel(victim)
    d.run()
    assert all_free(s, slots)
    for seq in alive:
        assert seq.phase is Phase.DONE
        if not seq.cancelled:
            assert seq.num_generated == min(seq.max_frames, d.stops[seq.id])
            assert sum(n for _, n in d.chunks[seq.id]) == seq.num_generated


def running_streams(s: Scheduler, d: FakeDevice, count: int) -> list[Sequence]:
    """Streams that run and whose clients have plenty buffered."""
    streams = [d.add(100 + i, 4, 400) for i in range(count)]
    for _ in range(30):
        d.step()
    assert all(q.phase is Phase.RUNNING and q.lead(d.now) > 0.5 for q in streams)
    return streams


def test_new_requests_are_admitted_together_while_most_slots_run():
    s = scheduler(slots=8, pages=2048, batching_window=0.035)
    d = FakeDevice(s)
    running = running_streams(s, d, 5)
    early = d.add(0, 4, 4)
    plans = [d.step(), d.step()]
    late = d.add(1, 4, 4)
    plans.append(d.step())
    assert [p.admitted for p in plans] == [[], [], []]
    assert all(p.decode == running for p in plans)
    together = d.step()
    assert together.admitted == [early, late]
    assert together.decode == []
    assert d.step().decode == [*running, early, late]


def test_a_request_waits_for_no_other_while_few_run():
    s = scheduler(slots=8, pages=2048)
    d = FakeDevice(s)
    running_streams(s, d, 3)
    late = d.add(0, 4, 4)
    assert d.step().admitted == [late]


def test_a_request_that_arrives_during_a_prefill_is_prefilled_behind_it():
    s = scheduler(slots=8, pages=2048)
    d = FakeDevice(s, overlap_steps=1)
    d.add(0, 4, 9)
    d.step()
    late = d.add(1, 4, 9)
    plan = d.step()
    assert plan.admitted == [late]
    assert not plan.decode


def test_a_full_prefill_is_given_to_the_device_before_the_last_has_ended():
    s = scheduler(slots=8, pages=2048, max_prefill_tokens=8)
    d = FakeDevice(s, overlap_steps=1)
    for id in range(5):
        d.add(id, 4, 9)
    assert [[q.id for q in d.step().admitted] for _ in range(2)] == [[0, 1], [2, 3]]


@pytest.mark.parametrize("seconds", [0.0, 0.1])
def test_a_stream_that_would_underrun_during_a_prefill_comes_first(seconds: float):
    """One frame of 80 ms outlasts no prefill of 100 ms; three do."""
    s = scheduler(slots=8, pages=2048)
    d = FakeDevice(s)
    d.add(0, 4, 40)
    d.step()
    s.prefills.took(seconds)
    late = d.add(1, 4, 40)
    steps = 1
    while late not in d.step().admitted:
        steps += 1
    assert steps == (1 if not seconds else 3)


def test_no_request_waits_longer_than_the_max_prefill_delay_for_streams_that_would_underrun():
    s = scheduler(slots=8, pages=2048, max_prefill_delay=0.1)
    d = FakeDevice(s)
    d.add(0, 4, 400)
    d.step()
    s.prefills.took(60.0)
    late = d.add(1, 4, 40)
    waited = next(step for step in range(1, 100) if late in d.step().admitted)
    assert waited in (10, 11)


def without_text(d: FakeDevice, count: int) -> list[Sequence]:
    """Requests that run and have text for 4 of their 20 frames, which are made."""
    rows = [d.add(i, 4, 20) for i in range(count)]
    for seq in rows:
        seq.max_schedulable = 4
    for _ in range(20):
        d.step()
    return rows


def test_rows_without_text_give_their_slots_to_those_who_have_work_and_get_others_when_text_comes():
    s = scheduler(slots=2, pages=32)
    d = FakeDevice(s)
    idle = without_text(d, 2)
    assert [q.phase for q in idle] == [Phase.RUNNING] * 2  # nobody wants their slots
    others = [d.add(i, 4, 12) for i in (2, 3, 4)]
    for _ in range(8):
        d.step()
    assert [q.phase for q in idle] == [Phase.PARKED] * 2
    assert {q.phase for q in others[:2]} == {Phase.RUNNING}
    idle[1].max_schedulable = 20
    for _ in range(12):
        d.step()
    assert idle[1].num_generated > 4  # it went before the one that had not begun
    for _ in range(60):
        d.step()
    assert [q.phase for q in others] == [Phase.DONE] * 3
    assert idle[1].num_generated == idle[1].audio_delivered == 20
    assert s.inert
    assert not s.idle
    assert s.cancel(idle[0])
    assert idle[0].phase is Phase.DONE
    assert s.idle
    assert all_free(s, 2)


def test_no_more_rows_without_text_leave_their_slots_than_the_host_may_hold():
    s = scheduler(slots=3, pages=32, max_parked=1)
    d = FakeDevice(s)
    idle = without_text(d, 3)
    other = d.add(3, 4, 12)
    waiting = d.add(4, 4, 12)
    d.step()
    assert [q.phase for q in idle].count(Phase.PARKED) == 1
    assert other.phase is Phase.RUNNING
    assert waiting.phase is Phase.QUEUED
    for _ in range(40):
        d.step()
    assert (other.phase, waiting.phase) == (Phase.DONE, Phase.DONE)
    third = d.add(5, 4, 400)
    for _ in range(5):
        d.step()
    parked = next(q for q in idle if q.phase is Phase.PARKED)
    parked.max_schedulable = 20
    d.step()
    assert parked.phase is Phase.PREFILLING  # one that is idle has taken its place on the host
    assert third.phase is Phase.RUNNING
    assert len(s.parked) == 1


def test_pages_of_rows_without_text_go_to_those_who_have_work():
    s = scheduler(slots=3, pages=8, reserve_tokens=4)
    d = FakeDevice(s)
    live = d.add(0, 16, 12)
    live.max_schedulable = 4
    for _ in range(20):
        d.step()
    other = d.add(1, 16, 12)
    for _ in range(40):
        d.step()
    assert (live.phase, other.phase) == (Phase.PREEMPTED, Phase.DONE)  # there was a slot
    live.max_schedulable = 12
    d.run()
    assert live.num_generated == 12
    assert all_free(s, 3)


def test_no_row_is_parked_for_one_that_finds_no_pages():
    """The host would hold both, and one more than it may."""
    s = scheduler(slots=2, pages=14, reserve_tokens=4, max_parked=1)
    d = FakeDevice(s)
    parked = d.add(0, 8, 44)
    parked.max_schedulable = 32
    for _ in range(60):
        d.step()
    idle = d.add(1, 4, 8)
    idle.max_schedulable = 2
    for _ in range(5):
        d.step()
    busy = d.add(2, 8, 40)
    for _ in range(18):
        d.step()
    assert (parked.phase, idle.phase, busy.phase) == (Phase.PARKED, Phase.RUNNING, Phase.RUNNING)
    parked.max_schedulable = 44  # it needs more pages than `busy` leaves
    d.step()
    assert (parked.phase, len(s.parked)) == (Phase.PARKED, 1)
    idle.max_schedulable = 8
    d.run()
    assert parked.num_generated == 44
    assert all_free(s, 2)


def test_a_long_prefill_raises_the_margin_of_streams_for_one_more_prefill():
    s = scheduler()
    margins = []
    for seconds in (0.02, 0.5, 0.02, 0.02):
        s.prefills.took(seconds)
        margins.append(s.prefills.seconds)
    assert margins == [0.02, 0.5, 0.5, 0.02]


def test_a_slot_is_free_before_its_request_counts_as_gone():
    """Other threads read both, and may do so between any two statements."""

    class Slots(list):
        def append(self, slot: int) -> None:
            running.append(len(s.live))
            super().append(slot)

    running: list[int] = []
    s = scheduler(slots=2)
    s.free_slots = Slots(s.free_slots)
    d = FakeDevice(s)
    for i in range(2):
        d.add(i, 4, 3)
    d.run()
    assert running == [2, 2]


def test_rows_are_launched_with_those_whose_emit_loops_equally_often():
    rows = [Sequence(i, 4, 3, evals, 0, 0.08, True) for i, evals in enumerate((9, 3, 9, 24, 3))]
    assert [[s.id for s in group] for group in by_num_evals(rows)] == [[0, 2], [1, 4], [3]]
