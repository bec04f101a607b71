"""Engines and API processes that are killed, stopped or told to end, and clients that send nonsense: real processes."""

from __future__ import annotations

import itertools
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest

from stentor.server.limits import LIMITS
from tests.helpers.descendants import alive, children, engines, kill, stopped
from tests.helpers.patience import STUCK_S, until
from tests.helpers.planted import LOADS_FOR_EVER, planted, serve_command
from tests.helpers.server_live import process, processes, serving

KILLS = int(os.environ.get("STENTOR_KILLS", "3"))
RESTARTED_SOON = """
import sys
from stentor.cli import main
from stentor.server.limits import LIMITS
object.__setattr__(LIMITS, "restart_seconds", 0.05)
sys.argv[0] = "stentor"
sys.exit(main())
"""
TWO = {"model": ("dummy:toy", "dummy:toy"), "command": (sys.executable, "-c", RESTARTED_SOON)}
NAMES = ("--served-model-name", "one", "--served-model-name", "other")
ASK = {"input": "Hello there", "response_format": "pcm", "guard": False}
HOWS: tuple[dict[str, str], ...] = ({}, {"stream_format": "audio"})  # whole answers, and streams
BODIES: list[dict[str, Any]] = [
    {**ASK, "seed": seed, "min_frames": frames, "max_frames": frames, **how}
    for seed, frames in enumerate((5, 60, 300))
    for how in HOWS
]
ONE_ROW = ("--max-num-seqs", "1")
"""Audio spoken beside others differs by rounding. In turns it is equal to the byte."""


def client(url: str) -> httpx.Client:
    return httpx.Client(base_url=url, timeout=STUCK_S, trust_env=False)


def speech(http: httpx.Client, **body: Any) -> bytes:
    answer = http.post("/v1/audio/speech", json=body)
    assert answer.status_code == 200, answer.text
    return answer.content


def ready(http: httpx.Client) -> bool:
    """Whether all models are ready."""
    answer = http.get("/ready")
    return answer.status_code == 200 and "without" not in answer.json()


class Load:
    """Clients that ask one model of a server without a pause, and note how each request ended."""

    def __init__(self, url: str, model: str, want: list[bytes]) -> None:
        self.url, self.model, self.want = url, model, want
        self.ends: Counter[str] = Counter()

    def ask(self, over: threading.Event, seed: int) -> None:
        """One client, until it is over. Whatever is answered whole is what an undisturbed server says."""
        chosen = random.Random(seed)
        with client(self.url) as http:
            while not over.is_set():
                end = self._end(http, chosen.randrange(len(BODIES)))
                self.ends[end] += 1
                over.wait(
                    0 if end == "whole" else 0.05
                )  # refusals take the time that a new engine needs

    def _end(self, http: httpx.Client, at: int) -> str:
        try:
            answer = http.post("/v1/audio/speech", json={"model": self.model, **BODIES[at]})
        except httpx.TimeoutException:
            return "hangs"
        except httpx.TransportError:
            return "broken"
        if answer.status_code != 200:
            return str(answer.status_code)
        return "whole" if answer.content == self.want[at] else "wrong"


@contextmanager
def load(url: str, want: list[bytes], **clients: int) -> Iterator[dict[str, Load]]:
    """Load on models of a server, from so many clients for each."""
    found, over = {model: Load(url, model, want) for model in clients}, threading.Event()
    with ThreadPoolExecutor(sum(clients.values())) as pool:
        given = [found[model] for model, count in clients.items() for _ in range(count)]
        running = [pool.submit(one.ask, over, seed) for seed, one in enumerate(given)]
        try:
            yield found
        finally:
            over.set()
        for one in running:
            one.result(STUCK_S)


def phases(http: httpx.Client) -> dict[str, str]:
    return {m["id"]: m["phase"] for m in http.get("/v1/models").json()["data"]}


@pytest.mark.slow
def test_an_engine_that_is_killed_at_any_moment_is_started_again_and_the_other_model_does_not_notice(
    tmp_path: Path,
) -> None:
    chosen = random.Random(43)
    with (
        process(*NAMES, *ONE_ROW, "--voices-dir", str(tmp_path), **TWO) as (running, url),
        client(url) as http,
    ):
        assert until(lambda: ready(http))
        want = [speech(http, model="other", **body) for body in BODIES]
        first, other = engines(running.pid)
        seen = [first]
        with load(url, want, one=2, other=1) as ends:
            for _ in range(KILLS):
                asked = ends["one"].ends["whole"]
                assert until(lambda before=asked: ends["one"].ends["whole"] > before)
                time.sleep(chosen.random() * 0.3)
                kill(seen[-1])
                assert until(lambda: phases(http) == {"one": "restarting", "other": "ready"})
                said = http.get("/ready")
                assert (said.status_code, said.json()) == (
                    200,
                    {"ready": True, "phase": "ready", "without": {"one": "restarting"}},
                )
                assert until(lambda: ready(http))
                assert phases(http) == {"one": "ready", "other": "ready"}
                (again,) = set(engines(running.pid)) - {other}
                seen.append(again)
        assert len(set(seen)) == KILLS + 1
        assert set(ends["other"].ends) == {"whole"}
        assert set(ends["one"].ends) <= {"whole", "broken", "500", "503"}, ends["one"].ends
        assert ends["one"].ends.keys() & {"broken", "500"}, ends[
            "one"
        ].ends  # the kills have hit requests
        assert [speech(http, model="one", **body) for body in BODIES] == want
        assert http.get("/health").json()["models"]["one"]["restarts"] == KILLS
        running.send_signal(signal.SIGTERM)
        assert running.wait(STUCK_S) == 0
    assert not [pid for pid in (*seen, other) if alive(pid)]


def begun(http: httpx.Client, model: str, frames: int = 2000) -> Any:
    """A stream that has begun. Its context ends it."""
    ask = {
        **ASK,
        "model": model,
        "seed": 7,
        "min_frames": frames,
        "max_frames": frames,
        "stream_format": "audio",
    }
    return http.stream("POST", "/v1/audio/speech", json=ask)


def test_engines_end_with_an_api_process_that_is_killed_also_those_that_were_stopped(
    tmp_path: Path,
) -> None:
    with (
        process(*NAMES, *ONE_ROW, "--voices-dir", str(tmp_path), **TWO) as (running, url),
        client(url) as http,
    ):
        assert until(lambda: ready(http))
        one, other = engines(running.pid)
        with begun(http, "one") as a:
            assert next(a.iter_raw())
            kill(other, signal.SIGSTOP)
            assert until(lambda: stopped(other))
            kill(running.pid)
            assert running.wait(STUCK_S) == -signal.SIGKILL
            assert until(lambda: not alive(one))
            assert alive(other)
            kill(other, signal.SIGCONT)
            assert until(lambda: not alive(other))


@contextmanager
def loading(tmp_path: Path) -> Iterator[tuple[Any, int]]:
    """A server whose engine loads for ever, and that engine."""
    words = serve_command(tmp_path / "v")
    env = planted(tmp_path, LOADS_FOR_EVER)
    with subprocess.Popen(
        words, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, env=env
    ) as running:
        try:
            assert running.stderr is not None
            assert any("loads in process" in line for line in running.stderr)
            (engine,) = engines(running.pid)
            yield running, engine
        finally:
            running.kill()


def test_an_engine_that_loads_ends_with_an_api_process_that_is_killed(tmp_path: Path) -> None:
    with loading(tmp_path) as (running, engine):
        kill(running.pid)
        assert until(lambda: not alive(engine))


def test_sigterm_ends_streams_whole_and_leaves_no_process(tmp_path: Path) -> None:
    with (
        process(*NAMES, *ONE_ROW, "--voices-dir", str(tmp_path), **TWO) as (running, url),
        client(url) as http,
    ):
        assert until(lambda: ready(http))
        left = children(running.pid)
        assert len(left) == 2
        with begun(http, "one", 600) as a, begun(http, "other", 600) as b:
            parts = [a.iter_raw(), b.iter_raw()]
            data = [next(part) for part in parts]
            for pid in (running.pid, *left):  # systemd signals all processes of a unit
                kill(pid, signal.SIGTERM)
            one, other = (d + b"".join(part) for d, part in zip(data, parts, strict=True))
        assert one == other
        assert len(one) == 600 * 6 * 2
        assert running.wait(STUCK_S) == 0
        assert not [pid for pid in left if alive(pid)]


def test_sigterm_ends_a_model_that_is_stopped(tmp_path: Path) -> None:
    """It cannot be told to end."""
    with process("--voices-dir", str(tmp_path), command=(sys.executable, "-c", STOPPED_SOON)) as (
        running,
        _,
    ):
        (engine,) = engines(running.pid)
        kill(engine, signal.SIGSTOP)
        running.send_signal(signal.SIGTERM)
        assert running.wait(STUCK_S) == 0
        assert not alive(engine)


STOPPED_SOON = RESTARTED_SOON.replace('"restart_seconds"', '"stop_seconds"')


def test_an_engine_that_is_stuck_is_killed_and_started_again(tmp_path: Path) -> None:
    limits = replace(LIMITS, stuck_seconds=2.0, restart_seconds=0.05)
    settings = {"memory_gb": 0.01, "threads": 1}
    others = set(engines(os.getpid()))  # of servers that this worker's other tests share
    with (
        serving(tmp_path, start=processes, limits=limits, **settings) as live,
        ThreadPoolExecutor(1) as pool,
    ):
        want = live.speech(**BODIES[1]).content
        (engine,) = set(engines(os.getpid())) - others
        kill(engine, signal.SIGSTOP)
        waits: Future[httpx.Response] = pool.submit(live.speech, **BODIES[1])
        assert waits.result(STUCK_S).status_code in (500, 503)
        assert until(lambda: not alive(engine))
        assert until(lambda: live.http.get("/ready").status_code == 200)
        assert live.speech(**BODIES[1]).content == want
        assert live.server.hosts.all[0].restarts >= 1


REFUSED: tuple[dict[str, Any], ...] = (
    {"content": b'{"input": "Hello', "headers": {"Content-Type": "application/json"}},
    {"json": {**ASK, "model": "nobody"}},
)


def test_refusals_cost_the_engine_nothing_and_honest_clients_hear_what_they_hear_alone(
    tmp_path: Path,
) -> None:
    settings = {"memory_gb": 0.01, "threads": 1, "max_num_seqs": 1, "served_model_name": ("toy",)}
    with serving(tmp_path, start=processes, **settings) as live, ThreadPoolExecutor(4) as pool:
        want = [live.speech(**body).content for body in BODIES]

        def submitted() -> int:
            live.http.get("/health")  # has the engine say how it is
            health = live.server.hosts.all[0].health
            assert health is not None
            return health.stats.submitted

        def refused(kind: int) -> Counter[int]:
            with client(live.url) as http:
                return Counter(
                    http.post("/v1/audio/speech", **REFUSED[kind]).status_code for _ in range(200)
                )

        before, honest = submitted(), 0
        rogues = [pool.submit(refused, i % 2) for i in range(4)]
        for body, audio in itertools.cycle(zip(BODIES, want, strict=True)):
            assert live.speech(**body).content == audio
            honest += 1
            if all(rogue.done() for rogue in rogues):
                break
        assert sum((rogue.result() for rogue in rogues), Counter()) == {400: 400, 404: 400}
        assert until(lambda: submitted() == before + honest)
