"""A message reaches the engine's thread or its caller is told at once, and a stream that was handed out always ends."""

import os
import threading
from collections.abc import Callable
from functools import partial
from typing import Any, cast

import numpy as np
import pytest
import torch

from stentor import TTS, EngineError
from stentor.config import Policy
from stentor.engine.launcher import Launcher
from stentor.engine.requests import Inbox
from stentor.engine.stream import AppendText, AudioStream, Cancel, Chunk, LoopNotifier, Outbox
from tests.helpers.child import python
from tests.helpers.patience import STUCK_S
from tests.helpers.stepped_engine import stepped_engines


def toy(**engine: Any) -> TTS:
    return TTS("dummy:toy", dtype="float64", max_num_seqs=2, memory_gb=0.002, **engine)


def outbox(inbox: Inbox) -> Outbox:
    return Outbox(LoopNotifier())


def test_what_was_put_before_the_inbox_closed_is_found_and_what_comes_after_is_refused():
    inbox = Inbox()
    message = Cancel(outbox(inbox))
    inbox.put(message)
    inbox.close("closed")
    with pytest.raises(EngineError, match="stopped: closed"):
        inbox.put(message)
    assert inbox.rest() == [message]


def test_the_first_reason_stays():
    inbox = Inbox()
    inbox.close("out of memory")
    inbox.close("closed")
    assert inbox.refusal == "out of memory"


def test_every_message_is_either_found_or_refused_while_another_thread_closes():
    for _ in range(50):
        inbox, refused, ready = Inbox(), [], threading.Barrier(2)

        def send(inbox=inbox, refused=refused, ready=ready) -> None:
            ready.wait()
            for _ in range(100):
                try:
                    inbox.put(Cancel(outbox(inbox)))
                except EngineError:
                    refused.append(1)

        sender = threading.Thread(target=send)
        sender.start()
        ready.wait()
        inbox.close("closed")
        found = len(inbox.rest())  # nothing that comes later is taken
        sender.join()
        assert inbox.rest() == []
        assert found + len(refused) == 100


@pytest.mark.parametrize("at", [1, 2])
def test_a_close_between_the_inboxs_check_and_its_queue_loses_no_message(
    monkeypatch: pytest.MonkeyPatch, at: int
):
    inbox, found, checks = Inbox(), list[object](), 0
    message, plain = Cancel(outbox(inbox)), inbox.check

    def close() -> None:
        inbox.close("closed")
        found.extend(inbox.rest())  # as the engine's thread does, once

    closer = threading.Thread(target=close)

    def check() -> None:
        nonlocal checks
        plain()
        checks += 1
        if checks == at:
            closer.start()
            closer.join(0.2)  # it ends now, or waits until the message is in the queue

    monkeypatch.setattr(inbox, "check", check)
    refused = False
    try:
        inbox.put(message)
    except EngineError:
        refused = True
    closer.join()
    assert refused or found == [message]


def test_a_close_between_a_callers_check_and_its_message_refuses_the_request(
    monkeypatch: pytest.MonkeyPatch,
):
    tts = toy()
    plain = tts.engine.sequences.new

    def closes(*args: object) -> object:
        tts.close()
        return plain(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(tts.engine.sequences, "new", closes)
    with pytest.raises(EngineError, match="stopped"):
        tts.submit(tts.request("hello", seed=1))
    assert tts.engine.health().queued == 0


def test_a_request_that_could_not_be_handed_over_waits_for_nothing(monkeypatch: pytest.MonkeyPatch):
    def full(*_: object) -> None:
        raise MemoryError("no room for keys")

    with toy(policy=Policy(max_queue=1)) as tts:
        plain = tts.engine.sequences.new
        monkeypatch.setattr(tts.engine.sequences, "new", full)
        with pytest.raises(MemoryError):
            tts.submit(tts.request("hello", seed=1))
        assert tts.engine.health().queued == 0
        monkeypatch.setattr(tts.engine.sequences, "new", plain)
        assert list(tts.submit(tts.request("hello", seed=1)))[-1].finish is not None


def test_cancel_is_quiet_and_text_is_refused_once_the_engine_has_stopped():
    inbox = Inbox()
    inbox.close("closed")
    AudioStream(0, outbox(inbox), None, inbox.put).cancel()
    with pytest.raises(EngineError, match="stopped"):
        inbox.put(AppendText(outbox(inbox), "trail", np.zeros(1), False))


def test_a_dead_device_ends_every_stream_whatever_is_in_the_inbox(monkeypatch: pytest.MonkeyPatch):
    tts = toy()
    req = tts.request("hello", seed=1, max_frames=1000, min_frames=1000)
    running = tts.submit(req)
    next(iter(running))
    held, go = threading.Event(), threading.Event()

    def dies(*_: object) -> None:
        held.set()
        go.wait(STUCK_S)
        raise torch.AcceleratorError("the device is gone")

    monkeypatch.setattr(tts.engine.runner, "extend", dies)
    monkeypatch.setattr(tts.engine.scheduler, "plan", dies)
    assert held.wait(STUCK_S)
    late = tts.submit(req)
    tts.engine.inbox.put(AppendText(running.outbox, "trail", np.ones(1, np.int64), False))
    go.set()
    for open_stream in (running, late):
        with pytest.raises(EngineError, match="the device is gone"):
            list(open_stream)
    assert not tts.engine.health().alive
    tts.close()


def test_text_that_cannot_be_written_fails_its_request_and_no_other(
    monkeypatch: pytest.MonkeyPatch,
):
    with toy(policy=Policy(max_ahead=0.5)) as tts:  # the victim stays under way while it plays
        req = tts.request("hello", seed=1, max_frames=200, min_frames=200)
        victim, other = tts.submit(req), tts.submit(req)
        next(iter(victim))

        def full(*_: object) -> None:
            raise torch.OutOfMemoryError("full")

        monkeypatch.setattr(tts.engine.runner, "extend", full)
        tts.engine.inbox.put(AppendText(victim.outbox, "trail", np.ones(1, np.int64), False))
        with pytest.raises(EngineError, match="full"):
            list(victim)
        assert list(other)[-1].finish == "length"


def test_a_forked_child_is_told_at_once():
    with toy() as tts:
        handed_out = tts.submit(tts.request("hello", seed=1))
        read, write = os.pipe()
        child = os.fork()
        if child == 0:
            told = []
            try:
                for run in (
                    lambda: tts.generate("hello"),
                    lambda: list(handed_out),
                    handed_out.cancel,
                ):
                    try:
                        run()
                        told.append("nothing")
                    except EngineError as e:
                        told.append(str(e))
            finally:  # whatever happened: the child must not go on with the tests
                os.write(write, "\n".join(told).encode())
                os._exit(0)
        os.waitpid(child, 0)
        first, second, third = os.read(read, 10_000).decode().split("\n")
        assert "forked process" in first
        assert "forked child" in second
        assert third == "nothing"
        assert list(handed_out)[-1].finish is not None


def test_a_process_may_end_while_its_engine_speaks():
    ended = python(
        "-c",
        "import sys, stentor\n"
        "tts = stentor.TTS('dummy:toy', memory_gb=0.01, threads=1)\n"
        "stream = tts.stream('Hello there.', min_frames=2000, max_frames=2000)\n"
        "next(stream)\n"
        "sys.exit(3)",
    )
    assert (ended.returncode, ended.stderr) == (3, "")


def test_nobody_waits_any_more_when_the_device_is_lost_between_admission_and_launch(
    monkeypatch: pytest.MonkeyPatch,
):
    with stepped_engines(), toy() as tts:
        engine = tts.engine

        def dies(*_: object) -> None:
            raise torch.AcceleratorError("the device is gone")

        monkeypatch.setattr(Launcher, "audio", dies)  # before the rows of new requests are written
        stream = tts.submit(tts.request("hello", seed=1))
        engine.step(1)
        with pytest.raises(EngineError, match="the device is gone"):
            list(stream)
        assert engine.health().queued == 0


class CountedLoop:
    """An event loop that keeps what it is told from other threads."""

    def __init__(self) -> None:
        self.told: list[Callable[[], None]] = []

    def call_soon_threadsafe(self, call: Callable[..., None], *args: object) -> None:
        self.told.append(partial(call, *args))


def test_an_event_loop_is_woken_once_for_the_chunks_of_all_its_streams() -> None:
    notifier, loop, other = LoopNotifier(), CountedLoop(), CountedLoop()
    boxes = [Outbox(notifier) for _ in range(6)]
    ready = [box.wake_in(cast(Any, other if i == 5 else loop)) for i, box in enumerate(boxes)]
    chunk = Chunk(np.zeros(2, np.float32), np.zeros((1, 1)), None)
    for box in (*boxes, *boxes):
        box.put(chunk)
    assert not loop.told
    assert not other.told
    notifier.flush()
    notifier.flush()
    assert (len(loop.told), len(other.told)) == (1, 1)
    for told in (*loop.told, *other.told):
        told()
    assert all(event.is_set() for event in ready)
