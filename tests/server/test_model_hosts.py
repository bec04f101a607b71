"""Models that load slowly, fail to load, or crash."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import threading
from pathlib import Path

import httpx
import pytest

import stentor
from stentor.server import model_hosts
from stentor.server.app import create_app
from stentor.server.config import ServerConfig
from tests.helpers.patience import STUCK_S
from tests.helpers.server_live import Live, count, held, raw, serving, toy, until

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

    def load(name: str, model: str | None) -> object:
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


def test_where_a_crash_poisons_the_process_it_ends(tmp_path: Path) -> None:
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
    def broken(name: str, model: str | None) -> object:
        def load() -> stentor.TTS:
            raise error

        return load

    given_up: list[int] = []
    app = create_app(ServerConfig(voices_dir=str(tmp_path)), given_up.append, broken)  # type: ignore[arg-type]

    async def check() -> None:
        async with (
            app.router.lifespan_context(app),
            httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://x") as http,
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

    def slow(name: str, model: str | None) -> object:
        def load() -> stentor.TTS:
            assert go.wait(STUCK_S)
            return made(name, model)()

        return load

    app = create_app(ServerConfig(voices_dir=str(tmp_path)), load=slow)  # type: ignore[arg-type]

    async def check() -> None:
        async with (
            app.router.lifespan_context(app),
            httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://x") as http,
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
            assert gc.get_freeze_count() > 0  # a full collection does not walk over the model

    asyncio.run(check())
    assert gc.get_freeze_count() == 0


def test_a_body_is_read_in_the_threads_for_clients_once_before_a_model_is_ready(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They keep their memory where the engine is started again."""
    given: list[tuple[object, ...]] = []

    async def noted(*pools: object) -> None:
        given.append(pools)

    monkeypatch.setattr(model_hosts, "read_as_sent", noted)
    with serving(tmp_path) as live:
        host = live.server.hosts.all[0]
        assert given == [(live.server.parsers, host.pool, host.references)]
        crash(live)
        assert until(lambda: host.restarts == 1 and live.http.get("/ready").status_code == 200)
        assert len(given) == 1


def test_what_a_first_voice_needs_has_run_before_a_model_is_ready(tmp_path: Path) -> None:
    with serving(tmp_path) as live:
        health = live.tts.engine.health()
        assert (health.references.misses, health.codec_states.misses, health.stats.finished) == (1, 1, 2)
        assert health.references.kept == 0
