"""The scheduler on plain data: a fake device makes one frame per launch, reports come `overlap_steps` steps late."""

from collections import deque

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stentor.config import Policy
from stentor.engine.audio_scheduler import GENTLE_RAMP, RAMP
from stentor.engine.page_allocator import PageAllocator
from stentor.engine.scheduler import Scheduler, StepPlan
from stentor.engine.sequence import LENGTH, RUNNING, STOPPED, Phase, Sequence


class FakeDevice:
    """Rows that stop after `stops[id]` frames; a stopped row stays as it is, as on the real device."""

    def __init__(self, scheduler: Scheduler, overlap_steps: int = 0) -> None:
        self.scheduler, self.overlap_steps, self.now = scheduler, overlap_steps, 0.0
        self.stops: dict[int, int] = {}
        self.rows: dict[int, tuple[int, int]] = {}
        self.in_flight: deque[list[tuple[Sequence, int, int]]] = deque()
        self.done: list[Sequence] = []
        self.chunks: dict[int, list[tuple[int, int]]] = {}

    def add(
        self, id: int, length: int, limit: int, stop: int | None = None, streaming: bool = True, trim_frames: int = 0
    ) -> Sequence:
        seq = Sequence(id, length, limit, 0, trim_frames, 0.08, streaming)
        self.stops[id] = limit + 1 if stop is None else stop
        self.scheduler.add(seq, self.now)
        return seq

    def step(self) -> StepPlan:
        self.now += 0.01
        plan = self.scheduler.plan(self.now)
        self.scheduler.check()
        for group in ([*plan.admitted, *plan.resumed], plan.decode):
            if group:
                self.in_flight.append([(s, *self._step(s)) for s in group])
        while self.in_flight and (len(self.in_flight) > self.overlap_steps or plan.empty):
            for seq, made, status in self.in_flight.popleft():
                self.scheduler.observe(seq, made, status)
        for job in plan.audio:
            self.chunks.setdefault(job.seq.id, []).append((job.start, job.count))
            self.scheduler.audio.on_audio(job.seq, job.count, self.now)
        self.done += self.scheduler.finished()
        self.scheduler.check()
        return plan

    def _step(self, seq: Sequence) -> tuple[int, int]:
        made, status = self.rows.get(seq.id, (0, RUNNING))
        if status == RUNNING:
            made += 1
            status = STOPPED if made >= self.stops[seq.id] else LENGTH if made >= seq.max_frames else RUNNING
        self.rows[seq.id] = (made, status)
        return made, status

    def run(self, turns: int = 2000) -> None:
        for _ in range(turns):
            if self.scheduler.idle and not self.in_flight:
                return
            self.step()
        raise AssertionError("requests did not finish")


def scheduler(slots: int = 4, pages: int = 64, size: int = 4, **policy: object) -> Scheduler:
    return Scheduler(slots, PageAllocator(pages, size), Policy(**{"reserve_tokens": 8, **policy}))


def all_free(s: Scheduler, slots: int) -> bool:
    return s.pages.available == s.pages.count and sorted(s.free_slots) == list(range(slots))


def test_a_request_waits_in_line_until_a_slot_is_free():
    s = scheduler(slots=1)
    d = FakeDevice(s)
    first, second = d.add(0, 4, 3), d.add(1, 4, 3)
    d.step()
    assert (first.phase, second.phase) == (Phase.RUNNING, Phase.QUEUED)
    d.run()
    assert [q.id for q in d.done] == [0, 1]
    assert all_free(s, 1)


@pytest.mark.parametrize("overlap_steps", [0, 1])
def test_a_request_whose_text_goes_on_waits_and_is_heard_as_far_as_it_goes(overlap_steps: int):
    s = scheduler(pages=32)
    d = FakeDevice(s, overlap_steps)
    live, other = d.add(0, 4, 20), d.add(1, 4, 20)
    live.max_schedulable = 6
    for _ in range(40):
        d.step()
    assert (live.num_generated, live.phase, other.phase) == (6, Phase.RUNNING, Phase.DONE)
    assert d.chunks[0] == [(0, 1), (1, 2), (3, 2), (5, 1)]  # the last two are less than the ramp asks for
    assert s.inert
    live.max_schedulable = 20
    assert not s.inert
    d.run()
    assert live.num_generated == live.audio_delivered == 20
    assert all_free(s, 4)


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


def test_pages_grow_as_a_request_speaks_and_come_back_when_it_ends():
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


@pytest.mark.parametrize("turns", [0, 1, 2, 5])
def test_a_cancelled_request_gives_everything_back(turns: int):
    s = scheduler()
    d = FakeDevice(s, overlap_steps=1)
    seq, other = d.add(0, 8, 20), d.add(1, 8, 20)
    for _ in range(turns):
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


@pytest.mark.parametrize(("ramp", "factor", "stalls"), [(RAMP, 0.5, 0), (RAMP, 0.6, 5), (GENTLE_RAMP, 0.75, 0)])
def test_the_ramp_of_a_slow_device_leaves_no_gap(ramp: tuple[int, ...], factor: float, stalls: int):
    """Frames take `factor` of their duration; a listener plays as soon as there is something."""
    made = np.cumsum(ramp)
    arrives = made * factor
    runs_dry = arrives[0] + made[:-1]
    assert sum(arrives[1:] > runs_dry + 1e-9) == stalls


def test_first_chunks_are_small_and_grow_by_the_ramp():
    s = scheduler(ramp=(1, 2, 4), chunk=25)
    d = FakeDevice(s)
    d.add(0, 4, 13)
    d.run()
    assert d.chunks[0] == [(0, 1), (1, 2), (3, 4), (7, 4), (11, 2)]


def test_the_first_chunk_is_longer_by_the_frames_that_may_go_unheard():
    s = scheduler(ramp=(1, 2, 4), chunk=25)
    d = FakeDevice(s)
    d.add(0, 4, 6, trim_frames=2)
    d.run()
    assert d.chunks[0] == [(0, 3), (3, 2), (5, 1)]


def test_a_request_that_is_not_streamed_is_decoded_in_large_chunks():
    s = scheduler(chunk=5)
    d = FakeDevice(s)
    d.add(0, 4, 12, streaming=False)
    d.run()
    assert d.chunks[0] == [(0, 5), (5, 5), (10, 2)]


def test_a_stream_far_ahead_of_its_listener_yields():
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


def test_requests_of_a_failed_prefill_are_tried_one_by_one():
    s = scheduler()
    a, b = (Sequence(i, 4, 4, 0, 0, 0.08, True) for i in range(2))
    s.add(a, 0.0)
    s.add(b, 0.0)
    plan = s.plan(0.0)
    assert plan.admitted == [a, b]
    s.undo(a)
    s.undo(b)
    s.check()
    assert s.plan(0.0).resumed == [a]
    assert s.plan(0.0).resumed == [b]


@settings(max_examples=60, deadline=None)
@given(data=st.data(), overlap_steps=st.integers(0, 2), slots=st.integers(1, 4), pages=st.integers(8, 40))
def test_invariants_hold_under_any_schedule(data: st.DataObject, overlap_steps: int, slots: int, pages: int):
    """Up to 200 requests over the examples: joins, cancels and failures at random turns; `check` runs every turn."""
    s = scheduler(slots=slots, pages=pages, reserve_tokens=data.draw(st.integers(0, 16)))
    d = FakeDevice(s, overlap_steps)
    alive: list[Sequence] = []
    for id in range(data.draw(st.integers(1, 12))):
        length = data.draw(st.integers(1, 12))
        limit = data.draw(st.integers(1, pages * 4 - length))
        alive.append(d.add(id, length, min(limit, 40), data.draw(st.integers(1, 40)), data.draw(st.booleans())))
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


class SlowCodec(FakeDevice):
    """Audio comes back only when the test says so."""

    def __init__(self, scheduler: Scheduler) -> None:
        super().__init__(scheduler)
        self.given: deque = deque()

    def step(self) -> StepPlan:
        self.now += 0.01
        plan = self.scheduler.plan(self.now)
        for group in ([*plan.admitted, *plan.resumed], plan.decode):
            for seq in group:
                self.scheduler.observe(seq, *self._step(seq))
        self.given += plan.audio
        for job in plan.audio:
            self.chunks.setdefault(job.seq.id, []).append((job.start, job.count))
        return plan

    def answer(self, count: int) -> None:
        for _ in range(count):
            job = self.given.popleft()
            self.scheduler.audio.on_audio(job.seq, job.count, self.now)


def test_the_codec_is_given_no_more_than_it_can_be_asked_to_take():
    s = scheduler(slots=4, pages=256, max_frames_in_codec=12)
    d = SlowCodec(s)
    for i in range(4):
        d.add(i, 4, 60)
    for _ in range(60):
        d.step()
        assert sum(job.count for job in d.given) == s.audio.in_codec <= 12
    assert d.given


def test_a_first_chunk_overtakes_what_the_codec_has_not_been_given():
    s = scheduler(slots=3, pages=256, max_frames_in_codec=7)
    d = SlowCodec(s)
    d.add(0, 4, 60)
    d.add(1, 4, 60, streaming=False)
    for _ in range(30):
        d.step()
    d.add(2, 4, 60)
    d.step()
    d.step()
    assert all(job.seq.id != 2 for job in d.given)  # the codec is busy
    d.answer(len(d.given))
    assert d.step().audio[0].seq.id == 2


def test_the_listener_who_has_least_comes_first_and_a_whole_utterance_waits():
    s = scheduler(slots=5, pages=256, max_frames_in_codec=4000)
    d = SlowCodec(s)
    for i in range(4):
        d.add(i, 4, 90)
    d.add(4, 4, 90, streaming=False)
    d.step()
    for seq, heard in zip(s.live, (5, 3, 4, 0, 0), strict=True):
        seq.num_generated, seq.audio_scheduled, seq.audio_chunks = 40, heard, int(heard > 0)
        seq.first_audio = 0.0 if heard else None
    order = [job.seq.id for job in d.step().audio]
    assert list(dict.fromkeys(order)) == [3, 1, 2, 0, 4]


def test_chunks_that_can_wait_gather_while_the_codec_works():
    s = scheduler(slots=4, pages=256, max_frames_in_codec=80)
    d = SlowCodec(s)
    for i in range(4):
        d.add(i, 4, 90)
    d.step()
    d.answer(len(d.given))
    for seq, planned in zip(s.live, (10, 20, 40, 40), strict=True):
        seq.num_generated, seq.audio_scheduled, seq.audio_chunks = planned, planned, 6
        seq.first_audio = d.now
        seq.hop_seconds = 0.08
    s.live[2].num_generated += 25
    assert [job.seq.id for job in s.plan(d.now).audio] == [2]  # the codec has nothing to do
    for i in (0, 1, 3):
        s.live[i].num_generated += 25
    assert [job.seq.id for job in s.plan(d.now).audio] == [0]  # it has, and one listener has little left
    s.audio.in_codec = 10
    assert [job.seq.id for job in s.plan(d.now).audio] == [1, 3]


def test_chunks_grow_when_the_codec_is_behind_and_the_first_stays_small():
    s = scheduler(slots=1, pages=256, max_frames_in_codec=1)
    d = SlowCodec(s)
    d.add(0, 4, 60)
    for _ in range(20):
        d.step()
    d.answer(1)
    d.step()
    assert [count for _, count in d.chunks[0]] == [1, 16]


def test_frames_of_a_failed_codec_call_make_room_again():
    s = scheduler(slots=2, pages=256)
    d = SlowCodec(s)
    d.add(0, 4, 60)
    while not d.given:
        d.step()
    job = d.given.popleft()
    s.fail(job.seq, RuntimeError("no memory"), job.count)
    assert s.audio.in_codec == 0


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(1, 90), st.booleans()), min_size=1, max_size=6), st.integers(1, 60), st.randoms())
def test_however_slow_the_codec_every_frame_is_spoken_once_and_in_order(requests, room, rng):
    s = scheduler(slots=3, pages=256, max_frames_in_codec=room)
    d = SlowCodec(s)
    for i, (limit, streaming) in enumerate(requests):
        d.add(i, 4, limit, streaming=streaming)
    done: list[Sequence] = []
    for _ in range(6000):
        plan = d.step()
        if d.given and (plan.empty or rng.random() < 0.4):
            d.answer(rng.randint(1, len(d.given)))
        done += s.finished()
        if s.idle:
            break
    assert len(done) == len(requests)
    for i, (limit, _) in enumerate(requests):
        at = 0
        for start, count in d.chunks[i]:
            assert start == at
            at += count
        assert at == limit
    assert s.audio.in_codec == 0
    assert all_free(s, 3)


def crowd(s: Scheduler, d: FakeDevice, count: int) -> list[Sequence]:
    """Streams that run and whose listeners have plenty."""
    streams = [d.add(100 + i, 4, 400) for i in range(count)]
    for _ in range(30):
        d.step()
    assert all(q.phase is Phase.RUNNING and q.lead(d.now) > 0.5 for q in streams)
    return streams


def test_newcomers_are_let_in_together_while_most_slots_run():
    s = scheduler(slots=8, pages=2048, batching_window=0.035)
    d = FakeDevice(s)
    running = crowd(s, d, 5)
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
    crowd(s, d, 3)
    late = d.add(0, 4, 4)
    assert d.step().admitted == [late]


def test_what_comes_during_a_prefill_waits_for_its_end_and_shares_the_next():
    s = scheduler(slots=8, pages=2048)
    d = FakeDevice(s, overlap_steps=1)
    first = d.add(0, 4, 9)
    assert d.step().admitted == [first]
    d.add(1, 4, 9)
    assert d.step().empty  # which has the prefill waited for
    d.add(2, 4, 9)
    assert [q.id for q in d.step().admitted] == [1, 2]


def test_a_full_prefill_is_given_to_the_device_before_the_last_has_ended():
    s = scheduler(slots=8, pages=2048, max_prefill_tokens=8)
    d = FakeDevice(s, overlap_steps=1)
    for id in range(5):
        d.add(id, 4, 9)
    assert [[q.id for q in d.step().admitted] for _ in range(2)] == [[0, 1], [2, 3]]


@pytest.mark.parametrize("seconds", [0.0, 0.1])
def test_a_listener_who_has_little_left_comes_before_a_prefill_as_long_as_that(seconds: float):
    """One frame of 80 ms outlasts no prefill of 100 ms; three do."""
    s = scheduler(slots=8, pages=2048)
    d = FakeDevice(s)
    d.add(0, 4, 40)
    d.step()
    s.prefilled(seconds)
    late = d.add(1, 4, 40)
    turns = 1
    while late not in d.step().admitted:
        turns += 1
    assert turns == (1 if not seconds else 3)


def test_no_request_waits_longer_than_its_patience_for_listeners_who_have_little():
    s = scheduler(slots=8, pages=2048, max_prefill_delay=0.1)
    d = FakeDevice(s)
    d.add(0, 4, 400)
    d.step()
    s.prefilled(60.0)
    late = d.add(1, 4, 40)
    waited = next(step for step in range(1, 100) if late in d.step().admitted)
    assert waited in (10, 11)


def test_a_listener_who_ran_dry_plays_on_when_audio_comes():
    s = scheduler()
    d = FakeDevice(s)
    seq = d.add(0, 4, 40)
    d.step()
    d.step()
    d.now += 5.0
    assert seq.lead(d.now) < -4
    for _ in range(3):
        d.step()
    assert 0.1 < seq.lead(d.now) < 0.24
