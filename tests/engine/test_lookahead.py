"""A codec with look-ahead, a grid, a delay and a voice's conditions: chunks, joined, equal the stream decoded whole."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from stentor import TTS, Reference
from stentor.config import Policy
from stentor.engine.running.codec_state import CodecPages, SlotPages
from stentor.engine.running.device import Device
from stentor.engine.scheduling import audio_scheduler
from stentor.engine.scheduling.audio_scheduler import AudioJob, AudioScheduler, chunk_sizes
from stentor.engine.scheduling.sequence import STOPPED, Phase
from stentor.layers.types import Column
from stentor.models.codec_timing import CodecTiming
from stentor.models.toy.codec import LookaheadCodec
from stentor.models.toy.config import BOOK, DELAY, GRID, HOP, LATENT, LONG_PREFIX, LOOKAHEAD, PAGES
from stentor.models.toy.spec import make_spec
from tests.helpers.captured import Replay
from tests.helpers.fake_device import FakeDevice, SlowCodec, all_free, scheduler

TIMING = CodecTiming(GRID, LOOKAHEAD, DELAY, window=PAGES)
SMALL: dict[str, Any] = {"device": "cpu", "memory_gb": 0.002, "dtype": "float64"}


def voice(frames: int, hz: float = 90.0) -> Reference:
    """Audio that the toy encodes as so many frames."""
    at = np.arange(10 * HOP * frames) / 6000
    return Reference(((0.5 * np.sin(2 * np.pi * hz * at)).astype(np.float32), 6000), "la")


def whole(
    codec: LookaheadCodec, prefix: np.ndarray, frames: np.ndarray, grid: int = GRID
) -> np.ndarray:
    """The samples of a stream, by what the codec is and without state: float64 [n * hop]."""
    given = torch.from_numpy(np.concatenate((prefix, frames))).double()
    x = F.pad(codec.inp(given), (0, 0, 0, LOOKAHEAD))
    y = codec.ahead(torch.cat([x[i : i + len(given)] for i in range(LOOKAHEAD + 1)], -1))
    about = codec.conditions(prefix)
    speaker = about.get("speaker", np.zeros(3))
    y = y + codec.speaker(torch.from_numpy(np.asarray(speaker)).double())
    if len(prefix):
        y = y + F.pad(codec.tone(torch.from_numpy(about["tone"]).double()), (0, 0, 0, len(frames)))
    y = y.tanh()
    z = F.pad(
        codec.out(torch.cat((y, seen(y, len(prefix), grid)), -1))[len(prefix) :], (0, 0, 0, DELAY)
    )
    out = torch.stack([z[i : i + len(frames)] * codec.late[i] for i in range(DELAY + 1)]).sum(0)
    return out.tanh().flatten().numpy()


def seen(y: torch.Tensor, prefix: int, grid: int) -> torch.Tensor:
    """Frames see their chunk, the chunks of their voice and the last others that the window holds."""
    voice = TIMING.chunks_of(prefix) // GRID
    out = []
    for chunk, part in enumerate(y.split(grid)):
        first = max(0, chunk - (PAGES - voice) + 1)
        kept = [i for i in range(chunk + 1) if i < voice or i >= first]
        keys = torch.cat([y.split(grid)[i] for i in kept])
        out.append(F.scaled_dot_product_attention(part[None], keys[None], keys.sin()[None])[0])
    return torch.cat(out)


@pytest.fixture(scope="module")
def tts() -> Iterator[TTS]:
    with TTS("dummy:toy-lookahead", max_num_seqs=6, **SMALL) as made:
        yield made


def ask(tts: TTS, i: int, prefix: int, frames: int, hide: int = 0) -> Any:
    options: dict[str, Any] = {"seed": i, "max_frames": frames, "min_frames": frames, "hide": hide}
    return tts.request(
        f"number {i}", reference=voice(prefix, 90.0 + i % 3) if prefix else None, **options
    )


def want(tts: TTS, request: Any, frames: np.ndarray, grid: int = GRID) -> np.ndarray:
    with torch.inference_mode():
        return whole(tts.engine.model.codec, tts.prompt(request).codec_prefix, frames, grid)


def heard(stream: Any) -> tuple[np.ndarray, np.ndarray, list[int]]:
    """Samples, frames and the frames of each chunk."""
    chunks = list(stream)
    counts = [len(c.frames) for c in chunks]
    assert [len(c.samples) for c in chunks] == [HOP * n for n in counts]
    return (
        np.concatenate([c.samples for c in chunks]),
        np.concatenate([c.frames for c in chunks]),
        counts,
    )


@pytest.mark.parametrize("prefix", [0, 5, 6, 7, 8, LONG_PREFIX + 2])
def test_a_stream_joined_equals_the_whole_for_every_prefix_and_length(
    tts: TTS, prefix: int
) -> None:
    """Together: rows of a call are in their first, middle and last chunks."""
    requests = [
        ask(tts, i, prefix, frames) for i, frames in enumerate((1, 2, 3, 4, 7, 8, 9, 12, 43))
    ]
    streams = [tts.submit(request) for request in requests]
    for request, stream in zip(requests, streams, strict=True):
        samples, frames, counts = heard(stream)
        assert len(frames) == request.options["max_frames"]
        np.testing.assert_allclose(samples, want(tts, request, frames), atol=1e-6)
        assert all(counts[:-1])


def test_chunks_of_two_pages_give_the_same_audio(monkeypatch: pytest.MonkeyPatch) -> None:
    """The codec is late, so that frames wait for it. Windows fill, and streams end inside a page and behind it."""
    monkeypatch.setattr(audio_scheduler, "SOON_LEAD_S", -1.0)
    with TTS("dummy:toy-lookahead", max_num_seqs=6, **SMALL) as tts:
        audio, jobs = tts.engine.scheduler.audio, list[AudioJob]()
        plan, enough = audio.plan, 2 * GRID + LOOKAHEAD

        def planned(now: float, live: Any = ()) -> list[AudioJob]:
            running = [seq for seq in live if seq.phase is Phase.RUNNING]
            late = all(seq.num_heard - seq.audio_scheduled >= enough for seq in running)
            found = plan(now, live) if late else []
            jobs.extend(found)
            return found

        monkeypatch.setattr(audio, "plan", planned)
        for prefix in (0, 6, LONG_PREFIX):
            requests = [
                ask(tts, i, prefix, frames) for i, frames in enumerate((3, 6, 9, 11, 16, 43))
            ]
            for request, stream in zip(requests, [tts.submit(r) for r in requests], strict=True):
                samples, frames, _ = heard(stream)
                np.testing.assert_allclose(samples, want(tts, request, frames), atol=1e-6)
        assert {job.count for job in jobs} >= {1, GRID, 2 * GRID}
        assert all(job.count <= GRID for job in jobs if job.start + 2 * GRID > job.seq.window_end)


def test_first_audio_needs_one_chunk_and_its_look_ahead_whatever_the_ramp(tts: TTS) -> None:
    first = {}
    for prefix in (0, 5, 6, 7, 8):
        _, _, counts = heard(tts.submit(ask(tts, 1, prefix, 9)))
        held = TIMING.offset(min(prefix, LONG_PREFIX))
        first[held] = counts[0]
        assert (counts[0] + DELAY + held) % GRID == 0
    assert first == {0: 2, 3: 3, 4: 2, 5: 1, 6: 4}


def test_requests_that_are_not_streamed_are_one_chunk_each_alone_and_together(tts: TTS) -> None:
    """Streams that end together and are about as long share a call."""
    requests = [
        ask(tts, i, prefix, n)
        for i, (prefix, n) in enumerate([(0, 1), (7, 5), (7, 5), (9, 6), (13, 30)])
    ]
    streams = [tts.submit(request, streaming=False) for request in requests]
    beside = tts.submit(ask(tts, 9, 7, 20))
    for request, stream in zip(requests, streams, strict=True):
        samples, frames, counts = heard(stream)
        assert counts == [request.options["max_frames"]]
        np.testing.assert_allclose(samples, want(tts, request, frames, grid=1000), atol=1e-6)
    samples, frames, _ = heard(beside)
    np.testing.assert_allclose(samples, want(tts, ask(tts, 9, 7, 20), frames), atol=1e-6)


def test_whole_utterances_from_captured_calls_are_padded_to_their_lengths_and_are_the_same() -> (
    None
):
    """One is longer than any captured call. Some rows of the others' calls are padding."""
    with TTS("dummy:toy-lookahead", max_num_seqs=6, **SMALL) as tts:
        codec, calls = tts.engine.codec, list[tuple[int, int]]()

        def run(rows: int, count: int) -> None:
            calls.append((rows, count))
            codec.whole_graphs.fn(rows, count)

        assert codec.whole_keys(6) == [(1, 48), (2, 16), (1, 16)]
        codec.whole_graphs.graphs = {key: Replay(run, key) for key in ((4, 16), (1, 48))}
        requests = [
            ask(tts, i, prefix, n)
            for i, (prefix, n) in enumerate([(0, 1), (7, 5), (7, 6), (9, 6), (13, 42)])
        ]
        streams = [tts.submit(request, streaming=False) for request in requests]
        for request, stream in zip(requests, streams, strict=True):
            samples, frames, _ = heard(stream)
            np.testing.assert_allclose(samples, want(tts, request, frames, grid=1000), atol=1e-6)
        assert set(calls) == {(4, 16)}
        assert codec.whole_graphs.eager_calls == 1


def test_a_codec_without_chunks_gives_a_stream_when_it_has_ended() -> None:
    """And nothing is decoded before, for no voice."""
    with TTS("dummy:toy-whole", max_num_seqs=3, **SMALL) as tts:
        requests = [
            ask(tts, i, prefix, n) for i, (prefix, n) in enumerate([(0, 1), (7, 12), (13, 30)])
        ]
        streams = [tts.submit(request) for request in requests]
        for request, stream in zip(requests, streams, strict=True):
            samples, frames, counts = heard(stream)
            assert counts == [request.options["max_frames"]]
            np.testing.assert_allclose(samples, want(tts, request, frames, grid=1000), atol=1e-6)
        assert tts.engine.primer.sizes == []
        assert tts.engine.codec.graph_keys(3) == []


@pytest.mark.parametrize("prefix", [0, 6])
def test_hidden_frames_are_generated_and_counted_but_given_to_nobody(tts: TTS, prefix: int) -> None:
    """The language model goes on as if they were heard, and the codec as if they did not exist."""
    stats, asked = tts.engine.stats, [(i, hide) for i in range(3) for hide in (0, 4, 12, BOOK)]
    before = stats.frames
    streams = {of: tts.submit(ask(tts, of[0], prefix, 18, of[1])) for of in asked}
    found = {of: heard(stream) for of, stream in streams.items()}
    counts = []
    for (i, hide), (samples, frames, _) in found.items():
        all_frames = found[i, 0][1]
        assert len(all_frames) == 18
        np.testing.assert_allclose(frames, all_frames[all_frames[:, LATENT + 1] >= hide], atol=1e-9)
        if len(frames):
            np.testing.assert_allclose(
                samples, want(tts, ask(tts, i, prefix, 18, hide), frames), atol=1e-6
            )
        counts.append(len(frames))
    assert 0 in counts
    assert len(set(counts)) > 3
    assert stats.frames - before == sum(counts)


def test_a_preempted_stream_goes_on_with_its_codec_state() -> None:
    with TTS(
        "dummy:toy-lookahead", max_num_seqs=3, page_size=4, policy=Policy(reserve_tokens=1), **SMALL
    ) as tts:
        requests = [ask(tts, i, 7, 40, 4 * i) for i in range(3)]
        need = tts.engine.scheduler.pages.pages_for(tts.prompt(requests[0]).length + 40)
        tts.engine.scheduler.pages.allocate(tts.engine.scheduler.pages.available - need - 4)
        streams = [tts.submit(request) for request in requests]
        for request, stream in zip(requests, streams, strict=True):
            samples, frames, _ = heard(stream)
            np.testing.assert_allclose(samples, want(tts, request, frames), atol=1e-6)
        assert tts.engine.health().preemptions


def test_a_parked_stream_gets_its_codec_state_and_pages_back() -> None:
    policy = Policy(max_unread=0.1)
    with TTS("dummy:toy-lookahead", max_num_seqs=1, policy=policy, **SMALL) as tts:
        codec, saved = tts.engine.codec, []
        save = codec.save
        codec.save = lambda seq: saved.append(codec.pages.held(seq.slot)) or save(seq)
        requests = [ask(tts, i, 11, 40) for i in range(2)]
        streams = [tts.submit(request) for request in requests]
        for request, stream in reversed(
            [*zip(requests, streams, strict=True)]
        ):  # nobody reads the first until then
            samples, frames, _ = heard(stream)
            np.testing.assert_allclose(samples, want(tts, request, frames), atol=1e-6)
        assert len(saved) == 1
        assert len(saved[0].prefix) == 2
        assert saved[0].own


def test_captured_calls_of_fixed_sizes_give_the_same_audio() -> None:
    with TTS("dummy:toy-lookahead", max_num_seqs=6, **SMALL) as tts:
        codec = tts.engine.codec
        keys = codec.graph_keys(6)
        assert {n for _, n in keys} == {GRID, 2 * GRID}
        with torch.inference_mode():
            for key in keys:  # as a capture does, before there is a request
                codec.graphs.fn(*key)
        codec.graphs.graphs = {
            key: SimpleNamespace(replay=lambda key=key: codec.graphs.fn(*key)) for key in keys
        }
        requests = [ask(tts, i, 5 + i, 21 + i, i) for i in range(6)]
        for request, stream in zip(requests, [tts.submit(r) for r in requests], strict=True):
            samples, frames, _ = heard(stream)
            np.testing.assert_allclose(samples, want(tts, request, frames), atol=1e-6)
        assert codec.graphs.eager_calls == 0


def test_a_voice_is_primed_once_by_its_conditions_and_prefix(tts: TTS) -> None:
    before = tts.engine.primer.counts().misses
    made = [tts.prompt(ask(tts, 3, 9, 4)) for _ in range(2)]
    assert made[0].codec_state is made[1].codec_state
    assert tts.engine.primer.counts().misses - before <= 1
    other = tts.prompt(ask(tts, 3, 9, 4))
    other.voice, other.codec_conditions = (
        "other",
        {**other.codec_conditions, "speaker": np.ones(3, np.float32)},
    )
    assert not torch.equal(tts.engine.primer.claim(other).result(), made[0].codec_state)


def test_streams_of_a_voice_share_its_pages_and_hold_no_more_than_the_window(tts: TTS) -> None:
    pages = tts.engine.codec.pages
    for i in range(2):
        list(tts.submit(ask(tts, 3 * i, 11, 30)))
    together = [tts.submit(ask(tts, 3 * i, 11, 30)) for i in range(4)]
    for stream in together:
        list(stream)
    held = [pages.held(slot) for slot in range(6)]
    assert len({tuple(h.prefix) for h in held if h.prefix}) == 1
    assert all(len(h.all) <= PAGES for h in held)
    own = [page for h in held for page in h.own]
    assert len(own) == len(set(own))


def test_prefix_pages_that_were_taken_are_loaded_again() -> None:
    columns = {"kv": Column((3,), torch.float64), "n": Column((2,), torch.float32)}
    pages = CodecPages(columns, CodecTiming(2, 1, window=3), 2, Device("cpu"))
    source = CodecPages(columns, CodecTiming(2, 1, window=3), 1, Device("cpu"))
    source.enter(0, 0, "", torch.empty(0))
    for at in (0, 2):
        table, filled = source.row(0, at, 2)
        source.pool["kv"][table[filled]], source.pool["n"][table[filled]] = 1.0 + at, 2.0 + at
    words = torch.cat(source.save(0))
    for voice in ("a", "b", "a", "c", "d", "a"):
        pages.enter(0, 5, voice, words)
        pages.enter(1, 5, voice, words)
        first, second = pages.held(0), pages.held(1)
        assert first.prefix == second.prefix
        assert pages.pool["kv"][first.prefix, 0].tolist() == [1, 3]
        assert pages.pool["n"][first.prefix, 1].tolist() == [2, 4]
    held, saved = pages.held(1), torch.cat(pages.save(1))
    pages.restore(0, held, saved)
    assert pages.pool["kv"][pages.held(0).prefix, 0].tolist() == [1, 3]
    assert not {*pages.held(0).all} & {*held.all}


def test_pages_whose_copy_fails_are_free_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are as many as all slots need, so one that is lost would be missed by another stream."""
    pages = CodecPages(
        {"kv": Column((1,), torch.int64)}, CodecTiming(4, 3, window=3), 1, Device("cpu")
    )
    words = torch.tensor([5, 6])
    plain = pages.device.upload

    def full(*_: object) -> None:
        raise torch.OutOfMemoryError("no room")

    for _ in range(3):
        monkeypatch.setattr(pages.device, "upload", full)
        with pytest.raises(torch.OutOfMemoryError):
            pages.enter(0, 11, "voice", words)
        with pytest.raises(torch.OutOfMemoryError):
            pages.restore(0, SlotPages(0, [0, 1]), words)
        assert pages.pages.available == 3
        monkeypatch.setattr(pages.device, "upload", plain)
    pages.enter(0, 11, "voice", words)
    assert pages.pool["kv"][pages.held(0).all, 0].tolist() == [5, 6]


def test_a_chunk_finds_its_page_however_often_it_is_asked_for() -> None:
    pages = CodecPages(
        {"kv": Column((1,), torch.int64)}, CodecTiming(4, 3, window=3), 1, Device("cpu")
    )
    pages.enter(0, 5, "voice", torch.zeros(0, dtype=torch.int64))
    tables = [pages.row(0, start, 4) for start in (-5, -1, 3, 7, 7, 3)]
    a, b, c = pages.held(0).own
    none = pages.padding
    assert tables[:3] == [([a, none, none], 0), ([a, b, none], 1), ([a, b, c], 2)]
    assert tables[3:] == [([b, c, a], 2), ([b, c, a], 2), ([a, b, c], 2)]


def test_the_memory_plan_counts_pages_and_says_what_is_cut(tts: TTS) -> None:
    sizes, page = tts.engine.sizes, 2 * GRID * 8 * 4
    assert sizes.codec_page_bytes == (6 * PAGES + 2) * page
    assert (
        "the codec's pages, for the last 0.2 s of each stream and its voice (1 MiB)"
        in sizes.describe()
    )
    plain = make_spec(torch.float64)
    assert plain.codec_timing.window == 0


def test_a_chunk_brings_the_audio_that_is_owed_and_owes_its_own() -> None:
    assert list(TIMING.audio(0, 4, last=False)) == [0, 1]
    assert list(TIMING.audio(4, 4, last=False)) == [2, 3, 4, 5]
    assert list(TIMING.audio(8, 3, last=True)) == [6, 7, 8, 9, 10]
    assert list(TIMING.audio(-3, 4, last=False)) == []
    assert list(TIMING.audio(-5, 4, last=True)) == []
    assert [TIMING.offset(n) for n in range(12)] == [0, 1, 2, 3, 4, 5, 6, 3, 4, 5, 6, 3]


def test_a_delay_without_look_ahead_is_refused() -> None:
    with pytest.raises(AssertionError, match="needs a look-ahead"):
        CodecTiming(delay=1)


def test_chunks_lie_on_the_grid_behind_the_prefix_and_wait_for_their_look_ahead() -> None:
    assert chunk_sizes(Policy(ramp=(1, 2, 5), chunk=9), CodecTiming(GRID, LOOKAHEAD)) == (
        8,
        (4, 4, 8),
    )
    s = scheduler(timing=TIMING, ramp=(1, 2, 4), chunk=9)
    assert (s.audio.chunk, s.audio.ramp) == (4, (4, 4, 4))
    d = FakeDevice(s)
    seq = d.add(0, 4, 21)
    seq.audio_scheduled, seq.held_frames = -6, TIMING.held
    while not d.chunks:
        d.step()
    assert d.chunks[0] == [(-6, 4)]
    assert seq.num_generated <= 2
    d.run()
    assert d.chunks[0] == [(-6, 4), (-2, 4), (2, 4), (6, 4), (10, 4), (14, 4), (18, 3)]
    assert seq.audio_delivered == 21
    assert all_free(s, 4)


def test_a_stream_without_frames_calls_no_codec() -> None:
    s = scheduler(timing=TIMING)
    d = SlowCodec(s)
    seq = d.add(0, 4, 9)
    seq.audio_scheduled, seq.held_frames = -5, TIMING.held
    d.step()
    seq.num_generated, seq.status = 0, STOPPED
    s.audio.look_at(seq)
    assert s.audio.plan(0.0) == []
    assert seq.decoded


def test_a_stream_that_waits_for_text_is_idle_with_frames_that_wait_for_others() -> None:
    s = scheduler(timing=TIMING, ramp=(4,), chunk=8)
    d = FakeDevice(s)
    seq = d.add(0, 4, 40)
    seq.held_frames, seq.max_schedulable = TIMING.held, 10
    for _ in range(20):
        d.step()
    assert seq.num_generated == 10
    assert seq.audio_scheduled == 4  # the next chunk needs 8 + 3
    assert seq.idle
    seq.max_schedulable = 11
    for _ in range(3):
        d.step()
    assert seq.audio_scheduled == 8


def test_buffered_seconds_are_those_of_decoded_chunks() -> None:
    audio = AudioScheduler(Policy(), TIMING)
    seq = SimpleNamespace(audio_scheduled=0, hop_seconds=1.0)
    assert [audio.seconds(seq, n) for n in (0, 6, 7, 10, 11)] == [0, 0, 2, 2, 6]
    plain = AudioScheduler(Policy())
    assert [plain.seconds(seq, n) for n in (0, 1, 7)] == [0, 1, 7]
    job = AudioJob(seq, 4, 4, False)
    assert list(TIMING.audio(job.start, job.count, job.last)) == [2, 3, 4, 5]


def test_a_prefill_waits_for_clients_that_play_and_not_for_first_chunks_that_have_just_begun() -> (
    None
):
    d = FakeDevice(scheduler(slots=5, pages=256, timing=CodecTiming(25, 3, 3)))
    first = d.add(0, 4, 80)
    for _ in range(6):
        d.step()
    assert (first.num_generated, first.first_audio) == (6, None)
    second = d.add(1, 4, 80)
    assert d.step().prefill == [second]
    while first.num_generated < 12:
        d.step()
    third = d.add(2, 4, 80)
    assert d.step().prefill == []
    while third.phase is Phase.QUEUED:
        d.step()
    assert first.first_audio is not None
    d.now += 22 * first.hop_seconds  # what has come has been played
    fourth = d.add(3, 4, 80)
    assert d.step().prefill == []
    assert fourth.phase is Phase.QUEUED


def test_chunks_that_are_due_while_a_codec_with_a_grid_works_go_together() -> None:
    s = scheduler(slots=4, pages=256, timing=TIMING)
    d = SlowCodec(s)
    d.add(0, 4, 200)
    while not d.given:
        d.step()
    for i in (1, 2, 3):
        d.add(i, 4, 200)
    for _ in range(5 * GRID):
        assert d.step().audio == []
    assert len(d.given) == 1
    d.answer(1)
    assert {job.seq.id for job in d.step().audio} == {0, 1, 2, 3}


def test_a_full_call_goes_behind_the_one_that_a_codec_with_a_grid_works_on() -> None:
    """Encode four cells, since the codec holds eight. A third call waits."""
    s = scheduler(slots=8, pages=512, timing=TIMING, max_frames_in_codec=8 * GRID)
    d = SlowCodec(s)
    for i in range(5):
        d.add(i, 4, 200)
    while not d.given:
        d.step()
    for _ in range(9 * GRID):
        d.step()
        assert [job.seq.id for job in d.given] in ([0, 1, 2, 3], [0, 1, 2, 3, 4, 0, 1, 2])
    assert len(d.given) == 8
    d.answer(4)
    assert [job.seq.id for job in d.step().audio] == [3, 4, 0, 1]


def test_utterances_do_not_go_behind_a_call_of_streams() -> None:
    s = scheduler(
        slots=8, pages=512, timing=replace(TIMING, whole=True), max_frames_in_codec=2 * GRID
    )
    d = SlowCodec(s)
    d.add(0, 4, 2 * GRID)
    while not d.given:
        d.step()
    d.add(1, 4, 3 * GRID, streaming=False)
    for _ in range(9 * GRID):
        assert all(not job.whole for job in d.step().audio)
    assert all(job.seq.id == 0 for job in d.given)
    d.answer(len(d.given))
    assert [job.whole for job in d.step().audio] == [True]


def calls_of_two(last: int) -> list[list[int]]:
    """Calls of two streams, the second two steps behind the first and of `last` frames that may be made. The codec
    answers at once."""
    s = scheduler(slots=8, pages=512, timing=TIMING, max_frames_in_codec=8 * GRID)
    d, calls = SlowCodec(s), []
    d.add(0, 4, 200)
    for step in range(200):
        if step == 2:
            d.add(1, 4, 200).max_schedulable = last
        if jobs := d.step().audio:
            calls.append(sorted(job.seq.id for job in jobs))
            d.answer(len(d.given))
    return calls


@pytest.mark.parametrize(("gap", "first"), [(1, 5), (2, 3), (6, 1)])
def test_streams_that_begin_few_frames_apart_share_their_first_call_and_all_after_it(
    gap: int, first: int
) -> None:
    """No chunk waits for longer than five frames."""
    grid = 12
    s = scheduler(
        slots=8, pages=512, timing=replace(TIMING, grid=grid), max_frames_in_codec=16 * grid
    )
    d, calls = SlowCodec(s), []
    for step in range(grid + LOOKAHEAD + 5 + 2 * grid):
        if step % gap == 0 and step // gap < first:
            d.add(step // gap, 4, 200)
        for job in d.step().audio:
            assert job.seq.num_generated - (job.start + job.count + LOOKAHEAD) <= 5
            calls.append((step, job.seq.id))
        d.answer(len(d.given))
    together = [
        sorted(id for at, id in calls if at == step)
        for step in dict.fromkeys(at for at, _ in calls)
    ]
    assert together == [[*range(first)]] * 3


def test_streams_that_are_few_frames_apart_go_together_once_their_clients_have_audio() -> None:
    calls = calls_of_two(200)
    assert calls[0] == [0], "nobody waits for a stream that has just begun"
    apart = [ids != [0, 1] for ids in calls]
    assert not any(apart[12:])
    assert len(calls) > 30


def test_no_stream_waits_for_one_that_does_not_go_on() -> None:
    calls = calls_of_two(5 * GRID + LOOKAHEAD - 1)
    assert sum(1 in ids for ids in calls) == 4
    assert sum(0 in ids for ids in calls) > 40
