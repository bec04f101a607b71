"""Measure what a door of another protocol costs: the same speech of the toy through each door and through our own API.

Run: python benchmarks/server/doors.py [--rounds 20] [--requests 20] [--out FILE]
Needs: the packages of `stentor[server]`. No GPU.

One client at a time. Doors take turns, round by round, so that what else the machine does falls on all of them. It
prints JSON: per door the median over rounds of the processor time of the server's process per request, and of the time
until the first audio, each beside the API of ours with the same audio (rate and frames) over the same transport. The
engine is a process of its own and does not count. A speech of the toy is 20 frames.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import socket
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from functools import cache
from pathlib import Path
from typing import Any, BinaryIO

from websockets.sync.client import connect

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from benchmarks.server.serve import Server  # noqa: E402

TEXT, FRAMES = "Hello there, you.", {"min_frames": 20, "max_frames": 20, "guard": False}
RATE = 24000
OPEN = ExitStack()  # connections, until the end
Speak = Callable[[], float]
"""Has the text spoken. Returns when its first audio came."""


def over_http(port: int, path: str, body: dict[str, Any]) -> Speak:
    client = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
    data = json.dumps(body)

    def speak() -> float:
        client.request("POST", path, data, {"Content-Type": "application/json"})
        answer = client.getresponse()
        assert answer.status == 200, answer.read()
        answer.read(1)
        first = time.perf_counter()
        answer.read()
        client.close()  # else the server would, in a round that takes longer than it waits
        return first

    return speak


def over_socket(
    port: int, path: str, before: list[dict], messages: list[dict], audio: str | None, last: str
) -> Speak:
    """before: sent once, each answered once. audio: what messages with audio have in them, None for binary frames.
    last: what the last message has in it."""
    ws = OPEN.enter_context(connect(f"ws://127.0.0.1:{port}{path}", proxy=None, max_size=None))
    if "realtime" in path:
        ws.recv()
    for message in before:
        ws.send(json.dumps(message))
        ws.recv()

    def speak() -> float:
        for message in messages:
            ws.send(json.dumps(message))
        first = 0.0
        while True:
            frame = ws.recv(timeout=120)
            if isinstance(frame, bytes):
                first = first or time.perf_counter()
                continue
            assert '"error"' not in frame[:40], frame
            if audio is not None and not first and audio in frame:
                first = time.perf_counter()
            if last in frame:
                return first

    return speak


def over_wyoming(port: int) -> Speak:
    @cache
    def connection() -> BinaryIO:
        return socket.create_connection(("127.0.0.1", port)).makefile("rwb")

    def speak() -> float:
        file = connection()
        file.write(json.dumps({"type": "synthesize", "data": {"text": TEXT}}).encode() + b"\n")
        file.flush()
        first = 0.0
        while True:
            head = json.loads(file.readline())
            file.read(head.get("data_length", 0))
            if file.read(head.get("payload_length", 0)) and not first:
                first = time.perf_counter()
            if head["type"] == "audio-stop":
                return first

    return speak


def doors(port: int, wyoming: int) -> dict[str, tuple[Speak, str]]:
    """Each way to have it spoken, and the one that it is compared with."""
    ours = {"input": TEXT, "response_format": "pcm"}
    config = {"type": "session.config", "response_format": "pcm"}
    say = [{"type": "input.text", "text": TEXT}, {"type": "input.done"}]
    own = "/v1/audio/speech/stream"
    context = {"text": TEXT, "context_id": "a", "close_context": True, **FRAMES}
    item = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": TEXT}]}
    create = {"type": "response.create", "response": {"input": [item], "conversation": "none"}}
    eleven, pcm = "/v1/text-to-speech/default", f"?output_format=pcm_{RATE}"
    spoken = {"text": TEXT, **FRAMES}
    return {
        "http": (
            over_http(port, "/v1/audio/speech", {**ours, **FRAMES, "sample_rate": RATE}),
            "http",
        ),
        "elevenlabs http": (over_http(port, f"{eleven}/stream{pcm}", spoken), "http"),
        "elevenlabs http timed": (
            over_http(port, f"{eleven}/stream/with-timestamps{pcm}", spoken),
            "http",
        ),
        "socket": (
            over_socket(
                port, own, [{**config, "sample_rate": RATE, **FRAMES}], say, None, "session.done"
            ),
            "socket",
        ),
        "elevenlabs socket": (
            over_socket(
                port,
                f"{eleven}/multi-stream-input{pcm}",
                [],
                [context],
                '"alignment":null',
                '"isFinal":true',
            ),
            "socket",
        ),
        "socket, 64 frames": (
            over_socket(port, own, [{**config, "sample_rate": RATE}], say, None, "session.done"),
            "socket, 64 frames",
        ),
        "realtime": (
            over_socket(
                port,
                "/v1/realtime?model=gpt-realtime",
                [],
                [create],
                "output_audio.delta",
                "response.done",
            ),
            "socket, 64 frames",
        ),
        "socket, own rate, 64 frames": (
            over_socket(port, own, [config], say, None, "session.done"),
            "socket, own rate, 64 frames",
        ),
        "wyoming": (over_wyoming(wyoming), "socket, own rate, 64 frames"),
    }


def cpu_seconds(pid: int) -> float:
    """Processor time of a process's threads so far, to the nanosecond."""
    return (
        sum(int(t.read_text().split()[0]) for t in Path(f"/proc/{pid}/task").glob("*/schedstat"))
        / 1e9
    )


def measured(server: Server, wyoming: int, rounds: int, requests: int) -> dict[str, Any]:
    ways = doors(server.port, wyoming)
    for speak, _ in ways.values():
        for _ in range(3):
            speak()
    cpu: dict[str, list[float]] = {name: [] for name in ways}
    first: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(rounds):
        for name, (speak, _) in ways.items():
            before = cpu_seconds(server.process.pid)
            for _ in range(requests):
                began = time.perf_counter()
                first[name].append(1e3 * (speak() - began))
            cpu[name].append(1e3 * (cpu_seconds(server.process.pid) - before) / requests)
    found = {}
    for name, (_, other) in ways.items():
        found[name] = {
            "cpu_ms": round(statistics.median(cpu[name]), 3),
            "first_audio_ms": round(statistics.median(first[name]), 3),
            "first_audio_ms_fastest_tenth": round(statistics.quantiles(first[name], n=10)[0], 3),
            "beside": other,
            "more_cpu_ms": round(statistics.median(cpu[name]) - statistics.median(cpu[other]), 3),
            "later_ms": round(statistics.median(first[name]) - statistics.median(first[other]), 3),
        }
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--requests", type=int, default=20, help="per door and round")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        wyoming = free.getsockname()[1]
    with tempfile.TemporaryDirectory() as folder:
        flags = ("--wyoming-port", str(wyoming), "--no-log-requests", "--ws-idle-seconds", "3600")
        server = Server("dummy:toy", "cpu", 8, Path(folder) / "server.log", flags)
        try:
            assert server.ready(300) is not None, (Path(folder) / "server.log").read_text()
            with OPEN:
                ways = measured(server, wyoming, given.rounds, given.requests)
        finally:
            server.process.terminate()
            server.process.wait(60)
    report = {
        "rounds": given.rounds,
        "requests": given.requests,
        "load": os.getloadavg(),
        "doors": ways,
    }
    text = json.dumps(report, indent=1)
    print(text)
    if given.out is not None:
        given.out.parent.mkdir(parents=True, exist_ok=True)
        given.out.write_text(text + "\n")


if __name__ == "__main__":
    main()
