"""Audio reaches its listener as soon as it exists, whatever else the device is busy with."""

import threading

import pytest

from stentor import TTS
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
