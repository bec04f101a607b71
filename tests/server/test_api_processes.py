"""Several API processes on one port, for real: `stentor serve --api-processes N`."""

from __future__ import annotations

import asyncio
import http.client
import json
import signal
import socket
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from prometheus_client import CollectorRegistry, Counter, Gauge, generate_latest
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect

import stentor
from stentor.errors import InvalidRequest
from stentor.host import machine
from stentor.output.marks import comment
from stentor.server import main
from stentor.server.api_processes import merged
from stentor.server.config import ServerConfig
from stentor.server.engines import messages as m
from stentor.server.engines.attached import AttachedEngine
from stentor.server.engines.process import ready
from stentor.server.model_hosts import ModelHost
from tests.helpers.descendants import API, alive, children, engines, kill, owner, stopped
from tests.helpers.patience import STUCK_S, until
from tests.helpers.server_live import pcm, process, tone_wav
from tests.helpers.watermarks import tone

RESTARTED_SOON = """
import sys
from stentor.cli import main
from stentor.server.limits import LIMITS
object.__setattr__(LIMITS, "restart_seconds", 0.05)
sys.argv[0] = "stentor"
sys.exit(main())
"""
ASK: dict[str, Any] = {"input": "Hello there", "seed": 7, "response_format": "pcm", "guard": False}
SPEECH, STREAMED = "/v1/audio/speech", {"stream_format": "audio"}
LONGEST = 900  # frames, for which the toy takes a second
ACTIVE = 3  # --max-active-requests


def frames(count: int) -> dict[str, Any]:
    """A request for so many."""
    return {**ASK, "min_frames": count, "max_frames": count}


class Processes:
    """A server, and connections to those of its processes that a test chooses."""

    def __init__(self, first: Any, url: str) -> None:
        self.running, self.url = first, url

    @property
    def pids(self) -> list[int]:
        """The first API process and the others."""
        return [self.running.pid, *children(self.running.pid, API)]

    def connect(self, pid: int) -> socket.socket:
        """A fresh connection that this process has accepted."""
        host, port = self.url.removeprefix("http://").split(":")
        while True:
            connection = socket.create_connection((host, int(port)), STUCK_S)
            if self._taker(connection) == pid:
                return connection
            connection.close()

    def _taker(self, client: socket.socket) -> int:
        """The process that has accepted a connection."""
        owners: list[int] = []

        def taken() -> bool:
            owners[:] = [pid for pid in [owner(self.pids, client)] if pid is not None]
            return bool(owners)

        assert until(taken)
        return owners[0]

    def send(
        self, pid: int, method: str, path: str, body: object = None, **headers: str
    ) -> http.client.HTTPResponse:
        """The answer of this process, which the caller reads."""
        host, port = self.url.removeprefix("http://").split(":")
        client = http.client.HTTPConnection(host, int(port), timeout=STUCK_S)
        client.sock = self.connect(pid)
        data = (
            body if isinstance(body, bytes) else b"" if body is None else json.dumps(body).encode()
        )
        client.request(
            method,
            path,
            data,
            {"Content-Type": "application/json", "Connection": "close", **headers},
        )
        return client.getresponse()

    def get(self, pid: int, path: str) -> Any:
        """JSON that this process answers."""
        return json.loads(self.send(pid, "GET", path).read())

    def engine(self, pid: int) -> Any:
        """How this process says that the engine is."""
        return self.get(pid, "/health")["models"]["dummy:toy"]

    def speech(self, pid: int, body: dict[str, Any], **headers: str) -> bytes:
        answer = self.send(pid, "POST", SPEECH, body, **headers)
        data = answer.read()
        assert answer.status == 200, data
        return data

    def stream(self, pid: int, count: int) -> http.client.HTTPResponse:
        """A stream that has begun."""
        answer = self.send(pid, "POST", SPEECH, {**frames(count), **STREAMED})
        assert answer.status == 200
        assert answer.peek(1)
        return answer

    def metric(self, pid: int, name: str) -> float:
        """The sum of a metric, as this process tells it."""
        lines = self.send(pid, "GET", "/metrics").read().decode().splitlines()
        return sum(float(line.split()[-1]) for line in lines if line.startswith(f"stentor:{name}"))

    def ready(self, count: int) -> bool:
        """Whether so many processes say that all models are ready."""
        pids = self.pids
        return len(pids) == count and all(
            self.send(pid, "GET", "/ready").status == 200 for pid in pids
        )


@contextmanager
def several(folder: Path, count: int, *flags: str) -> Iterator[Processes]:
    flags = (
        "--voices-dir",
        str(folder),
        "--max-num-seqs",
        "1",
        "--api-processes",
        str(count),
        *flags,
    )
    with process(*flags, command=(sys.executable, "-c", RESTARTED_SOON)) as (running, url):
        processes = Processes(running, url)
        assert until(lambda: len(processes.pids) == count)
        assert until(lambda: all(listens(processes, pid) for pid in processes.pids))
        assert until(lambda: processes.ready(count))
        yield processes


def listens(server: Processes, pid: int) -> bool:
    """Whether a process has a socket that listens at the server's port."""
    port = f":{int(server.url.rpartition(':')[2]):04X}"
    lines = [
        line.split() for line in Path("/proc/net/tcp").read_text(encoding="ascii").splitlines()[1:]
    ]
    inodes = {words[9] for words in lines if words[1].endswith(port) and words[3] == "0A"}
    sockets = []
    for entry in Path(f"/proc/{pid}/fd").iterdir():
        try:
            sockets.append(str(entry.readlink()))
        except OSError:  # closed meanwhile
            continue
    return any(f"socket:[{inode}]" in sockets for inode in inodes)


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Processes]:
    flags = ("--max-active-requests", str(ACTIVE), "--ws-max-sessions", "1")
    with several(tmp_path_factory.mktemp("two"), 2, *flags) as processes:
        yield processes


@contextmanager
def engine_stopped(server: Processes) -> Iterator[None]:
    """The engine does nothing meanwhile: what runs on it goes on afterwards."""
    (engine,) = engines(server.running.pid)
    kill(engine, signal.SIGSTOP)
    try:
        assert until(lambda: stopped(engine))
        yield
    finally:
        kill(engine, signal.SIGCONT)


def test_fresh_connections_reach_every_process_and_metrics_are_of_all(two: Processes) -> None:
    first, other = two.pids
    finished, prefills = (
        two.metric(first, "requests_success_total"),
        two.metric(first, "engine_prefills_total"),
    )
    speeches = [two.speech(pid, frames(5)) for pid in (first, other, other, other)]
    assert len(set(speeches)) == 1
    for pid in (first, other):
        assert two.metric(pid, "requests_success_total") == finished + 4
        assert until(lambda pid=pid: two.metric(pid, "engine_prefills_total") == prefills + 4)
        assert two.metric(pid, "engine_up") == 1


def test_an_outcome_is_found_by_whichever_process_is_asked(two: Processes) -> None:
    for i, pid in enumerate(two.pids):
        two.speech(pid, frames(5), **{"X-Request-Id": f"mine-{i}"})
        outcomes = [two.get(asked, f"{SPEECH}/mine-{i}") for asked in two.pids]
        assert outcomes[0] == outcomes[1]
        assert (outcomes[0]["status"], outcomes[0]["usage"]["output_tokens"]) == ("completed", 5)
    for pid in two.pids:
        assert two.send(pid, "GET", f"{SPEECH}/nobody").status == 404


def test_requests_of_all_processes_are_limited_together(two: Processes) -> None:
    first, other = two.pids
    with engine_stopped(two):
        clients = []
        for pid in (first, other, other):
            waits = http.client.HTTPConnection("localhost", timeout=STUCK_S)
            waits.sock = two.connect(pid)
            waits.request(
                "POST", SPEECH, json.dumps(frames(30)), {"Content-Type": "application/json"}
            )
            clients.append(waits)
        for pid in (first, other):
            refused = []

            def refuses(pid: int = pid, refused: list[Any] = refused) -> bool:
                """The last of those that wait may still be on its way."""
                refused[:] = [two.send(pid, "POST", SPEECH, {})]
                return refused[0].status == 429

            assert until(refuses)
            assert json.loads(refused[0].read())["error"]["code"] == "too_many_requests"
    assert len({client.getresponse().read() for client in clients}) == 1
    for client in clients:
        client.close()
    assert until(lambda: two.send(first, "POST", SPEECH, frames(5)).status == 200)


def test_sessions_of_all_processes_are_limited_together(two: Processes) -> None:
    first, other = two.pids
    path, how = (
        two.url.replace("http", "ws") + "/v1/audio/speech/stream",
        {"proxy": None, "open_timeout": STUCK_S},
    )
    for busy, idle in ((first, other), (other, first)):
        with connect(path, sock=two.connect(busy), **how):
            for pid in (idle, busy):
                with pytest.raises(InvalidStatus) as refused:
                    connect(path, sock=two.connect(pid), **how)
                assert refused.value.response.status_code == 503
        assert until(lambda: two.metric(first, "websocket_sessions") == 0)
        with connect(path, sock=two.connect(idle), **how):
            pass
        assert until(lambda: two.metric(first, "websocket_sessions") == 0)


def test_a_voice_that_one_process_has_taken_is_spoken_by_all(two: Processes) -> None:
    first, other = two.pids
    for name, receiver, spoken in (("anna", first, other), ("berta", other, first)):
        files = {"audio_sample": ("v.wav", tone_wav(), "audio/wav")}
        upload = httpx.Request("POST", two.url, data={"name": name, "consent": "yes"}, files=files)
        kind = {"Content-Type": upload.headers["content-type"]}
        assert two.send(receiver, "POST", "/v1/audio/voices", upload.read(), **kind).status == 200
        want = two.speech(receiver, {**frames(5), "voice": name})
        assert two.speech(spoken, {**frames(5), "voice": name}) == want
        assert two.send(spoken, "DELETE", f"/v1/audio/voices/{name}").status == 200
        assert until(
            lambda name=name, pid=receiver: (
                two.send(pid, "POST", SPEECH, {**frames(5), "voice": name}).status == 400
            )
        )


def test_a_process_that_is_killed_is_replaced_its_requests_end_and_the_others_do_not_notice(
    two: Processes,
) -> None:
    first, other = two.pids
    want = two.speech(first, {**frames(100), **STREAMED})
    steps = two.metric(first, "engine_steps_total")
    broken = two.stream(other, LONGEST)  # has the only slot
    with engine_stopped(two):
        waits = http.client.HTTPConnection("localhost", timeout=STUCK_S)
        waits.sock = two.connect(first)
        waits.request(
            "POST",
            SPEECH,
            json.dumps({**frames(100), **STREAMED}),
            {"Content-Type": "application/json"},
        )
        kill(other)
        with pytest.raises((http.client.HTTPException, ConnectionError)):
            broken.read()
    assert waits.getresponse().read() == want
    waits.close()
    assert until(lambda: two.engine(first)["running"] == 0)
    assert two.metric(first, "engine_steps_total") - steps < LONGEST
    assert (two.engine(first)["queued"], two.engine(first)["restarts"]) == (0, 0)
    assert until(lambda: other not in two.pids and len(two.pids) == 2 and listens(two, two.pids[1]))
    assert until(lambda: two.ready(2))
    again = two.pids[1]
    assert two.speech(again, {**frames(100), **STREAMED}) == want
    with engine_stopped(two):  # what it had counted is forgotten
        connections = [two.connect(first) for _ in range(ACTIVE)]
        body = json.dumps(frames(5))
        head = f"POST {SPEECH} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {len(body)}"
        for s in connections:
            s.sendall(f"{head}\r\n\r\n{body}".encode())
        assert until(lambda: two.send(again, "POST", SPEECH, {}).status == 429)
        for s in connections[1:]:
            s.close()
        assert until(lambda: two.send(again, "POST", SPEECH, {}).status == 400)
        connections[0].close()


def test_a_process_is_replaced_while_the_engine_has_not_read_what_the_first_one_has_sent(
    two: Processes,
) -> None:
    """It then reads of the end of the one and of the start of the other at once, behind a recording."""
    first, other = two.pids
    want = two.speech(first, frames(30))
    files = {"audio_sample": ("v.wav", tone_wav(4.9, 48000), "audio/wav")}
    upload = httpx.Request("POST", two.url, data={"name": "carla", "consent": "yes"}, files=files)
    kind = {"Content-Type": upload.headers["content-type"]}
    assert two.send(first, "POST", "/v1/audio/voices", upload.read(), **kind).status == 200
    with engine_stopped(two):
        waits = http.client.HTTPConnection("localhost", timeout=STUCK_S)
        waits.sock = two.connect(first)
        waits.request(
            "POST",
            SPEECH,
            json.dumps({**frames(30), "voice": "carla"}),
            {"Content-Type": "application/json"},
        )
        kill(other)
        assert until(
            lambda: other not in two.pids and len(two.pids) == 2 and listens(two, two.pids[1])
        )
    answer = waits.getresponse()
    audio = answer.read()
    assert (answer.status, len(audio)) == (200, len(want)), audio
    waits.close()
    again = two.pids[1]
    assert until(lambda: two.get(again, "/v1/models")["data"][0]["phase"] == "ready")
    assert two.speech(again, frames(30)) == want
    assert two.speech(first, frames(30)) == want


def test_an_engine_that_is_killed_is_back_in_all_processes(two: Processes) -> None:
    want = [two.speech(pid, frames(50)) for pid in two.pids]
    (engine,) = engines(two.running.pid)
    streams = [two.stream(pid, LONGEST) for pid in two.pids[:1]]
    kill(engine)
    for pid in two.pids:
        assert until(lambda pid=pid: two.get(pid, "/v1/models")["data"][0]["phase"] == "restarting")
        assert two.send(pid, "GET", "/ready").status == 503
        assert two.send(pid, "POST", SPEECH, frames(5)).status == 503
    for stream in streams:
        with pytest.raises((http.client.HTTPException, ConnectionError)):
            stream.read()
    for pid, audio in zip(two.pids, want, strict=True):
        assert until(lambda pid=pid: two.get(pid, "/v1/models")["data"][0]["phase"] == "ready")
        assert two.speech(pid, frames(50)) == audio
        assert two.send(pid, "GET", "/ready").status == 200
        assert two.engine(pid)["restarts"] == 1


def test_sigterm_lets_streams_of_all_processes_end_and_leaves_none(tmp_path: Path) -> None:
    with several(tmp_path, 3) as three:
        pids = three.pids
        left = children(three.running.pid)
        streams = [three.stream(pid, 300) for pid in pids[1:]]
        three.running.send_signal(signal.SIGTERM)
        audios = {stream.read() for stream in streams}
        assert [len(audio) for audio in audios] == [300 * 6 * 2]
        assert three.running.wait(STUCK_S) == 0
        assert len(left) == 3
        assert not [pid for pid in left if alive(pid)]


def test_all_ends_with_the_first_process(tmp_path: Path) -> None:
    with several(tmp_path, 2) as processes:
        pids = children(processes.running.pid)
        stream = processes.stream(processes.pids[1], LONGEST)
        kill(processes.running.pid)
        assert until(lambda: not [pid for pid in pids if alive(pid)])
        with pytest.raises((http.client.HTTPException, ConnectionError)):
            stream.read()


def test_a_model_is_ready_in_a_further_process_once_that_reaches_the_engine(tmp_path: Path) -> None:
    async def main() -> None:
        config = ServerConfig(("dummy:toy",), voices_dir=str(tmp_path))
        host = ModelHost("toy", config, lambda code: None)
        engine = AttachedEngine(host, 0, 1)
        host.engines.append(engine)
        with stentor.TTS("dummy:toy", memory_gb=0.01, threads=1) as tts:
            told = m.pack(m.encode([ready(tts, [])], ()))
        for _ in range(2):  # the second engine takes the place of the first
            ours, theirs = socket.socketpair()
            with theirs:
                attaching = asyncio.create_task(engine.attach(ours))
                engine.note("ready", None, 0)
                await asyncio.sleep(0)
                assert host.phase != "ready"
                theirs.sendall(told)
                await attaching
                assert host.phase == "ready"
                (client,) = host.pool.clients
            while client.lost is None:
                await asyncio.sleep(0)
            engine.note("restarting", None, 1)
        await host.close()

    asyncio.run(main())


@pytest.mark.parametrize(
    ("name", "given"),
    [
        ("uds", {"uds": "/tmp/a.sock"}),
        ("idle_unload_seconds", {"idle_unload_seconds": 5.0}),
        ("allow_runtime_lora_updating", {"allow_runtime_lora_updating": True, "api_key": ("k",)}),
        ("replicas", {"replicas": 2}),
        ("api_processes", {"api_processes": -1}),
        ("wyoming_port", {"wyoming_port": 0}),
    ],
)
def test_what_does_not_go_with_several_processes_is_named(name: str, given: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest, match=f"^{name}"):
        ServerConfig(**{"api_processes": 2, **given})


@pytest.mark.parametrize(
    ("given", "gpu", "cpus", "count"),
    [
        ({}, True, 16, 4),
        ({"device": ("cuda:1",)}, True, 64, 4),
        ({}, True, 8, 1),
        ({}, False, 64, 1),
        ({"device": ("cpu",)}, True, 64, 1),
        ({"uds": "/tmp/a.sock"}, True, 64, 1),
        ({"wyoming_port": 0}, True, 64, 1),
    ],
)
def test_a_gpu_has_as_many_processes_as_pay_where_the_flags_allow_it(
    given: dict[str, Any],
    gpu: bool,
    cpus: int,
    count: int,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.setattr(main, "GPU", tmp_path if gpu else tmp_path / "none")
    monkeypatch.setattr(machine, "cpus", lambda: cpus)
    assert main.default_api_processes(ServerConfig(**given)) == count


def page(requests: int, steps: int, leads: Sequence[float], sessions: int) -> str:
    """The metrics of a process."""
    registry = CollectorRegistry()
    Counter("stentor:requests_success", "x", ("model_name",), registry=registry).labels("toy").inc(
        requests
    )
    Counter("stentor:engine_steps", "x", ("model_name",), registry=registry).labels("toy").inc(
        steps
    )
    lead = Gauge("stentor:playback_lead_s", "x", ("model_name", "stat"), registry=registry)
    for seconds in leads:
        lead.labels("toy", "min").set(seconds)
    Gauge("stentor:websocket_sessions", "x", registry=registry).set(sessions)
    return generate_latest(registry).decode()


def values(page: str) -> dict[str, float]:
    lines = [line.rpartition(" ") for line in page.splitlines() if not line.startswith("#")]
    return {name: float(value) for name, _, value in lines}


def test_metrics_of_several_processes_are_sums_but_those_of_engines_and_moments() -> None:
    pages = [page(3, 100, [0.5], 1), page(4, 100, [0.2], 2), page(5, 90, [], 0)]
    metrics = values(merged(pages[0], pages[1:]))
    assert metrics['stentor:requests_success_total{model_name="toy"}'] == 12
    assert metrics['stentor:engine_steps_total{model_name="toy"}'] == 100
    assert metrics['stentor:playback_lead_s{model_name="toy",stat="min"}'] == 0.2
    assert metrics["stentor:websocket_sessions"] == 3
    created = 'stentor:requests_success_created{model_name="toy"}'
    assert metrics[created] == min(values(one)[created] for one in pages)
    assert values(merged(pages[0], [])) == values(pages[0])


def test_a_metric_that_only_another_process_has_is_kept() -> None:
    registry = CollectorRegistry()
    metrics = values(
        merged(page(1, 1, [], 0), [page(0, 0, [0.3], 0), generate_latest(registry).decode()])
    )
    assert metrics['stentor:playback_lead_s{model_name="toy",stat="min"}'] == 0.3


def test_every_process_marks_audio(tmp_path: Path) -> None:
    with several(
        tmp_path, 2, "--provenance", "--watermark", "tests.helpers.watermarks:Tone"
    ) as processes:
        for pid in processes.pids:
            answer = processes.send(pid, "POST", SPEECH, {**frames(20), "response_format": "pcm"})
            assert answer.getheader("X-Provenance") == comment("dummy:toy")
            samples = pcm(answer.read())
            mark = tone(len(samples))
            assert samples @ mark / (mark @ mark) == pytest.approx(1, abs=0.1)
