"""Two replicas under attack: nobody waits for those who never go on, and no replica is lost. What Ray's proxy answers to
them is its own."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import struct
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import httpx
import pytest

from tests.helpers.patience import STUCK_S
from tests.helpers.replicas import NEEDS_RAY, Replicas, replicas
from tests.helpers.server_live import tone_wav
from tests.helpers.stuck_clients import GET_WS, POST, address, stuck

pytestmark = NEEDS_RAY

FLOOD = 1000  # connections of a thread
ASKED = {"input": "Hello there.", "max_new_tokens": 4, "response_format": "pcm"}


@dataclass
class Attacked:
    """Replicas, and clients whose connections stay to their end. pids: of the replicas at the start."""

    running: Replicas
    to_the_end: contextlib.ExitStack
    pids: list[int]

    def ask(self, method: str, path: str, **given: object) -> httpx.Response:
        with httpx.Client(base_url=self.running.url, timeout=STUCK_S, trust_env=False) as http:
            return http.request(method, path, **given)  # type: ignore[arg-type]

    def honest(self, requests: int = 12) -> list[int]:
        """The answers to clients who do nothing wrong, so many that each replica has some."""
        with ThreadPoolExecutor(4) as pool:
            asked = pool.map(
                lambda _: self.ask("POST", "/v1/audio/speech", json=ASKED).status_code,
                range(requests),
            )
            return list(asked)


@pytest.fixture(scope="module")
def attacked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Attacked]:
    voices = tmp_path_factory.mktemp("voices")
    os.mkfifo(voices / "fifo.safetensors")
    (voices / "noise.safetensors").write_bytes(bytes(range(256)) * 10)
    with open(os.fsencode(voices) + b"/\xff\xfe.safetensors", "wb") as file:
        file.write(b"no name")
    flags = ("--max-num-seqs", "4", "--voices-dir", str(voices), "--drain-seconds", "1")
    with contextlib.ExitStack() as to_the_end, replicas(2, *flags) as running:
        yield Attacked(running, to_the_end, sorted(running.processes()))


@pytest.fixture(autouse=True)
def _no_replica_is_lost(attacked: Attacked) -> Iterator[None]:
    yield
    assert sorted(attacked.running.processes()) == attacked.pids
    assert attacked.honest() == [200] * 12


def test_clients_that_never_go_on_keep_nobody_out(attacked: Attacked) -> None:
    """At the proxy, and at the port of each replica. They stay, and the replicas end in their time nevertheless."""
    for url in (attacked.running.url, *attacked.running.each):
        attacked.to_the_end.enter_context(stuck(url, 12))
    assert attacked.honest() == [200] * 12


def test_connections_that_are_reset_in_a_flood_keep_nobody_out(attacked: Attacked) -> None:
    over = threading.Event()
    reset = struct.pack("ii", 1, 0)  # close sends a reset

    def flood() -> int:
        made = 0
        while made < FLOOD and not over.is_set():
            with (
                contextlib.suppress(OSError),
                socket.create_connection(address(attacked.running.url), STUCK_S) as s,
            ):
                s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, reset)
                s.sendall(
                    (
                        b"",
                        POST,
                        POST + b"Content-Length: 99\r\n\r\n{",
                        GET_WS + b"\r\n",
                        b"\x16\x03\x01",
                    )[made % 5]
                )
                made += 1
        return made

    with ThreadPoolExecutor(4) as pool:
        floods = [pool.submit(flood) for _ in range(4)]
        answers = attacked.honest()
        over.set()
        assert answers == [200] * 12
        assert all(f.result(STUCK_S) > 0 for f in floods)


def test_bodies_that_drip_take_no_places(attacked: Attacked) -> None:
    """All have the proxy's address, for which there is a limit."""
    with contextlib.ExitStack() as stack:
        dripping = [
            stack.enter_context(socket.create_connection(address(attacked.running.url), STUCK_S))
            for _ in range(200)
        ]
        for part in (POST + b"Content-Length: 99\r\n\r\n", b"{", b" "):
            for s in dripping:
                with contextlib.suppress(OSError):
                    s.sendall(part)
        assert attacked.honest() == [200] * 12


def test_a_page_of_another_name_gets_nothing(attacked: Attacked) -> None:
    page = {"Host": "evil.example", "Origin": "http://evil.example"}
    for method in ("GET", "POST", "DELETE"):
        answer = attacked.ask(method, "/v1/audio/voices/x", headers=page)
        assert (answer.status_code, answer.json()["error"]["code"]) == (403, "host_not_allowed")


def test_files_that_are_no_voices_are_left_out(attacked: Attacked) -> None:
    for _ in range(6):
        listed = attacked.ask("GET", "/v1/audio/voices")
        assert listed.status_code == 200
        assert listed.json()["uploaded_voices"] == []
        for name in ("fifo", "noise", "%FF%FE"):
            assert (
                attacked.ask("POST", "/v1/audio/speech", json={**ASKED, "voice": name}).status_code
                == 400
            )
    files = {"audio_sample": ("v.wav", tone_wav(), "audio/wav")}
    added = attacked.ask(
        "POST", "/v1/audio/voices", data={"name": "anna", "consent": "yes"}, files=files
    )
    assert added.status_code == 200, added.text


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/audio/speech", "[" * 10_000),
        ("/v1/audio/speech", '{"input": "Hello.", "seed": ' + "9" * 5_000 + "}"),
        ("/v1/audio/speech/batch", json.dumps({"items": [{"input": ""}] * 33})),
        ("/v1/load_lora_adapter", '{"lora_name": "x", "lora_path": "/dev/zero"}'),
    ],
)
def test_what_no_server_takes_is_a_4xx(attacked: Attacked, path: str, body: str) -> None:
    answer = attacked.ask("POST", path, content=body, headers={"Content-Type": "application/json"})
    assert 400 <= answer.status_code < 500
    assert answer.json()["error"]["message"]


def test_halves_of_surrogate_pairs_are_spoken(attacked: Attacked) -> None:
    body = '{"input": "Hello \\ud83d there.", "max_new_tokens": 4}'
    sent = {"content": body, "headers": {"Content-Type": "application/json"}}
    assert attacked.ask("POST", "/v1/audio/speech", **sent).status_code == 200
