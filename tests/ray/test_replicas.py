"""Two replicas on a Ray of their own: what a client sees through the proxy is what one server shows."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
from websockets.sync.client import connect

from tests.helpers.patience import STUCK_S, until
from tests.helpers.replicas import NEEDS_RAY, Replicas, replicas
from tests.helpers.server_live import tone_wav

pytestmark = NEEDS_RAY

LONG = {
    "input": "x" * 60,
    "stream_format": "audio",
    "response_format": "pcm",
    "max_new_tokens": 900,
    "min_frames": 900,
}


@dataclass
class Cluster:
    """`stentor serve --replicas 2`, and clients that open a connection for each request."""

    running: Replicas
    cut_off: bool = False  # a metric has told of a client that did not read

    @property
    def url(self) -> str:
        return self.running.url

    def ask(self, method: str, path: str, **given: Any) -> httpx.Response:
        return httpx.request(method, self.url + path, timeout=STUCK_S, trust_env=False, **given)

    def speech(self, **body: Any) -> httpx.Response:
        return self.ask("POST", "/v1/audio/speech", json=body)

    def metrics(self) -> dict[str, dict[str, float]]:
        """Replica to metric to value, asked at each one's own port. One that is just ending has none."""
        seen: dict[str, dict[str, float]] = {}
        for url in self.running.each:
            try:
                page = httpx.get(url + "/metrics", timeout=STUCK_S, trust_env=False).text
            except httpx.TransportError:  # it listened a moment ago
                continue
            for line in page.splitlines():
                if match := re.match(r'(\S+?)\{.*replica="(\w+)".*\} (\S+)$', line):
                    seen.setdefault(match[2], {})[match[1]] = float(match[3])
                    self.cut_off |= 'reason="slow_client"' in line
        return seen

    def speaking(self) -> float:
        return sum(m["stentor:num_requests_running"] for m in self.metrics().values())


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    voices = str(tmp_path_factory.mktemp("voices"))
    flags = (
        "--max-num-seqs",
        "4",
        "--voices-dir",
        voices,
        "--no-guard",
        "--max-buffered-mb",
        "0.25",
    )
    with replicas(2, *flags) as running:
        yield Cluster(running)


def test_errors_ids_and_limits_are_the_servers_own(cluster: Cluster) -> None:
    refused = cluster.speech(input="")
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "input")
    assert cluster.ask("GET", "/nowhere").status_code == 404
    large = {"content": b"x" * (40 << 20), "headers": {"Content-Type": "application/json"}}
    with httpx.stream(
        "POST", cluster.url + "/v1/audio/speech", **large, timeout=STUCK_S, trust_env=False
    ) as big:
        # a proxy that is just reloaded closes early, and the answer's body may be lost
        assert big.status_code == 413
    named = cluster.ask("GET", "/v1/models", headers={"X-Request-Id": "mine-1"})
    assert named.headers.get_list("x-request-id") == ["mine-1"]
    assert len(cluster.speech(input="Hello.").headers.get_list("x-request-id")) == 1
    assert cluster.ask("GET", "/").status_code == 200


def test_audio_of_a_seed_is_the_same_from_any_replica(cluster: Cluster) -> None:
    answers = [
        cluster.speech(input="Hello there.", seed=7, response_format="wav").content
        for _ in range(6)
    ]
    assert len({len(a) for a in answers}) == 1


def test_parts_come_as_they_are_made(cluster: Cluster) -> None:
    with httpx.stream(
        "POST", cluster.url + "/v1/audio/speech", json=LONG, timeout=STUCK_S, trust_env=False
    ) as answer:
        parts = [len(part) for part in answer.iter_raw()]
    assert len(parts) > 5
    with httpx.stream(
        "POST",
        cluster.url + "/v1/audio/speech",
        json={**LONG, "stream_format": "sse"},
        timeout=STUCK_S,
        trust_env=False,
    ) as answer:
        events = [line for line in answer.iter_lines() if line.startswith("event:")]
    assert events[-1] == "event: speech.audio.done"


def test_a_session_over_websocket(cluster: Cluster) -> None:
    with connect(cluster.url.replace("http", "ws") + "/v1/audio/speech/stream", proxy=None) as ws:
        ws.send(
            json.dumps({"type": "session.config", "response_format": "pcm", "max_new_tokens": 60})
        )
        assert json.loads(ws.recv())["type"] == "session.configured"
        ws.send(json.dumps({"type": "input.text", "text": "Hello there. How are you? "}))
        ws.send(json.dumps({"type": "input.done"}))
        received = [ws.recv()]
        while not isinstance(received[-1], str) or json.loads(received[-1])["type"] not in (
            "session.done",
            "error",
        ):
            received.append(ws.recv())
    assert json.loads(received[-1])["type"] == "session.done"
    assert any(isinstance(m, bytes) for m in received)


def test_any_replica_tells_the_outcome_of_a_request(cluster: Cluster) -> None:
    def told(i: int) -> int:
        id = f"outcome-{i}"
        short = {"input": "Hello.", "max_new_tokens": 4}
        spoken = cluster.ask("POST", "/v1/audio/speech", json=short, headers={"X-Request-Id": id})
        assert spoken.status_code == 200
        return cluster.ask("GET", f"/v1/audio/speech/{id}").status_code

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(told, range(100))) == [200] * 100


def test_a_voice_uploaded_once_is_known_to_both(cluster: Cluster) -> None:
    files = {"audio_sample": ("a.wav", tone_wav(), "audio/wav")}
    added = cluster.ask(
        "POST", "/v1/audio/voices", data={"name": "anna", "consent": "yes"}, files=files
    )
    assert added.status_code in (200, 201), added.text
    lists = [
        cluster.ask("GET", "/v1/audio/voices", params={"format": "names"}).json()["voices"]
        for _ in range(8)
    ]
    assert all("anna" in names for names in lists)


def test_a_client_that_leaves_frees_its_slot(cluster: Cluster) -> None:
    with httpx.stream(
        "POST", cluster.url + "/v1/audio/speech", json=LONG, timeout=STUCK_S, trust_env=False
    ) as answer:
        next(answer.iter_raw())
    assert until(lambda: cluster.speaking() == 0)


def test_a_client_that_stops_reading_is_cut_off(cluster: Cluster) -> None:
    text = " ".join(
        f"This is sentence number {i} of a long text that nobody reads." for i in range(60)
    )
    body = {**LONG, "input": text, "response_format": "wav", "sample_rate": 48000, "speed": 0.25}
    data = json.dumps(body).encode()
    with socket.socket() as s:
        s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 8192)
        s.connect(("127.0.0.1", int(cluster.url.rsplit(":", 1)[1])))
        s.sendall(
            b"POST /v1/audio/speech HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        )
        s.sendall(b"Content-Length: %d\r\n\r\n" % len(data) + data)
        assert s.recv(100).startswith(b"HTTP/1.1 200")
        assert until(lambda: cluster.speaking() == 0 and cluster.cut_off)


def test_every_metric_names_its_replica(cluster: Cluster) -> None:
    assert len(cluster.metrics()) == 2


def test_a_lost_replica_is_replaced(cluster: Cluster, tmp_path: Path) -> None:
    """The process of a replica is killed. Requests meanwhile reach the other one, but for one that the proxy gives to the
    lost one before it has seen the end of that."""

    def answered() -> bool:
        try:
            return cluster.speech(input="Hello.", max_new_tokens=4).status_code == 200
        except httpx.RemoteProtocolError:
            return False

    before = set(cluster.metrics())
    os.kill(cluster.running.processes()[0], signal.SIGKILL)
    assert until(answered)
    assert until(lambda: len(set(cluster.metrics()) - before) == 1)
