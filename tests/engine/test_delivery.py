"""Audio reaches its listener as soon as it exists, whatever else the device is busy with."""

import threading
from functools import partial

import numpy as np
import pytest

from stentor import TTS
from stentor.config import Policy
from stentor.engine.inflight import AudioTicket, Ticket
from stentor.engine.model_runner import Worker
from stentor.engine.prefill_batch import Group
from stentor.engine.scheduler import AudioJob
from stentor.engine.sequence import Sequence
from stentor.engine.stream import Chunk


class Late:
    """An event of a device that is as slow as the test wants."""

    def __init__(self, until: threading.Event) -> None:
        self.until = until

    def ready(self) -> bool:
        return self.until.is_set()

    def wait_host(self) -> None:
        assert self.until.wait(10)


def assert_set(event: threading.Event) -> None:
    assert event.wait(10)


def test_a_first_chunk_is_heard_while_the_next_step_still_runs(monkeypatch: pytest.MonkeyPatch):
    """The codec has it ready only after that step was launched; the step ends only after it was heard."""
    heard, launched = threading.Event(), threading.Event()
    plain_decode, plain_audio = Worker.decode, Worker.audio

    def audio(self: Worker, jobs: list[AudioJob]) -> list[AudioTicket]:
        tickets = plain_audio(self, jobs)
        launched.clear()
        for ticket in tickets:
            ticket.done = Late(launched)
        return tickets

    def decode(self: Worker, sequences: list[Sequence]) -> Ticket:
        ticket = plain_decode(self, sequences)
        ticket.done = Late(heard)
        launched.set()
        return ticket

    with TTS("dummy:toy", max_num_seqs=2, memory_gb=0.002, overlap_steps=1) as tts:
        monkeypatch.setattr(Worker, "audio", audio)
        monkeypatch.setattr(Worker, "decode", decode)
        chunks = iter(tts.submit(tts.request("hello", seed=1, max_frames=8, min_frames=8)))
        first: list[Chunk] = []
        reader = threading.Thread(target=lambda: first.append(next(chunks)))
        reader.start()
        reader.join(5)
        came = len(first)
        heard.set()
        reader.join()
        monkeypatch.undo()
        launched.set()
        rest = list(chunks)
    assert came == 1, "the first chunk waited for a step that it does not need"
    assert len(first[0].frames) == 1
    assert sum(len(c.frames) for c in rest) == 7


def test_the_codec_has_a_first_frame_before_the_host_has_read_of_it(monkeypatch: pytest.MonkeyPatch):
    decoding = threading.Event()
    plain_prefill, plain_codec = Worker.prefill, Worker._codec

    def prefill(self: Worker, group: Group) -> Ticket:
        ticket = plain_prefill(self, group)
        ticket.done = Late(decoding)
        return ticket

    def codec(self: Worker, batch: int, count: int) -> None:
        plain_codec(self, batch, count)
        decoding.set()

    with TTS("dummy:toy", max_num_seqs=2, memory_gb=0.002, overlap_steps=1) as tts:
        monkeypatch.setattr(Worker, "prefill", prefill)
        monkeypatch.setattr(tts.engine.worker.codec_ladder, "fn", lambda *key: codec(tts.engine.worker, *key))
        streamed = list(tts.submit(tts.request("hello", seed=1, max_frames=8, min_frames=8)))
        monkeypatch.undo()
        whole = tts.generate("hello", seed=1, max_frames=8, min_frames=8, retries=1)
    np.testing.assert_allclose(np.concatenate([c.samples for c in streamed]), whole.samples, atol=1e-6)


@pytest.mark.parametrize("frames", [1, 2, 8])
def test_streams_that_begin_while_no_one_is_served_are_as_they_would_be_in_company(frames: int):
    """The first of three begins alone; several that begin together share a call. What one cancelled leaves is reset."""
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
        assert not tts.engine.worker._ahead


def test_a_first_chunk_is_heard_while_the_next_prefill_still_runs(monkeypatch: pytest.MonkeyPatch):
    """The first prefill ends when the second has been launched, the second when the first listener has heard."""
    heard, second = threading.Event(), threading.Event()
    launched: list[Ticket] = []
    plain = Worker.prefill

    def prefill(self: Worker, group: Group) -> Ticket:
        ticket = plain(self, group)
        launched.append(ticket)
        ticket.done = Late(heard if len(launched) > 1 else second)
        if len(launched) > 1:
            second.set()
        return ticket

    with TTS(
        "dummy:toy",
        max_num_seqs=2,
        memory_gb=0.002,
        overlap_steps=1,
        policy=Policy(max_prefill_tokens=1, max_prefill_delay=0),
    ) as tts:
        monkeypatch.setattr(Worker, "prefill", prefill)
        both = threading.Event()
        tts.engine._inbox.put(partial(assert_set, both))  # neither is seen before the other
        streams = [tts.submit(tts.request("hello", seed=i, max_frames=8, min_frames=8)) for i in range(2)]
        both.set()
        first: list[Chunk] = []
        reader = threading.Thread(target=lambda: first.append(next(iter(streams[0]))))
        reader.start()
        reader.join(5)
        came = len(first)
        heard.set()
        reader.join()
        assert sum(len(c.frames) for c in streams[0]) == 7
        assert sum(len(c.frames) for c in streams[1]) == 8
    assert came == 1, "the first chunk waited for a prefill that it does not need"


def test_many_who_come_while_one_is_served_sound_as_they_do_alone_whoever_leaves():
    """Their first frames are decoded behind their prefill by one call, before anything is known of it."""
    options = {"max_frames": 9, "min_frames": 9}
    with TTS("dummy:toy", dtype="float64", max_num_seqs=8, memory_gb=0.002, overlap_steps=1) as tts:
        whole = [tts.generate("hello", seed=seed, retries=1, **options) for seed in range(7)]
        calls: list[int] = []
        plain = tts.engine.worker.audio_ahead

        def audio_ahead(sequences: list[Sequence]) -> None:
            calls.append(len(sequences))
            plain(sequences)

        tts.engine.worker.audio_ahead = audio_ahead  # type: ignore[method-assign]
        for _ in range(10):
            streams = [tts.submit(tts.request("hello", seed=0, **options))]
            got = [[next(iter(streams[0]))]]
            all_there = threading.Event()
            tts.engine._inbox.put(partial(assert_set, all_there))
            streams += [tts.submit(tts.request("hello", seed=seed, **options)) for seed in range(1, 7)]
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


def test_a_prefill_that_fails_with_company_leaves_first_chunks_of_others_right(monkeypatch: pytest.MonkeyPatch):
    """It is repeated one by one; only the culprit falls."""
    options = {"max_frames": 9, "min_frames": 9}
    plain = Worker.prefill

    def prefill(self: Worker, group: Group) -> Ticket:
        if any(prompt.columns["temperature"] == 0.25 for _, prompt in group):
            raise RuntimeError("no room for this")
        return plain(self, group)

    with TTS("dummy:toy", dtype="float64", max_num_seqs=8, memory_gb=0.002, overlap_steps=1) as tts:
        whole = [tts.generate("hello", seed=seed, retries=1, **options) for seed in range(4)]
        monkeypatch.setattr(Worker, "prefill", prefill)
        bad = tts.submit(tts.request("hello", seed=9, temperature=0.25, **options))
        streams = [tts.submit(tts.request("hello", seed=seed, **options)) for seed in range(4)]
        with pytest.raises(Exception, match="no room for this"):
            list(bad)
        for stream, want in zip(streams, whole, strict=True):
            np.testing.assert_allclose(np.concatenate([c.samples for c in stream]), want.samples, atol=1e-6)
