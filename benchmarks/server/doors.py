"""Measure how much later the first audio comes through each door of the server than in process.

Run: python benchmarks/server/doors.py [--rounds 300] [--out FILE]
Needs: the packages of `stentor[server]`. No GPU.

One utterance at a time. In each round every door speaks once, so that other work of the machine falls on all of them.
Connections are made before the clock starts, as clients keep theirs. The model is the toy, which takes a millisecond for
a frame, with a rate of 24 kHz, so that no door resamples. The engine is a process of its own, as in any server.

It prints JSON. Per door: the time to first audio (median, and the fastest tenth, which other work of the machine touches
least), the processor time of the server's process until then, and how much more each is than at the door `beside`. Its
own HTTP and WebSocket are beside the same speech in process, whose processor time is not the server's.
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
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from websockets.sync.client import ClientConnection, connect

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from benchmarks.server.serve import Server  # noqa: E402
from stentor.models import new_family  # noqa: E402

TEXT = "Hello there, you."
RATE = 24000
FAMILY = "doors"
CHANGES = (  # of the toy: frames of 10 ms at 24 kHz, and 8 of them
    ("spec.py", "rate=600", f"rate={RATE}"),
    ("spec.py", "Option(64,", "Option(8,"),
    ("config.py", "HOP = 6", "HOP = 240"),
    (
        "codec.py",
        "self.up2 = CausalConvTranspose1d(4, 4, 2)",
        "self.up2 = CausalConvTranspose1d(4, 4, 80)",
    ),
)
JSON = {"Content-Type": "application/json"}
IN_PROCESS = "in process"
SETTLE_S = 0.005  # for what the server does when an utterance has ended
LIMIT_S = 120
WARM_UP = 10  # rounds


class Clock:
    """Times of one utterance. A door starts it when it sends the text and reports its audio."""

    def __init__(self, process: int) -> None:
        self.process = process
        self.started = 0.0
        self.cpu_at_start = 0.0
        self.first_audio: float | None = None  # seconds from the start
        self.cpu = 0.0  # seconds of the process until then

    def start(self) -> None:
        time.sleep(SETTLE_S)
        self.cpu_at_start = cpu_seconds(self.process)
        self.started = time.perf_counter()

    def audio(self) -> None:
        if self.first_audio is None:
            self.first_audio = time.perf_counter() - self.started
            self.cpu = cpu_seconds(self.process) - self.cpu_at_start


Speak = Callable[[Clock], None]


class Door(NamedTuple):
    """A way to have the text spoken. beside: the name of the door that it is compared with."""

    speak: Speak
    beside: str


def cpu_seconds(pid: int) -> float:
    """Processor time of a process's threads so far, to the nanosecond."""
    tasks = Path(f"/proc/{pid}/task").glob("*/schedstat")
    return sum(int(task.read_text().split()[0]) for task in tasks) / 1e9


def write_family(folder: Path) -> None:
    """Write the toy with other constants into a folder, as an installed package."""
    new_family.write(FAMILY, folder / "source")
    package = folder / f"stentor_{FAMILY}"
    (folder / "source" / package.name).rename(package)
    for name, line, new in CHANGES:
        source = (package / name).read_text()
        assert line in source, line
        (package / name).write_text(source.replace(line, new))
    info = folder / f"stentor_{FAMILY}-0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: stentor-{FAMILY}\nVersion: 0\n")
    (info / "entry_points.txt").write_text(f"[stentor.families]\n{FAMILY} = {package.name}\n")


def in_process(tts: Any) -> Speak:
    def speak(clock: Clock) -> None:
        clock.start()
        for _ in tts.stream(TEXT):
            clock.audio()

    return speak


def over_http(port: int, path: str, body: dict[str, Any], mark: bytes = b"") -> Speak:
    """mark: what stands in the part of the answer that has audio."""
    client = http.client.HTTPConnection("127.0.0.1", port, timeout=LIMIT_S)
    data = json.dumps(body)

    def speak(clock: Clock) -> None:
        client.request("GET", "/health")
        client.getresponse().read()
        clock.start()
        client.request("POST", path, data, JSON)
        answer = client.getresponse()
        assert answer.status == 200, answer.read()
        while part := answer.read1():
            if mark in part:
                clock.audio()

    return speak


class Messages(NamedTuple):
    """A protocol over a socket: what opens an utterance, what has it spoken, what is in messages with audio (None: those
    are binary), and what is in the last one."""

    opening: Sequence[dict[str, Any]]
    text: Sequence[dict[str, Any]]
    audio: str | None
    last: str


def converse(ws: ClientConnection, messages: Messages, clock: Clock) -> None:
    for message in messages.opening:
        ws.send(json.dumps(message))
    clock.start()
    for message in messages.text:
        ws.send(json.dumps(message))
    while True:
        frame = ws.recv(timeout=LIMIT_S)
        if isinstance(frame, bytes):
            clock.audio()
            continue
        assert '"error"' not in frame[:40], frame
        if messages.audio is not None and messages.audio in frame:
            clock.audio()
        if messages.last in frame:
            return


def over_socket(
    port: int,
    path: str,
    messages: Messages,
    connections: ExitStack,
    before: Sequence[dict[str, Any]] = (),
    greets: bool = False,
) -> Speak:
    """Speak over one connection, which lasts. before: sent once, and each is answered. greets: the server begins."""
    socket = connect(f"ws://127.0.0.1:{port}{path}", proxy=None, max_size=None)
    ws = connections.enter_context(socket)
    if greets:
        ws.recv(timeout=LIMIT_S)
    for message in before:
        ws.send(json.dumps(message))
        ws.recv(timeout=LIMIT_S)
    return lambda clock: converse(ws, messages, clock)


def over_own_sockets(port: int, path: str, messages: Messages) -> Speak:
    """Speak over a connection for each utterance."""

    def speak(clock: Clock) -> None:
        with connect(f"ws://127.0.0.1:{port}{path}", proxy=None, max_size=None) as ws:
            converse(ws, messages, clock)

    return speak


def over_wyoming(port: int, connections: ExitStack) -> Speak:
    stream = connections.enter_context(socket.create_connection(("127.0.0.1", port)))
    file: BinaryIO = connections.enter_context(stream.makefile("rwb"))

    def speak(clock: Clock) -> None:
        clock.start()
        file.write(json.dumps({"type": "synthesize", "data": {"text": TEXT}}).encode() + b"\n")
        file.flush()
        while True:
            head = json.loads(file.readline())
            file.read(head.get("data_length", 0))
            if file.read(head.get("payload_length", 0)):
                clock.audio()
            if head["type"] == "audio-stop":
                return

    return speak


def http_doors(port: int) -> dict[str, Door]:
    ours = {"input": TEXT, "response_format": "pcm"}
    eleven, pcm = "/v1/text-to-speech/default", f"?output_format=pcm_{RATE}"
    dialogue = {"inputs": [{"text": TEXT, "voice_id": "default"}]}
    spoken = {"text": TEXT}
    return {
        "HTTP": Door(over_http(port, "/v1/audio/speech", ours), IN_PROCESS),
        "HTTP, server-sent events": Door(
            over_http(
                port, "/v1/audio/speech", {**ours, "stream_format": "sse"}, b"speech.audio.delta"
            ),
            "HTTP",
        ),
        "ElevenLabs, HTTP": Door(over_http(port, f"{eleven}/stream{pcm}", spoken), "HTTP"),
        "ElevenLabs, HTTP with times": Door(
            over_http(port, f"{eleven}/stream/with-timestamps{pcm}", spoken), "HTTP"
        ),
        "ElevenLabs, dialogue over HTTP": Door(
            over_http(port, f"/v1/text-to-dialogue/stream{pcm}", dialogue), "HTTP"
        ),
    }


def elevenlabs_sockets(port: int, connections: ExitStack) -> dict[str, Door]:
    pcm = f"?output_format=pcm_{RATE}"
    speech, dialogue = "/v1/text-to-speech/default", "/v1/text-to-dialogue"
    audio = '"alignment":null'
    one = Messages([{"text": " "}], [{"text": TEXT}, {"text": ""}], audio, '"isFinal":true')
    context = {"text": TEXT, "context_id": "a", "flush": True, "close_context": True}
    several = Messages([], [context], audio, '"isFinal":true')
    line = {"text": TEXT, "voice_id": "default"}
    turn = Messages(
        [{"context_id": "a", "voices": ["default"]}],
        [{"context_id": "a", "inputs": [line]}, {"context_id": "a", "close_context": True}],
        audio,
        '"is_final":true',
    )
    return {
        "ElevenLabs, stream-input": Door(
            over_own_sockets(port, f"{speech}/stream-input{pcm}", one), "WebSocket"
        ),
        "ElevenLabs, multi-stream-input": Door(
            over_socket(port, f"{speech}/multi-stream-input{pcm}", several, connections),
            "WebSocket",
        ),
        "ElevenLabs, dialogue over a socket": Door(
            over_socket(port, f"{dialogue}/multi-stream-input{pcm}", turn, connections),
            "WebSocket",
        ),
    }


def socket_doors(port: int, connections: ExitStack) -> dict[str, Door]:
    config = {"type": "session.config", "response_format": "pcm"}
    say = Messages(
        [], [{"type": "input.text", "text": TEXT}, {"type": "input.done"}], None, "session.done"
    )
    item = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": TEXT}]}
    create = {"type": "response.create", "response": {"input": [item], "conversation": "none"}}
    respond = Messages([], [create], "output_audio.delta", "response.done")
    realtime = "/v1/realtime?model=gpt-realtime"
    return {
        "WebSocket": Door(
            over_socket(port, "/v1/audio/speech/stream", say, connections, [config]), IN_PROCESS
        ),
        **elevenlabs_sockets(port, connections),
        "Realtime": Door(
            over_socket(port, realtime, respond, connections, greets=True), "WebSocket"
        ),
    }


def measured(doors: dict[str, Door], process: int, rounds: int) -> dict[str, Any]:
    """Figures of each door. process: the server's."""
    clocks: dict[str, list[Clock]] = {name: [] for name in doors}
    for number in range(WARM_UP + rounds):
        for name, door in doors.items():
            clock = Clock(process)
            door.speak(clock)
            assert clock.first_audio is not None, name
            if number >= WARM_UP:
                clocks[name].append(clock)

    figures = {name: figures_of(times) for name, times in clocks.items()}
    report = {}
    for name, door in doors.items():
        others = figures[door.beside]
        more = {f"more_{key}": round(figures[name][key] - others[key], 3) for key in others}
        report[name] = {**figures[name], "beside": door.beside, **more}
    return report


def figures_of(clocks: Sequence[Clock]) -> dict[str, float]:
    """Times of a door, in milliseconds."""
    first = [1e3 * (clock.first_audio or 0) for clock in clocks]
    cpu = [1e3 * clock.cpu for clock in clocks]
    return {
        "first_audio_ms": round(statistics.median(first), 3),
        "fastest_tenth_ms": round(statistics.quantiles(first, n=10)[0], 3),
        "cpu_ms": round(statistics.median(cpu), 3),
    }


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
    return port


def run(folder: Path, rounds: int) -> dict[str, Any]:
    """Serve the toy, and measure."""
    write_family(folder)
    sys.path.insert(0, str(folder))
    os.environ["PYTHONPATH"] = str(folder)
    import stentor

    model = f"dummy:{FAMILY}"
    wyoming = free_port()
    flags = ("--wyoming-port", str(wyoming), "--no-log-requests", "--ws-idle-seconds", "3600")
    log = folder / "server.log"
    server = Server([model], "cpu", 8, log, flags)
    try:
        assert server.ready(300) is not None, log.read_text()
        with stentor.TTS(model, device="cpu", max_num_seqs=8) as tts, ExitStack() as connections:
            doors = {
                IN_PROCESS: Door(in_process(tts), IN_PROCESS),
                **http_doors(server.port),
                **socket_doors(server.port, connections),
                "Wyoming": Door(over_wyoming(wyoming, connections), "WebSocket"),
            }
            return measured(doors, server.process.pid, rounds)
    finally:
        server.process.terminate()
        server.process.wait(60)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=300)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        doors = run(Path(folder), arguments.rounds)
    report = {"rounds": arguments.rounds, "load": os.getloadavg(), "doors": doors}
    text = json.dumps(report, indent=1)
    print(text)
    if arguments.out is not None:
        arguments.out.parent.mkdir(parents=True, exist_ok=True)
        arguments.out.write_text(text + "\n")


if __name__ == "__main__":
    main()
