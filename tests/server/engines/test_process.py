"""The process of an engine, in threads of this one."""

from __future__ import annotations

import contextlib
import gc
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from stentor.engine.engine import Engine
from stentor.errors import EngineError, InvalidRequest
from stentor.server import memory
from stentor.server.config import ServerConfig
from stentor.server.engines import messages as m
from stentor.server.engines import process
from stentor.server.stop_signals import CRASHED
from tests.helpers.local_engine import factory_of
from tests.helpers.patience import STUCK_S, until


class Api:
    """An API process, as an engine's process sees it: a socket, and the events that have come from it."""

    def __init__(self) -> None:
        self.ours, self.theirs = socket.socketpair()
        self.events: list[m.Event] = []
        self.reading = threading.Thread(target=self._read, daemon=True)
        self.reading.start()

    def _read(self) -> None:
        unpacker = m.Unpacker()
        while data := self.ours.recv(1 << 16):
            for parts in unpacker.feed(data):
                self.events += m.events(parts)[0]

    def send(self, command: m.Command, descriptors: Sequence[int] = ()) -> None:
        socket.send_fds(self.ours, [m.pack(m.encode([command], ()))], descriptors)

    def of(self, kind: type[Any]) -> list[Any]:
        return [event for event in self.events if isinstance(event, kind)]

    def close(self) -> None:
        with contextlib.suppress(OSError):  # the other end may be gone
            self.ours.shutdown(socket.SHUT_RDWR)
        self.reading.join(STUCK_S)
        self.ours.close()


class Running:
    """A process that runs: its end, and the exit codes with which it would have ended."""

    def __init__(self, api: Api, ended: Future[None], codes: list[int]) -> None:
        self.api, self.ended, self.codes = api, ended, codes


Run = Callable[..., Any]


@pytest.fixture
def frozen(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """When what the process holds was frozen, which would last in this one."""
    found: list[float] = []
    monkeypatch.setattr(gc, "freeze", lambda: found.append(time.monotonic()))
    return found


@pytest.fixture
def running(monkeypatch: pytest.MonkeyPatch, frozen: list[float]) -> Run:
    """Run a process, which beats and trims as often as it can. Arguments: of TTS."""
    monkeypatch.setattr(process, "BEAT_SECONDS", 0.001)
    codes: list[int] = []
    over, health, made, load_model = (
        threading.Event(),
        Engine.health,
        list[Any](),
        process.load_model,
    )

    def known(engine: Engine) -> Any:
        found = health(engine)
        return replace(found, error="the test is over") if over.is_set() else found

    def loaded(*given: Any) -> tuple[Any, list[str]]:
        tts, lost = load_model(*given)
        made.append(tts)
        return tts, lost

    monkeypatch.setattr(Engine, "health", known)
    monkeypatch.setattr(process, "load_model", loaded)

    @contextmanager
    def run(**options: Any) -> Iterator[Running]:
        factory = factory_of(
            ServerConfig(("dummy:toy",), memory_gb=0.01, threads=1, max_num_seqs=2)
        )
        load = process.Load(
            options={**factory.options(None), **options},
            if_taken={},
            policy=factory.policy(),
            adapters={},
            warm_up=False,
            recordings_bytes=1 << 20,
            trim_seconds=0.001,
            log_level="info",
            log_format="text",
        )
        api = Api()
        with ThreadPoolExecutor(1) as pool:
            ended = pool.submit(
                lambda: process.EngineProcess(load, process.Peer(api.theirs), codes.append).run()
            )
            try:
                yield Running(api, ended, codes)
            finally:
                over.set()
                ended.exception(STUCK_S)
                api.close()
                api.theirs.close()
                for tts in made:
                    tts.close()

    return run


def test_a_process_says_that_its_model_is_ready_and_how_it_is(
    running: Run, frozen: list[float]
) -> None:
    with running() as engine:
        assert until(lambda: len(engine.api.of(m.Beat)) > 2)
        (ready,) = engine.api.of(m.Ready)
        assert (ready.info.family, ready.adapters, ready.lost) == ("toy", [], [])
        assert engine.api.of(m.Beat)[-1].health.alive
        assert len(frozen) == 1  # a full collection does not walk over the model


def test_free_memory_of_an_engine_goes_back_now_and_then(
    running: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    trims: list[float] = []
    monkeypatch.setattr(memory, "trim", lambda: trims.append(time.monotonic()))
    with running() as engine:
        assert until(lambda: len(trims) > 3)
        assert not engine.ended.done()


def test_a_process_ends_when_it_is_told_to_and_its_requests_end_before(running: Run) -> None:
    with running() as engine:
        assert until(lambda: engine.api.of(m.Ready))
        engine.api.send(m.Stop())
        assert until(lambda: engine.codes == [0])


def test_a_process_ends_with_the_api_process_that_has_started_it(running: Run) -> None:
    with running() as engine:
        assert until(lambda: engine.api.of(m.Ready))
        engine.api.ours.shutdown(socket.SHUT_WR)
        assert until(lambda: engine.codes == [0])


def test_another_api_process_is_told_of_the_model_and_nothing_ends_when_it_goes(
    running: Run,
) -> None:
    with running() as engine:
        other = Api()
        engine.api.send(m.Connect(1), [other.theirs.fileno()])
        assert until(lambda: other.of(m.Ready))
        other.theirs.close()
        other.send(m.Speakable((1 << m.API_BITS) + 7, ["Hello.", "One."]))
        assert until(lambda: other.of(m.Result))
        (result,) = other.of(m.Result)
        assert (result.call, result.speakable) == ((1 << m.API_BITS) + 7, [True, True])
        assert engine.api.of(m.Result) == []
        other.close()
        more = len(engine.api.of(m.Beat)) + 3
        assert until(lambda: len(engine.api.of(m.Beat)) > more)
        assert (engine.codes, engine.ended.done()) == ([], False)


def test_a_model_that_cannot_be_loaded_ends_its_process(running: Run, frozen: list[float]) -> None:
    with running(nonsense=3) as engine:
        with pytest.raises(InvalidRequest, match="nonsense"):
            engine.ended.result(STUCK_S)
        assert (engine.api.events, frozen) == ([], [])


def test_an_engine_that_stops_ends_its_process(
    running: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    with running() as engine:
        assert until(lambda: engine.api.of(m.Ready))
        health = Engine.health
        monkeypatch.setattr(
            Engine, "health", lambda e: replace(health(e), error="the device is gone")
        )
        with pytest.raises(EngineError, match="the engine has stopped: the device is gone"):
            engine.ended.result(STUCK_S)


NOT_MESSAGES = m.pack([b"\xc1 is no MessagePack"])


def test_a_process_whose_commands_can_no_longer_be_read_ends(running: Run) -> None:
    """It would beat on, and its server would wait for it."""
    with running() as engine:
        assert until(lambda: engine.api.of(m.Ready))
        engine.api.ours.sendall(NOT_MESSAGES)
        assert until(lambda: engine.codes == [CRASHED])


def test_a_further_api_process_whose_commands_can_no_longer_be_read_loses_its_link(
    running: Run,
) -> None:
    with running() as engine:
        other = Api()
        engine.api.send(m.Connect(1), [other.theirs.fileno()])
        other.theirs.close()
        assert until(lambda: other.of(m.Ready))
        other.ours.sendall(NOT_MESSAGES)
        other.reading.join(STUCK_S)
        assert not other.reading.is_alive()
        engine.api.send(m.Speakable(7, ["Hello."]))
        assert until(lambda: engine.api.of(m.Result))
        assert (engine.codes, engine.ended.done()) == ([], False)
        other.close()


def test_a_slow_api_process_gets_all_in_its_order_and_nobody_waits_for_it() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        peer = process.Peer(theirs)
        for i in range(200):  # more than the socket takes
            peer.send([m.Audio(i, 4096, 0, False, None, 0, None)], [np.full(4096, i, np.float32)])
        unpacker, found = m.Unpacker(), list[tuple[int, float]]()
        ours.settimeout(STUCK_S)
        while len(found) < 200:
            for parts in unpacker.feed(ours.recv(1 << 16)):
                (event,), data = m.events(parts)
                assert isinstance(event, m.Audio)
                samples = m.Reader(data).take(event.samples, np.dtype(np.float32))
                assert np.ptp(samples) == 0
                found.append((event.id, float(samples[0])))
        assert found == [(i, float(i)) for i in range(200)]


def test_more_arrays_than_a_socket_takes_at_once_arrive_in_their_order() -> None:
    ours, theirs = socket.socketpair()
    count = process.MAX_BUFFERS + 50
    with ours, theirs:
        peer = process.Peer(theirs)
        events = [m.Audio(i, 3, 0, False, None, 0, None) for i in range(count)]
        peer.send(events, [np.full(3, i, np.float32) for i in range(count)])
        unpacker = m.Unpacker()
        messages: list[tuple[memoryview, memoryview]] = []
        ours.settimeout(STUCK_S)
        while not messages:
            messages += unpacker.feed(ours.recv(1 << 16))
        received, data = m.events(messages[0])
        reader = m.Reader(data)
        samples = [reader.take(3, np.dtype(np.float32)).tolist() for _ in received]
        assert samples == [[float(i)] * 3 for i in range(count)]


def test_an_api_process_that_is_gone_is_written_to_in_vain() -> None:
    ours, theirs = socket.socketpair()
    with theirs:
        ours.close()
        peer = process.Peer(theirs)
        for _ in range(3):
            peer.send([m.Unspeakable(1)], ())
        assert list(peer.messages()) == []
