"""A codec that decodes each chunk from the utterance so far: chunks, joined, equal what it is without an engine."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from stentor import TTS, Reference
from stentor.config import Policy
from stentor.engine.running.codec_calls import UtteranceCalls
from stentor.engine.scheduling.audio_scheduler import AudioJob, AudioScheduler
from stentor.engine.scheduling.sequence import STOPPED
from stentor.layers.types import CodecCall, State
from stentor.models.codec_timing import UtteranceTiming
from stentor.models.toy.codec import UtteranceCodec
from stentor.models.toy.config import AHEAD, BOOK, HOP, HOPS, LATENT, LONG_PREFIX, OWED
from tests.helpers.captured import Replay, simulate_captures
from tests.helpers.fake_device import FakeDevice, SlowCodec, all_free, scheduler
from tests.helpers.stepped_engine import read_at_once

TIMING = UtteranceCodec.timing
SMALL: dict[str, Any] = {"device": "cpu", "memory_gb": 0.002, "dtype": "float64"}


def voice(frames: int, hz: float = 90.0) -> Reference:
    """Audio that the toy encodes as so many frames."""
    at = np.arange(10 * HOP * frames) / 6000
    return Reference(((0.5 * np.sin(2 * np.pi * hz * at)).astype(np.float32), 6000), "la")


def solved(codec: UtteranceCodec, prefix: np.ndarray, frames: np.ndarray, ended: bool) -> Any:
    """[n, HOP] samples of the frames, before what is late is mixed in, from what the codec is."""
    given = torch.from_numpy(np.concatenate((prefix, frames))).double()
    x = F.pad(codec.inp(given), (0, 0, 0, AHEAD))
    y = codec.ahead(torch.cat([x[i : i + len(given)] for i in range(AHEAD + 1)], -1))
    about = codec.conditions(prefix)
    speaker = np.asarray(about.get("speaker", np.zeros(3)))
    y = y + codec.speaker(torch.from_numpy(speaker).double())
    if len(prefix):
        tone = codec.tone(torch.from_numpy(about["tone"]).double())
        y = y + F.pad(tone, (0, 0, 0, len(frames)))
    y = y.tanh()
    seen = []
    for at in range(len(y)):
        until = len(y) if ended else (at // HOPS[0] + 1) * HOPS[0]
        keys = y[None, :until]
        seen.append(F.scaled_dot_product_attention(y[None, at : at + 1], keys, keys.sin())[0])
    return codec.out(torch.cat((y, torch.cat(seen)), -1))[len(prefix) :]


def reference(codec: UtteranceCodec, prefix: np.ndarray, frames: np.ndarray, cuts: list[int]):
    """The samples of a stream whose chunks end at `cuts`: the last one is that of the whole."""
    so_far = solved(codec, prefix, frames, ended=False)
    whole = solved(codec, prefix, frames, ended=True)
    last = cuts[-2] if len(cuts) > 1 else 0
    samples = torch.cat((so_far[:last], whole[last:])).flatten()
    later = F.pad(samples, (0, OWED))[OWED:]
    return (samples * 0.6 + later * 0.4).tanh().numpy()


@pytest.fixture(scope="module")
def tts() -> Iterator[TTS]:
    with TTS("dummy:toy-utterance", max_num_seqs=6, **SMALL) as model:
        yield model


def request(tts: TTS, i: int, prefix: int, frames: int, hide: int = 0) -> Any:
    options: dict[str, Any] = {"seed": i, "max_frames": frames, "min_frames": frames, "hide": hide}
    of = voice(prefix, 90.0 + i % 3) if prefix else None
    return tts.request(f"number {i}", reference=of, **options)


def check(tts: TTS, asked: Any, stream: Any) -> list[int]:
    """Compare a stream with the reference. Returns the frames of each chunk."""
    chunks = list(stream)
    counts = [len(chunk.frames) for chunk in chunks]
    frames = np.concatenate([chunk.frames for chunk in chunks])
    samples = np.concatenate([chunk.samples for chunk in chunks])
    assert len(samples) == HOP * len(frames)
    if len(frames):
        with torch.inference_mode():
            prefix = tts.prompt(asked).codec_prefix
            cuts = np.cumsum(counts).tolist()
            want = reference(tts.engine.model.codec, prefix, frames, cuts)
        np.testing.assert_allclose(samples, want, atol=1e-6)
    return counts


@pytest.mark.parametrize("prefix", [0, 5, 6, 7, 8, LONG_PREFIX + 2])
def test_a_stream_joined_equals_the_reference_for_every_prefix_and_length(tts: TTS, prefix: int):
    """Together: rows of a call are in their first, middle and last chunks."""
    requests = [
        request(tts, i, prefix, frames) for i, frames in enumerate((1, 2, 3, 4, 7, 8, 9, 12, 43))
    ]
    streams = [tts.submit(r) for r in requests]
    first = HOPS[0] + -min(prefix, LONG_PREFIX) % HOPS[0]
    for asked, stream in zip(requests, streams, strict=True):
        counts = check(tts, asked, stream)
        assert sum(counts) == asked.options["max_frames"]
        assert counts[:-1] == [first, *[HOPS[1]] * 9][: len(counts) - 1]
        assert counts[-1] < max(first, HOPS[1]) + AHEAD


def test_requests_that_are_not_streamed_are_one_chunk_each(tts: TTS):
    requests = [
        request(tts, i, prefix, n)
        for i, (prefix, n) in enumerate([(0, 1), (7, 5), (7, 5), (9, 6), (13, 30)])
    ]
    streams = [tts.submit(r, streaming=False) for r in requests]
    beside = tts.submit(request(tts, 9, 7, 20))
    for asked, stream in zip(requests, streams, strict=True):
        assert check(tts, asked, stream) == [asked.options["max_frames"]]
    assert len(check(tts, request(tts, 9, 7, 20), beside)) > 1


def test_captured_calls_are_padded_and_give_the_same_audio():
    """One utterance is longer than any captured call. Some rows of the others' calls are padding."""
    with TTS("dummy:toy-utterance", max_num_seqs=6, **SMALL) as tts:
        codec = tts.engine.codec
        shapes = codec.calls.captured_shapes(6)
        longest = TIMING.longest
        assert {(s.reads, s.decodes) for s in shapes} == {
            (48, 48),
            (48, longest),
            (16, longest),
            (16, 16),
        }
        with torch.inference_mode():
            for shape in shapes:  # as a capture does, before there is a request
                codec.graphs.fn(*shape)
        codec.graphs.graphs = {shape: Replay(codec.graphs.fn, shape) for shape in shapes}
        for shape, replay in codec.graphs.graphs.items():
            replay.replay = lambda shape=shape: codec.graphs.fn(*shape)
        requests = [request(tts, i, 5 + i, 21 + i, i) for i in range(6)]
        for asked, stream in zip(requests, [tts.submit(r) for r in requests], strict=True):
            check(tts, asked, stream)
        assert codec.graphs.eager_calls == 0
        long = request(tts, 7, 11, 60)
        check(tts, long, tts.submit(long, streaming=False))
        assert codec.graphs.eager_calls == 1


@pytest.mark.parametrize(
    ("rows_change_samples", "failing_rows", "captured_rows"),
    [(False, None, {1, 2, 3}), (True, None, {1}), (False, 3, {1})],
)
def test_deterministic_rows_share_calls_if_captured_calls_give_each_the_bits_of_one_row(
    rows_change_samples: bool,
    failing_rows: int | None,
    captured_rows: set[int],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """failing_rows: rows of calls that cannot be captured."""
    decode = UtteranceCodec.decode

    def decode_by_row(self: UtteranceCodec, frames: Tensor, state: State, call: CodecCall) -> Any:
        num_rows = len(frames)
        if num_rows == failing_rows:
            raise RuntimeError("out of graphs")

        results = [decode(self, *one_row(frames, state, call, row)) for row in range(num_rows)]
        samples = torch.cat([result[0] for result in results])
        if rows_change_samples:
            samples = samples + 1e-3 * (num_rows - 1)
        return samples, {name: torch.cat([result[1][name] for result in results]) for name in state}

    monkeypatch.setattr(UtteranceCodec, "decode", decode_by_row)
    simulate_captures(monkeypatch)
    monkeypatch.setattr("stentor.engine.running.side.check_deterministic", lambda *_: None)
    settings = {**SMALL, "max_num_seqs": 4, "deterministic": True}
    with TTS("dummy:toy-utterance", **settings) as tts:
        codec = tts.engine.codec
        assert {shape.rows for shape in codec.captured} == captured_rows
        assert {shape.rows for shape in codec.outputs} == captured_rows
        assert ("every row gets a call of its own" in caplog.text) == (captured_rows == {1})

        requests = [request(tts, i, 5, 21 + i) for i in range(4)]
        streams = [tts.submit(r) for r in requests]
        for r, stream in zip(requests, streams, strict=True):
            check(tts, r, stream)
        assert codec.graphs.eager_calls == 0


def one_row(
    frames: Tensor, state: State, call: CodecCall, row: int
) -> tuple[Tensor, State, CodecCall]:
    """Inputs of a codec for one row of a call."""
    part = slice(row, row + 1)
    columns = {name: column[part] for name, column in state.items()}
    place = CodecCall(call.start[part], call.stop[part], call.end[part], call.decodes)
    return frames[part], columns, place


def test_rows_of_near_lengths_share_a_call():
    calls = UtteranceCalls(UtteranceTiming(chunk=64, hops=(4,), ahead=3, lengths=(16, 32)), 64, 8)
    shapes = calls.captured_shapes(8)
    seqs = [SimpleNamespace(id=i, streaming=True, codec_prefix=0) for i in range(6)]
    lengths = (9, 14, 16, 17, 30, 8)
    jobs = [AudioJob(s, 0, 4, False, n) for s, n in zip(seqs, lengths, strict=True)]
    groups = [[job.reads for job in group] for group in calls.group(jobs, shapes)]
    assert groups == [[9, 14, 16, 8], [17, 30]]
    assert [calls.shape(group, shapes) for group in calls.group(jobs, shapes)] == [
        (4, 16, 10),
        (2, 32, 10),
    ]


@pytest.mark.parametrize("prefix", [0, 6])
def test_hidden_frames_are_generated_and_counted_but_not_decoded(tts: TTS, prefix: int):
    """The language model goes on as if they were audible, and the codec as if they did not exist."""
    stats = tts.engine.stats
    before = stats.frames
    counts = []
    for i in range(3):
        plain = np.concatenate([c.frames for c in tts.submit(request(tts, i, prefix, 18))])
        assert len(plain) == 18
        counts.append(len(plain))
        for hide in (4, 12, BOOK):
            asked = request(tts, i, prefix, 18, hide)
            frames = sum(check(tts, asked, tts.submit(asked)))
            assert frames == int((plain[:, LATENT + 1] >= hide).sum())
            counts.append(frames)
    assert 0 in counts
    assert len(set(counts)) > 3
    assert stats.frames - before == sum(counts)


def test_a_preempted_stream_goes_on_with_its_codec_state():
    policy = Policy(reserve_tokens=1, max_prefill_delay=0)
    with TTS("dummy:toy-utterance", max_num_seqs=3, page_size=4, policy=policy, **SMALL) as tts:
        requests = [request(tts, i, 7, 40, 4 * i) for i in range(3)]
        pages = tts.engine.scheduler.pages
        need = pages.pages_for(tts.prompt(requests[0]).length + 40)
        pages.allocate(pages.available - need - 4)
        with read_at_once(tts):
            streams = [tts.submit(r) for r in requests]
        for asked, stream in zip(requests, streams, strict=True):
            check(tts, asked, stream)
        assert tts.engine.health().preemptions > 0


def test_a_voice_is_primed_once_and_by_its_conditions_alone(tts: TTS):
    before = tts.engine.primer.counts().misses
    prompts = [tts.prompt(request(tts, 3, 9, 4)) for _ in range(2)]
    assert prompts[0].codec_state is prompts[1].codec_state
    assert tts.engine.primer.counts().misses - before <= 1
    assert tts.engine.primer.sizes == []
    other = tts.prompt(request(tts, 3, 9, 4))
    other.voice = "other"
    other.codec_conditions = {**other.codec_conditions, "speaker": np.ones(3, np.float32)}
    assert not torch.equal(tts.engine.primer.claim(other).result(), prompts[0].codec_state)


# -- decisions --


def test_the_first_chunk_ends_on_a_multiple_of_the_first_hop():
    assert [TIMING.hop(prefix, 0) for prefix in (0, 1, 3, 4, 7)] == [4, 7, 5, 4, 5]
    assert [TIMING.hop(7, number) for number in (1, 2, 9)] == [8, 8, 8]
    assert TIMING.needs(7, 1) == 8 + AHEAD
    assert TIMING.longest == 8 + AHEAD


def test_hops_grow_from_chunk_to_chunk_and_the_rest_comes_last():
    s = scheduler(timing=UtteranceTiming(hops=(4, 8, 12), ahead=2))
    d = FakeDevice(s)
    d.add(0, 4, 45)
    d.run()
    assert d.chunks[0] == [(0, 4), (4, 8), (12, 12), (24, 12), (36, 9)]
    assert all_free(s, 4)


def test_a_chunk_waits_for_the_frames_ahead_of_it_unless_the_stream_has_ended():
    s = scheduler(timing=TIMING)
    d = SlowCodec(s)
    seq = d.add(0, 4, 40)
    while not d.given:
        d.step()
    assert HOPS[0] + AHEAD <= seq.num_generated <= HOPS[0] + AHEAD + 1
    assert (d.given[0].count, d.given[0].reads, d.given[0].last) == (4, 7, False)


def test_a_stream_without_frames_calls_no_codec():
    s = scheduler(timing=TIMING)
    d = SlowCodec(s)
    seq = d.add(0, 4, 9)
    d.step()
    seq.num_generated = 0
    seq.status = STOPPED
    s.audio.look_at(seq)
    assert s.audio.plan(0.0, stepping=0) == []
    assert seq.decoded


def test_a_stream_that_waits_for_text_is_idle_with_frames_that_wait_for_others():
    s = scheduler(timing=TIMING)
    d = FakeDevice(s)
    seq = d.add(0, 4, 40)
    seq.max_schedulable = 10
    for _ in range(20):
        d.step()
    assert seq.num_generated == 10
    assert seq.audio_scheduled == HOPS[0]  # the next chunk needs 8 + 3 more
    assert seq.idle
    seq.max_schedulable = 15
    for _ in range(6):
        d.step()
    assert seq.audio_scheduled == HOPS[0] + HOPS[1]


def test_buffered_seconds_are_those_of_chunks_that_can_be_decoded():
    audio = AudioScheduler(Policy(), TIMING)
    seq = SimpleNamespace(audio_scheduled=0, audio_chunks=0, hop_seconds=1.0, codec_prefix=0)
    assert [audio.seconds(seq, n) for n in (0, 6, 7, 10)] == [0, 0, 4, 7]
    plain = AudioScheduler(Policy())
    assert [plain.seconds(seq, n) for n in (0, 1, 7)] == [0, 1, 7]


def test_the_codec_is_given_no_more_frames_to_read_than_it_may_hold():
    s = scheduler(slots=4, pages=256, timing=TIMING, max_frames_in_codec=40)
    d = SlowCodec(s)
    for i in range(4):
        d.add(i, 4, 60)
    for _ in range(90):
        d.step()
        assert sum(job.reads for job in d.given) == s.audio.in_codec <= 40
        d.answer(len(d.given) // 2)
    starts = [start for start, _ in d.chunks[0]]
    assert all(a < b for a, b in pairwise(starts))
