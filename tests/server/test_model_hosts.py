"""Models that load slowly, fail to load, or crash."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest

import stentor
from stentor.engine.health import Health
from stentor.server import memory
from stentor.server.app import create_app
from stentor.server.config import ServerConfig
from stentor.server.engines import lifecycle
from stentor.server.engines import messages as m
from stentor.server.engines.client import EngineClient
from stentor.server.engines.lifecycle import OwnedEngine
from stentor.server.engines.process import ready
from stentor.server.limits import LIMITS
from stentor.server.model_hosts import ModelHost
from stentor.server.state import Server
from tests.helpers import virtual_time
from tests.helpers.local_engine import local
from tests.helpers.patience import STUCK_S, until
from tests.helpers.server_live import Live, count, held, raw, serving, toy

TEXT = "Hello there, you."


LONG = {"input": "A long text, said slowly.", "min_frames": 900, "max_frames": 900, "guard": False}


def crash(live: Live) -> None:
    """A fault in the engine's own thread."""

    def fault() -> None:
        raise RuntimeError("the device is gone")

    live.tts.engine.scheduler.complete = fault  # type: ignore[method-assign, assignment]
    live.tts.engine.inbox.put(None)


def test_a_crashed_engine_is_seen_in_health_and_restarted(tmp_path: Path) -> None:
    made, going = toy(), threading.Event()

    def load(name: str, model: str | None) -> Callable[[], stentor.TTS]:
        loads = []

        def make() -> stentor.TTS:
            loads.append(name)
            assert len(loads) == 1 or going.wait(STUCK_S)  # until all has been seen
            return made(name, model)()

        return make

    with serving(tmp_path, load=load) as live:
        with held(live, steps=[5]) as engine:
            s = raw(live, {**LONG, "stream_format": "audio"})
            engine.wait()
            crash(live)
        seen = []

        def unhealthy() -> bool:
            seen.append(live.http.get("/health"))
            return seen[-1].status_code == 503

        assert until(unhealthy)
        assert "the engine has stopped" in seen[-1].text
        assert "the device is gone" not in seen[-1].text  # only in the log
        data = b""
        with contextlib.suppress(ConnectionResetError):
            data = b"".join(iter(lambda: s.recv(1 << 16), b""))
        assert b" 500 " in data[:20] or not data.endswith(b"0\r\n\r\n")
        s.close()
        going.set()
        assert until(lambda: live.http.get("/health").status_code == 200)
        assert until(lambda: live.http.get("/ready").status_code == 200)
        assert live.speech(input=TEXT).status_code == 200
        assert live.http.get("/health").json()["models"]["dummy:toy"]["restarts"] == 1
        assert count(live, "engine_restarts_total") == 1


def test_a_server_that_shall_not_restart_engines_ends_with_the_first(tmp_path: Path) -> None:
    given_up: list[int] = []
    with serving(tmp_path, give_up=given_up.append, on_crash="exit") as live:
        crash(live)
        assert until(lambda: given_up == [70])
        assert live.http.get("/ready").status_code == 503
        answer = live.speech(input=TEXT)
        assert answer.status_code == 503
        assert answer.json()["error"]["code"] == "not_ready"


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (stentor.CheckpointError("it is broken"), 70),
        (stentor.ModelNotFound("it is nowhere"), 2),
        (stentor.InvalidRequest("dtype", "it is not for this model"), 2),
    ],
)
def test_a_model_that_cannot_be_loaded_gives_up_and_says_why(
    tmp_path: Path, error: stentor.StentorError, code: int
) -> None:
    def broken(name: str, model: str | None) -> Callable[[], stentor.TTS]:
        def load() -> stentor.TTS:
            raise error

        return load

    given_up: list[int] = []
    config = ServerConfig(voices_dir=str(tmp_path))
    app = create_app(config, Server(config, given_up.append, local(broken)))

    async def check() -> None:
        async with (
            app.router.lifespan_context(app),
            httpx.AsyncClient(
                transport=httpx.ASGITransport(app), base_url="http://localhost"
            ) as http,
        ):
            while not given_up:
                await asyncio.sleep(0.01)
            ready = await http.get("/ready")
            assert ready.status_code == 503
            assert ready.json()["reason"] == str(error)

    asyncio.run(check())
    assert given_up == [code]


def test_readiness_names_the_phase_until_the_model_has_spoken(tmp_path: Path) -> None:
    made, go = toy(), threading.Event()

    def slow(name: str, model: str | None) -> Callable[[], stentor.TTS]:
        def load() -> stentor.TTS:
            assert go.wait(STUCK_S)
            return made(name, model)()

        return load

    config = ServerConfig(voices_dir=str(tmp_path))
    app = create_app(config, Server(config, start=local(slow)))

    async def check() -> None:
        async with (
            app.router.lifespan_context(app),
            httpx.AsyncClient(
                transport=httpx.ASGITransport(app), base_url="http://localhost"
            ) as http,
        ):
            early = await http.get("/ready")
            assert early.status_code == 503
            assert early.json()["phase"] == "loading"
            assert "retry-after" in early.headers
            assert (await http.get("/health")).status_code == 200  # alive, though not ready
            assert (await http.post("/v1/audio/speech", json={"input": TEXT})).status_code == 503
            go.set()
            while (await http.get("/ready")).status_code != 200:
                await asyncio.sleep(0.02)
            assert (await http.get("/ready")).json() == {"ready": True, "phase": "ready"}

    asyncio.run(check())


def test_what_a_first_voice_needs_has_run_before_a_model_is_ready(tmp_path: Path) -> None:
    with serving(tmp_path) as live:
        health = live.tts.engine.health()
        assert (health.references.misses, health.codec_states.misses, health.stats.finished) == (
            1,
            1,
            2,
        )
        assert health.references.entries == 0


@pytest.fixture(scope="module")
def told() -> m.Ready:
    """Message of a toy's engine once it is loaded."""
    with stentor.TTS("dummy:toy", memory_gb=0.01, threads=1) as tts:
        return ready(tts, [])


class Stub:
    """An engine without a model: a test says when it is ready, and when it ends."""

    def __init__(self, at: float) -> None:
        self.at = at
        self.client = EngineClient("toy", 0, lambda *_: None)
        self.ended: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self.killed = self.closed = False

    def crash(self) -> None:
        self.client.lose(stentor.EngineError("the engine's process has ended (signal 9)"))
        self.ended.set_result(-9)

    def kill(self) -> None:
        self.killed = True

    async def close(self) -> None:
        self.closed = True


async def at_once(work: Callable[[], object]) -> object:
    return work()


class Stubs:
    """A host in virtual time, and the engines that it has started."""

    def __init__(
        self, loop: virtual_time.VirtualTimeLoop, monkeypatch: pytest.MonkeyPatch, **settings: Any
    ) -> None:
        monkeypatch.setattr(lifecycle, "time", SimpleNamespace(monotonic=loop.time, time=loop.time))
        monkeypatch.setattr(memory, "trim", lambda: None)
        monkeypatch.setattr(
            asyncio, "to_thread", at_once
        )  # a thread takes real time, which the clock does not see
        self.engines: list[Stub] = []
        self.given_up: list[int] = []
        self._loop, self._begun = loop, asyncio.Event()
        config = ServerConfig(**settings)
        self.host = ModelHost("toy", config, self.given_up.append)
        self.host.engines.append(OwnedEngine(self.host, 0, self._start, asyncio.Lock()))  # type: ignore[arg-type]
        self.host.start()

    def _start(self, *_: object) -> Stub:
        self.engines.append(Stub(self._loop.time()))
        self._begun.set()
        return self.engines[-1]

    async def next(self) -> Stub:
        """The engine that is started next."""
        await self._begun.wait()
        self._begun.clear()
        return self.engines[-1]

    @property
    def pauses(self) -> list[float]:
        """Between the starts."""
        times = [engine.at for engine in self.engines]
        return [round(b - a, 3) for a, b in pairwise(times)]


def test_the_pause_before_a_crashed_engine_is_started_again_grows_to_a_bound_and_it_is_never_given_up(
    told: m.Ready, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main(loop: virtual_time.VirtualTimeLoop) -> None:
        stubs = Stubs(loop, monkeypatch)
        for _ in range(10):
            engine = await stubs.next()
            engine.client.receive([told], m.Reader(memoryview(b"")))
            await asyncio.sleep(0)
            engine.crash()
        await stubs.next()
        assert stubs.pauses == [0.2, 0.4, 0.8, 1.6, 3.2, 6.4, *[LIMITS.restart_seconds] * 4]
        assert all(engine.closed for engine in stubs.engines[:-1])
        assert (stubs.host.restarts, stubs.given_up, stubs.host.phase) == (10, [], "restarting")
        await stubs.host.close()

    virtual_time.run(main)


def test_an_engine_that_has_lived_for_long_is_started_again_soon(
    told: m.Ready, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main(loop: virtual_time.VirtualTimeLoop) -> None:
        stubs = Stubs(loop, monkeypatch)
        for seconds in (0.0, 0.0, LIMITS.settled_seconds + 1):
            engine = await stubs.next()
            engine.client.receive([told], m.Reader(memoryview(b"")))
            await asyncio.sleep(seconds)
            engine.crash()
        await stubs.next()
        assert stubs.pauses == [0.2, 0.4, LIMITS.settled_seconds + 1 + 0.2]
        await stubs.host.close()

    virtual_time.run(main)


def test_a_model_that_cannot_be_loaded_again_is_given_up_after_so_many_loads(
    told: m.Ready, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main(loop: virtual_time.VirtualTimeLoop) -> None:
        stubs = Stubs(loop, monkeypatch)
        (await stubs.next()).client.receive([told], m.Reader(memoryview(b"")))
        await asyncio.sleep(0)
        stubs.engines[0].crash()
        for _ in range(LIMITS.restarts + 1):
            (await stubs.next()).crash()
        await asyncio.sleep(2 * LIMITS.restart_seconds)
        assert (len(stubs.engines), stubs.host.phase, stubs.given_up) == (
            LIMITS.restarts + 2,
            "failed",
            [70],
        )
        await stubs.host.close()

    virtual_time.run(main)


@pytest.mark.parametrize("beats", [True, False])
def test_an_engine_that_does_not_go_on_is_killed_and_started_again(
    told: m.Ready, monkeypatch: pytest.MonkeyPatch, beats: bool
) -> None:
    """Its process is silent, or says that a step has taken as long."""

    async def main(loop: virtual_time.VirtualTimeLoop) -> None:
        stubs = Stubs(loop, monkeypatch)
        engine = await stubs.next()
        engine.client.receive([told], m.Reader(memoryview(b"")))
        began = loop.time()
        while engine.client.lost is None:
            await asyncio.sleep(0.5)
            if beats and engine.client.lost is None:
                stuck = replace(health(), working=loop.time() - began)
                engine.client.receive([m.Beat(stuck)], m.Reader(memoryview(b"")))
        assert LIMITS.stuck_seconds <= loop.time() - began < LIMITS.stuck_seconds + 2
        assert engine.killed
        assert (await stubs.next()) is not engine
        await stubs.host.close()

    virtual_time.run(main)


def health() -> Health:
    return Health(
        alive=True,
        error=None,
        queued=0,
        running=0,
        free_slots=1,
        free_pages=1,
        pages=1,
        preemptions=0,
        evictions=0,
        eager_calls=0,
    )
