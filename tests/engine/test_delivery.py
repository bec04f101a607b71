"""Audio reaches its listener as soon as it exists, whatever else the device is busy with."""

import threading

import numpy as np
import pytest

from stentor import TTS
from stentor.engine.packing import Group
from stentor.engine.scheduler import AudioJob
from stentor.engine.sequence import Sequence
from stentor.engine.stream import Chunk
from stentor.engine.worker import AudioTicket, Ticket, Worker


class Late:
    """An event of a device that is as slow as the test wants."""

    def __init__(self, until: threading.Event) -> None:
        self.until = until

    def ready(self) -> bool:
        return self.until.is_set()

    def wait_host(self) -> None:
        assert self.until.wait(10)


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

    with TTS("dummy:toy", slots=2, memory_gb=0.002, lag=1) as tts:
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

    with TTS("dummy:toy", slots=2, memory_gb=0.002, lag=1) as tts:
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
    with TTS("dummy:toy", dtype="float64", slots=3, memory_gb=0.002) as tts:
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
