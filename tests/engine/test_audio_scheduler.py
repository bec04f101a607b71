"""Choice of the audio chunks that are due, their order, and how much the codec is given."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stentor.config import Policy
from stentor.engine.scheduling.audio_scheduler import AudioScheduler, max_in_codec
from stentor.engine.scheduling.chunks import GENTLE_RAMP, RAMP
from stentor.engine.scheduling.prefill import StepPlan
from stentor.engine.scheduling.scheduler import Scheduler
from stentor.engine.scheduling.sequence import Sequence
from stentor.models.codec_timing import CAUSAL, CodecTiming, UtteranceTiming
from tests.helpers.fake_device import FakeDevice, SlowCodec, all_free, scheduler


@pytest.mark.parametrize(
    ("ramp", "factor", "stalls"), [(RAMP, 0.5, 0), (RAMP, 0.6, 5), (GENTLE_RAMP, 0.75, 0)]
)
def test_the_ramp_of_a_slow_device_leaves_no_gap(ramp: tuple[int, ...], factor: float, stalls: int):
    """Frames take `factor` of their duration; a client plays as soon as there is something."""
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


def test_the_first_chunk_is_longer_by_the_frames_that_may_be_trimmed():
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


def test_a_plan_looks_at_no_request_whose_next_chunk_cannot_be_due(monkeypatch: pytest.MonkeyPatch):
    s = scheduler(slots=8, pages=256, ramp=(1, 2, 4), chunk=4)
    d, looked = FakeDevice(s), []
    plain = s.audio.chunks.next_chunk
    monkeypatch.setattr(
        "tests.helpers.fake_device.check", lambda scheduler: None
    )  # which looks at all of them
    monkeypatch.setattr(
        s.audio.chunks, "next_chunk", lambda seq: (looked.append(seq.id), plain(seq))[1]
    )
    for i in range(8):
        d.add(i, 4, 60)
    d.run()
    chunks = sum(map(len, d.chunks.values()))
    assert chunks == 8 * (2 + 57 // 4 + 1)
    # one look for each chunk, and one at each request that has ended
    assert len(looked) <= chunks + 8


def test_the_codec_is_given_no_more_than_it_can_be_asked_to_take():
    s = scheduler(slots=4, pages=256, max_frames_in_codec=12)
    d = SlowCodec(s)
    for i in range(4):
        d.add(i, 4, 60)
    for _ in range(60):
        d.step()
        assert sum(job.count for job in d.given) == s.audio.in_codec <= 12
    assert d.given


def test_a_codec_that_decodes_from_the_beginning_holds_more_frames():
    utterances = UtteranceTiming(chunk=800, hops=(25,), ahead=3)
    assert max_in_codec(Policy(), CAUSAL) == 256
    assert max_in_codec(Policy(), utterances) == 1600
    assert max_in_codec(Policy(max_frames_in_codec=50), utterances) == 50


@pytest.mark.parametrize(("streaming", "chunks"), [(True, [(0, 1), (1, 2)]), (False, [])])
def test_a_preempted_stream_gives_what_it_has_since_nothing_follows_for_now(
    streaming: bool, chunks: list
):
    s = scheduler(slots=1, pages=256, ramp=(1, 2, 8))
    d = SlowCodec(s)
    seq = d.add(0, 4, 60, streaming=streaming)
    for _ in range(8):
        d.step()
    s.plan_audio(d.now)
    assert d.chunks.get(0, []) == chunks
    left = seq.num_generated - seq.audio_scheduled
    assert left
    s._preempt(seq)
    assert sum(job.count for job in s.plan_audio(d.now)) == (left if streaming else 0)
    assert s.plan_audio(d.now) == []


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


def test_the_stream_with_the_least_buffered_comes_first_and_a_whole_utterance_waits():
    s = scheduler(slots=5, pages=256, max_frames_in_codec=4000)
    d = SlowCodec(s)
    for i in range(4):
        d.add(i, 4, 90)
    d.add(4, 4, 90, streaming=False)
    d.step()
    for seq, played in zip(s.live, (5, 3, 4, 0, 0), strict=True):
        seq.num_generated, seq.audio_scheduled, seq.audio_chunks = 40, played, int(played > 0)
        seq.first_audio = 0.0 if played else None
        s.audio.look_at(seq)
    order = [job.seq.id for job in d.step().audio]
    assert list(dict.fromkeys(order)) == [3, 1, 2, 0, 4]


def test_chunks_that_can_wait_are_batched_while_the_codec_is_busy():
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
        s.audio.look_at(s.live[i])
    assert [job.seq.id for job in s.plan(d.now).audio] == [
        0
    ]  # it has, and one stream has little buffered
    s.audio.in_codec = 10
    assert [job.seq.id for job in s.plan(d.now).audio] == [1, 3]


def playing(count: int) -> tuple[Scheduler, list[Sequence]]:
    """Streams whose clients have 3.2 s buffered, without a chunk that is due."""
    s = scheduler(slots=count, pages=256)
    d = SlowCodec(s)
    for i in range(count):
        d.add(i, 4, 900)
    d.step()
    d.answer(len(d.given))
    for seq in s.live:
        seq.num_generated, seq.audio_scheduled, seq.audio_chunks = 40, 40, 6
        seq.first_audio = 0.0
        seq.hop_seconds = 0.08
        seq.audio_due = 65
    s.audio.plan(0.0, stepping=0)
    return s, list(s.live)


def finish_chunk(s: Scheduler, seq: Sequence) -> None:
    seq.num_generated += 25
    s.audio.look_at(seq)


def test_chunks_that_can_wait_are_launched_with_those_of_half_of_the_streams():
    s, streams = playing(6)
    for seq in streams[:2]:
        finish_chunk(s, seq)
        assert s.audio.plan(0.0, stepping=6) == []
    finish_chunk(s, streams[2])
    assert [job.seq for job in s.audio.plan(0.001, stepping=6)] == streams[:3]


def test_a_chunk_waits_ten_milliseconds_for_those_of_others_at_most():
    s, streams = playing(6)
    finish_chunk(s, streams[0])
    assert s.audio.plan(0.0, stepping=6) == []
    assert s.audio.plan(0.009, stepping=6) == []
    assert [job.seq for job in s.audio.plan(0.01, stepping=6)] == streams[:1]
    finish_chunk(s, streams[1])
    assert s.audio.plan(0.02, stepping=6) == []  # its own time begins
    assert [job.seq for job in s.audio.plan(0.031, stepping=6)] == streams[1:2]


@pytest.mark.parametrize("stepping", [0, 1, 2])
def test_a_chunk_waits_for_no_stream_that_has_no_further_frames(stepping: int):
    s, streams = playing(6)
    finish_chunk(s, streams[0])
    assert [job.seq for job in s.audio.plan(0.0, stepping)] == streams[:1]


@pytest.mark.parametrize(("step", "waits"), [(0.005, True), (0.0051, False)])
def test_chunks_wait_for_others_only_where_steps_are_short(step: float, waits: bool):
    s, streams = playing(6)
    s.plan(0.0)
    s.plan(step)
    finish_chunk(s, streams[0])
    assert (s.plan_audio(step) == []) is waits


def test_chunks_do_not_wait_for_others_while_a_request_waits_for_a_slot():
    s, streams = playing(6)
    s.plan(0.0)
    s.queue.append(Sequence(6, 4, 60, 0, 0, 0.08, True))
    s.plan(0.001)
    finish_chunk(s, streams[0])
    assert [job.seq for job in s.plan_audio(0.001)] == streams[:1]


def test_a_stream_with_little_buffered_does_not_wait_for_others():
    s, streams = playing(6)
    streams[3].first_audio = -2.5
    for seq in streams[2:4]:
        finish_chunk(s, seq)
    assert [job.seq for job in s.audio.plan(0.0, stepping=6)] == streams[3:4]


class FastDevice(FakeDevice):
    """A device whose steps take 2 ms, with the rows of each large codec call."""

    def __init__(self, scheduler: Scheduler) -> None:
        super().__init__(scheduler, step_s=0.002)
        self.large_calls: list[int] = []

    def step(self) -> StepPlan:
        plan = super().step()
        rows = [job for job in plan.audio if job.count == 8]
        if rows:
            self.large_calls.append(len(rows))
        return plan


def test_streams_that_begin_apart_share_the_codec_calls_of_their_later_chunks():
    d = FastDevice(scheduler(slots=8, pages=512, ramp=(1, 2, 4, 8), chunk=8))
    for i in range(8):
        d.add(i, 4, 200)
        d.step()
    d.run()
    later = d.large_calls[20:]
    assert sum(later) / len(later) > 3


def test_a_batch_that_does_not_fit_into_the_codec_goes_on_as_soon_as_it_does():
    s, streams = playing(16)
    for seq in streams[:14]:
        finish_chunk(s, seq)
    assert [job.seq for job in s.audio.plan(0.0, stepping=16)] == streams[:10]  # 250 frames
    assert s.audio.plan(0.001, stepping=16) == []
    s.audio.in_codec = 0
    assert [job.seq for job in s.audio.plan(0.002, stepping=16)] == streams[10:14]
    s.audio.in_codec = 0
    finish_chunk(s, streams[14])
    assert s.audio.plan(0.003, stepping=16) == []  # another batch


@pytest.mark.parametrize(("calls", "enough"), [(1, 32), (2, 288)])
def test_chunks_that_can_wait_are_launched_while_there_is_less_than_the_last_call_to_do(
    calls: int, enough: int
):
    s, streams = playing(1)
    s.audio = AudioScheduler(Policy(), CodecTiming(calls=calls))
    assert s.audio.max_in_codec == 256 * calls
    finish_chunk(s, streams[0])
    s.audio.in_codec = enough + 1
    assert s.audio.plan(0.0, stepping=1) == []
    assert s.audio.busy
    s.audio.in_codec = enough
    assert len(s.audio.plan(0.0, stepping=1)) == 1


@pytest.mark.parametrize("timing", [CAUSAL, CodecTiming(calls=2)])
def test_a_codec_is_busy_with_an_eighth_of_a_large_call(timing: CodecTiming):
    audio = AudioScheduler(Policy(), timing)
    audio.in_codec = 32
    assert not audio.busy
    audio.in_codec = 33
    assert audio.busy


def test_while_the_codec_is_busy_a_plan_looks_at_no_stream_whose_client_has_enough(
    monkeypatch: pytest.MonkeyPatch,
):
    s = scheduler(slots=8, pages=512, max_frames_in_codec=80)
    d = SlowCodec(s)
    for i in range(8):
        d.add(i, 4, 90)
    d.step()
    d.answer(len(d.given))
    for seq in s.live:
        seq.num_generated, seq.audio_scheduled, seq.audio_chunks, seq.first_audio = 65, 40, 6, d.now
        s.audio.look_at(seq)
    looked, plain = [], s.audio.chunks.next_chunk
    monkeypatch.setattr(
        s.audio.chunks, "next_chunk", lambda seq: (looked.append(seq.id), plain(seq))[1]
    )
    s.audio.in_codec = 20
    assert s.plan_audio(d.now) == []
    assert looked == []
    assert [job.seq.id for job in s.plan_audio(d.now + 3.0)] == [0, 1]  # there is room for two
    assert looked == [0, 1, 2]


def test_a_stream_that_begins_to_play_overtakes_those_that_wait_for_their_first_audio():
    s = scheduler(slots=3, pages=256, max_frames_in_codec=8, ramp=(2, 4), chunk=4)
    d = SlowCodec(s)
    for i in range(3):
        d.add(i, 4, 90)
    while len(d.given) < 3:
        d.step()
    for _ in range(4):
        d.step()
    assert [job.seq.id for job in d.given] == [0, 1, 2]
    d.given.rotate(-1)
    d.answer(1)  # that of stream 1 comes first
    d.step()
    assert [job.seq.id for job in list(d.given)[2:]] == [1]


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
    s.fail(job.seq, job.count)
    assert s.audio.in_codec == 0


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.integers(1, 90), st.booleans()), min_size=1, max_size=6),
    st.integers(1, 60),
    st.sampled_from([0.002, 0.01]),
    st.randoms(),
)
def test_however_slow_the_codec_every_frame_is_decoded_once_and_in_order(
    requests, room, step_s, rng
):
    s = scheduler(slots=3, pages=256, max_frames_in_codec=room)
    d = SlowCodec(s, step_s)
    for i, (limit, streaming) in enumerate(requests):
        d.add(i, 4, limit, streaming=streaming)
    for _ in range(6000):
        plan = d.step()
        if d.given and (plan.empty or rng.random() < 0.4):
            d.answer(rng.randint(1, len(d.given)))
        d.release()
        if s.idle:
            break
    assert len(d.done) == len(requests)
    for i, (limit, _) in enumerate(requests):
        at = 0
        for start, count in d.chunks[i]:
            assert start == at
            at += count
        assert at == limit
    assert s.audio.in_codec == 0
    assert all_free(s, 3)


def test_a_client_that_ran_dry_plays_on_when_audio_comes():
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
