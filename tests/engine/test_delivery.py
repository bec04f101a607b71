"""Audio reaches its stream as soon as it exists, whatever else the device is busy with."""

import threading
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from stentor import TTS, EngineError
from stentor.config import Policy
from stentor.engine import delivery
from stentor.engine.delivery import FIRST_POLL_SECONDS, POLL_SECONDS, AudioDelivery
from stentor.engine.launcher import Launcher
from stentor.engine.running.codec_runner import InFlightAudio
from stentor.engine.running.model_runner import InFlightStep, ModelRunner
from stentor.engine.running.prefill_batch import Group
from stentor.engine.scheduling.audio_scheduler import AudioJob
from stentor.engine.scheduling.sequence import Sequence
from stentor.engine.stream import Chunk, Outbox
from tests.helpers.patience import STUCK_S
from tests.helpers.stepped_engine import hold


class Late:
    """An event of a device that is as slow as the test wants."""

    def __init__(self, until: threading.Event) -> None:
        self.until = until

    def ready(self) -> bool:
        return self.until.is_set()

    def wait_host(self) -> None:
        assert self.until.wait(STUCK_S)


def test_a_first_chunk_is_delivered_while_the_next_step_still_runs(monkeypatch: pytest.MonkeyPatch):
    """The codec has it ready only after that step was launched. The step ends only after the chunk was delivered."""
    delivered, launched = threading.Event(), threading.Event()
    plain_decode, plain_audio = ModelRunner.decode, Launcher.audio

    def audio(self: Launcher, jobs: list[AudioJob]) -> list[InFlightAudio]:
        calls = plain_audio(self, jobs)
        if calls:
            launched.clear()
        for step in calls:
            step.finished = Late(launched)
        return calls

    def decode(self: ModelRunner, sequences: list[Sequence]) -> InFlightStep:
        step = plain_decode(self, sequences)
        step.finished = Late(delivered)
        launched.set()
        return step

    with TTS("dummy:toy", max_num_seqs=2, memory_gb=0.002, overlap_steps=1) as tts:
        monkeypatch.setattr(Launcher, "audio", audio)
        monkeypatch.setattr(ModelRunner, "decode", decode)
        chunks = iter(tts.submit(tts.request("hello", seed=1, max_frames=8, min_frames=8)))
        first: list[Chunk] = []
        reader = threading.Thread(target=lambda: first.append(next(chunks)))
        reader.start()
        reader.join(STUCK_S)
        came = len(first)
        delivered.set()
        reader.join()
        monkeypatch.undo()
        launched.set()
        rest = list(chunks)
    assert came == 1, "the first chunk waited for a step that it does not need"
    assert len(first[0].frames) == 1
    assert sum(len(c.frames) for c in rest) == 7


def test_a_request_is_admitted_while_all_others_wait_for_the_codec(monkeypatch: pytest.MonkeyPatch):
    decoded, launched, admitted = threading.Event(), threading.Event(), threading.Event()
    plain_audio, plain_admit = Launcher.audio, ModelRunner.admit

    def audio(self: Launcher, jobs: list[AudioJob]) -> list[InFlightAudio]:
        calls = plain_audio(self, jobs)
        for call in calls:
            call.finished = Late(decoded)
            launched.set()
        return calls

    def admit(*given: Any) -> None:
        plain_admit(*given)
        admitted.set()

    with TTS("dummy:toy", max_num_seqs=2, memory_gb=0.002) as tts:
        monkeypatch.setattr(Launcher, "audio", audio)
        first = tts.submit(tts.request("hello", seed=1, max_frames=1, min_frames=1))
        assert launched.wait(STUCK_S)
        time.sleep(0.05)  # so that the engine has nothing left to do but to wait
        monkeypatch.setattr(ModelRunner, "admit", admit)
        second = tts.submit(tts.request("hello", seed=2, max_frames=1, min_frames=1))
        came = admitted.wait(STUCK_S / 10)
        decoded.set()
        assert came, "a request waited for the audio of another"
        assert [sum(len(c.frames) for c in stream) for stream in (first, second)] == [1, 1]


def test_the_codec_has_a_first_frame_before_the_host_has_read_of_it(
    monkeypatch: pytest.MonkeyPatch,
):
    decoding = threading.Event()
    plain_prefill = ModelRunner.prefill

    def prefill(self: ModelRunner, group: Group) -> InFlightStep:
        step = plain_prefill(self, group)
        step.finished = Late(decoding)
        return step

    with TTS("dummy:toy", max_num_seqs=2, memory_gb=0.002, overlap_steps=1) as tts:
        monkeypatch.setattr(ModelRunner, "prefill", prefill)
        graphs = tts.engine.codec.graphs
        plain = graphs.fn
        monkeypatch.setattr(graphs, "fn", lambda *key: (plain(*key), decoding.set()))
        streamed = list(tts.submit(tts.request("hello", seed=1, max_frames=8, min_frames=8)))
        monkeypatch.undo()
        whole = tts.generate("hello", seed=1, max_frames=8, min_frames=8, retries=1)
    np.testing.assert_allclose(
        np.concatenate([c.samples for c in streamed]), whole.samples, atol=1e-6
    )


@pytest.mark.parametrize("frames", [1, 2, 8])
def test_streams_that_begin_while_none_runs_equal_those_in_a_batch(frames: int):
    """The first of three begins alone. Several that begin together share a call. A cancelled one's state is reset."""
    options = {"max_frames": frames, "min_frames": frames}
    with TTS("dummy:toy", dtype="float64", max_num_seqs=3, memory_gb=0.002) as tts:
        whole = [tts.generate("hello", seed=seed, retries=1, **options) for seed in range(3)]
        cancelled = tts.submit(tts.request("gone", seed=9, max_frames=8, min_frames=8))
        next(iter(cancelled))
        cancelled.cancel()
        for _ in range(3):
            streams = [tts.submit(tts.request("hello", seed=seed, **options)) for seed in range(3)]
            for stream, want in zip(streams, whole, strict=True):
                got = np.concatenate([c.samples for c in stream])
                np.testing.assert_allclose(got, want.samples, atol=1e-6)
        assert not tts.engine.codec._first_frames


def test_a_first_chunk_is_delivered_while_the_next_prefill_still_runs(
    monkeypatch: pytest.MonkeyPatch,
):
    """The first prefill ends when the second has been launched, the second when the first chunk was delivered."""
    delivered, second = threading.Event(), threading.Event()
    launched: list[InFlightStep] = []
    plain = ModelRunner.prefill

    def prefill(self: ModelRunner, group: Group) -> InFlightStep:
        step = plain(self, group)
        launched.append(step)
        step.finished = Late(delivered if len(launched) > 1 else second)
        if len(launched) > 1:
            second.set()
        return step

    with TTS(
        "dummy:toy",
        max_num_seqs=2,
        memory_gb=0.002,
        overlap_steps=1,
        policy=Policy(max_prefill_tokens=len("hello"), max_prefill_delay=0),
    ) as tts:
        monkeypatch.setattr(ModelRunner, "prefill", prefill)
        both = threading.Event()
        hold(tts)(both)  # neither is seen before the other
        streams = [
            tts.submit(tts.request("hello", seed=i, max_frames=8, min_frames=8)) for i in range(2)
        ]
        both.set()
        first: list[Chunk] = []
        reader = threading.Thread(target=lambda: first.append(next(iter(streams[0]))))
        reader.start()
        reader.join(STUCK_S)
        came = len(first)
        delivered.set()
        reader.join()
        assert sum(len(c.frames) for c in streams[0]) == 7
        assert sum(len(c.frames) for c in streams[1]) == 8
    assert came == 1, "the first chunk waited for a prefill that it does not need"


def test_requests_that_arrive_while_one_runs_equal_those_alone_whichever_is_cancelled():
    """Their first frames are decoded behind their prefill by one call, before the host has read that they exist."""
    options = {"max_frames": 9, "min_frames": 9}
    with TTS("dummy:toy", dtype="float64", max_num_seqs=8, memory_gb=0.002, overlap_steps=1) as tts:
        whole = [tts.generate("hello", seed=seed, retries=1, **options) for seed in range(7)]
        calls: list[int] = []
        plain = tts.engine.codec.decode_first_frames

        def decode_first_frames(sequences: list[Sequence]) -> None:
            calls.append(len(sequences))
            plain(sequences)

        tts.engine.codec.decode_first_frames = decode_first_frames  # type: ignore[method-assign]
        holding = hold(tts)
        for _ in range(4):
            streams = [tts.submit(tts.request("hello", seed=0, **options))]
            got = [[next(iter(streams[0]))]]
            all_there = threading.Event()
            holding(all_there)
            streams += [
                tts.submit(tts.request("hello", seed=seed, **options)) for seed in range(1, 7)
            ]
            all_there.set()
            streams[1].cancel()
            got += [[next(iter(stream))] for stream in streams[1:]]
            streams[2].cancel()
            for seed, stream in enumerate(streams):
                if got[seed][-1].finish is None:
                    got[seed] += stream
                samples = np.concatenate([c.samples for c in got[seed]])
                if seed not in (1, 2):
                    assert len(samples) == len(whole[seed].samples)
                np.testing.assert_allclose(samples, whole[seed].samples[: len(samples)], atol=1e-6)
    assert max(calls) > 1


@pytest.mark.parametrize(("error", "ended"), [(torch.OutOfMemoryError, 1), (RuntimeError, 4)])
def test_a_failed_prefill_of_several_leaves_the_first_chunks_of_others_right(
    monkeypatch: pytest.MonkeyPatch, error: type[Exception], ended: int
):
    """Where memory runs out its halves are tried. Those that have the culprit in theirs end with it."""
    options = {"max_frames": 9, "min_frames": 9}
    plain = ModelRunner.prefill

    def prefill(self: ModelRunner, group: Group) -> InFlightStep:
        if any(prompt.columns["temperature"] == 0.25 for _, prompt in group):
            raise error("no room for this")
        return plain(self, group)

    with TTS("dummy:toy", dtype="float64", max_num_seqs=8, memory_gb=0.002, overlap_steps=1) as tts:
        whole = [tts.generate("hello", seed=seed, retries=1, **options) for seed in range(4)]
        monkeypatch.setattr(ModelRunner, "prefill", prefill)
        all_there = threading.Event()
        hold(tts)(all_there)
        bad = tts.submit(tts.request("hello", seed=9, temperature=0.25, **options))
        streams = [tts.submit(tts.request("hello", seed=seed, **options)) for seed in range(4)]
        all_there.set()
        for stream in (bad, *streams[:ended]):
            with pytest.raises(Exception, match="no room for this"):
                list(stream)
        for stream, want in list(zip(streams, whole, strict=True))[ended:]:
            np.testing.assert_allclose(
                np.concatenate([c.samples for c in stream]), want.samples, atol=1e-6
            )


def test_samples_that_are_not_finite_fail_their_request_and_no_other(
    monkeypatch: pytest.MonkeyPatch,
):
    with TTS("dummy:toy", dtype="float64", max_num_seqs=2, memory_gb=0.002) as tts:
        codec = tts.engine.model.codec
        plain = codec.decode

        def decode(frames, state, call):
            samples, new = plain(frames, state, call)
            return torch.where(frames[:, :1, 0] > 1e6, float("nan"), samples), new

        monkeypatch.setattr(codec, "decode", decode)
        wrong, right = (
            tts.prompt(tts.request("hello", seed=1, max_frames=9, min_frames=9)) for _ in range(2)
        )
        wrong.columns["temperature"] = 1e9
        streams = [tts.engine.submit(p, 1, streaming=True) for p in (wrong, right)]
        with pytest.raises(EngineError, match="not finite"):
            list(streams[0])
        assert np.isfinite(np.concatenate([c.samples for c in streams[1]])).all()


def test_a_chunk_holds_its_own_memory():
    with TTS("dummy:toy", dtype="float64", max_num_seqs=2, memory_gb=0.002) as tts:
        req = tts.request("hello", seed=1, max_frames=30, min_frames=30)
        for chunk in tts.submit(req):
            assert chunk.samples.base is None
            assert chunk.frames.base is None


@pytest.mark.parametrize("streaming", [True, False])
def test_a_request_is_counted_before_its_last_chunk_is_out(
    monkeypatch: pytest.MonkeyPatch, streaming: bool
):
    counted = []
    plain = Outbox.put

    def put(outbox: Outbox, event: Any) -> None:
        if isinstance(event, Chunk) and event.finish is not None:
            counted.append(tts.engine.stats.finished)
        plain(outbox, event)

    monkeypatch.setattr(Outbox, "put", put)
    with TTS("dummy:toy", max_num_seqs=1, memory_gb=0.001) as tts:
        for _ in range(2):
            list(
                tts.submit(
                    tts.request("hello", seed=1, max_frames=5, min_frames=5), streaming=streaming
                )
            )
    assert counted == [1, 2]


def test_arrays_of_a_stream_are_its_own():
    with TTS("dummy:toy", max_num_seqs=2, memory_gb=0.002) as tts:
        for chunk in tts.submit(tts.request("hello", seed=1, max_frames=8, min_frames=8)):
            assert chunk.samples.base is None  # not the output of a codec call
            assert chunk.frames.base is None


@pytest.mark.parametrize("last", [False, True])
def test_audio_for_which_the_host_has_no_memory_ends_its_request_alone(
    monkeypatch: pytest.MonkeyPatch, last: bool
):
    failed: list[Chunk] = []
    plain = Chunk.copied

    def copied(self: Chunk) -> Chunk:
        if not failed and (self.finish is not None) == last:
            failed.append(self)
            raise MemoryError
        return plain(self)

    with TTS("dummy:toy", max_num_seqs=2, memory_gb=0.002) as tts:
        monkeypatch.setattr(Chunk, "copied", copied)
        streams = [
            tts.submit(tts.request("hello", seed=i, max_frames=8, min_frames=8)) for i in range(2)
        ]
        ended = []
        for stream in streams:
            try:
                ended.append(sum(len(c.frames) for c in stream))
            except EngineError as e:
                ended.append(str(e))
        assert sorted(map(str, ended)) == ["8", "the host has no memory for the audio"]
        assert len(tts.generate("again", max_frames=3).frames) == 3
        assert tts.engine.health().alive


def test_audio_is_handed_out_between_writing_rows_and_launching_the_step(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with TTS("dummy:toy", memory_gb=0.01, max_num_seqs=4) as tts:
        order: list[str] = []

        def noting(name: str, call: Callable[..., Any]) -> Callable[..., Any]:
            def noted(*given: Any) -> Any:
                order.append(name)
                return call(*given)

            return noted

        monkeypatch.setattr(Launcher, "write", noting("write", Launcher.write))
        monkeypatch.setattr(AudioDelivery, "ready", noting("ready", AudioDelivery.ready))
        monkeypatch.setattr(Launcher, "step", noting("step", Launcher.step))
        tts.generate("hello", max_frames=3)
    at = order.index("write")
    assert order[at : at + 3] == ["write", "ready", "step"]


@pytest.mark.parametrize(("start", "seconds"), [(0, FIRST_POLL_SECONDS), (3, POLL_SECONDS)])
def test_a_first_chunk_is_polled_more_often_than_others(
    start: int, seconds: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert FIRST_POLL_SECONDS < POLL_SECONDS
    pauses: list[float] = []
    ended = threading.Event()
    waits: Any = SimpleNamespace(finished=Late(ended))

    def pause(seconds: float) -> None:
        pauses.append(seconds)
        ended.set()

    monkeypatch.setattr(delivery.time, "sleep", pause)
    nothing: Any = SimpleNamespace(flush=lambda: None)
    spec: Any = SimpleNamespace(hop=1, codec_skip=0, codec_timing=SimpleNamespace(late=0))
    audio = AudioDelivery(nothing, nothing, nothing, spec, lambda jobs, error: None)
    job = AudioJob(None, start, 1, last=False, reads=1)  # type: ignore[arg-type]
    call: Any = SimpleNamespace(finished=Late(threading.Event()), jobs=[job])
    audio.add([call])
    audio.until(waits)
    assert pauses == [seconds]
