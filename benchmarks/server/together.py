"""Measure the first audio of requests that come at once over HTTP, with a client that takes next to no time itself.

Run: python benchmarks/server/together.py [--rounds 15] [--requests 16] [--out FILE] [MODEL ...]
     python benchmarks/server/together.py --device cpu --seconds 1.2 --rounds 2 dummy:toy        a dry run
Needs: a GPU, and the packages of `stentor[server]`. About 45 s for a model.

The client has a connection for each request already, writes all requests within a millisecond or two, and then waits
for all of them in one loop. A request's time is from the moment before it is written to its first byte of audio.
Rounds of plain requests and of requests in an uploaded voice of 28 s take turns. The next round begins when every
answer of the last has ended. The table has medians over rounds: of the median, the mean, the first and the last of a
round. Before, requests come one at a time: the very first after the start, which has a new voice in its body, and then
medians of plain ones, of the uploaded voice and of new voices. For a Base model of Qwen3-TTS the plain voice is one of
1 s.
"""

from __future__ import annotations

import argparse
import base64
import json
import selectors
import socket
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # this tree, also where none is installed
from benchmarks.cloned_voices import numbered_text, parser, run, words_of
from benchmarks.server.serve import Server, serving
from benchmarks.server.voices import FORCED, plain_voice, recorded, upload

NEW = 9  # requests one at a time of each kind, of which the median is taken
HEAD_ENDS, ANSWER_ENDS = b"\r\n\r\n", b"0\r\n\r\n"


class Connections:
    """Connections that are kept, one for each request of a round."""

    def __init__(self, server: Server, model: str, requests: int) -> None:
        self.server, self.model = server, model
        self.sockets = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(requests)]
        for each in self.sockets:
            each.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def alone(self, extra: dict[str, Any]) -> float:
        """Milliseconds to the first audio of one request."""
        return self.round(extra, 1)[0]

    def round(self, extra: dict[str, Any], requests: int | None = None) -> list[float]:
        """Milliseconds to the first audio of each request, in the order in which they were sent. None: of one on each
        connection."""
        sockets = self.sockets[:requests]
        ready = [self._request(extra) for _ in sockets]
        sent = []
        for each, data in zip(sockets, ready, strict=True):
            sent.append(time.perf_counter())
            each.sendall(data)
        first: dict[int, float] = {}
        seen = dict.fromkeys(range(len(ready)), b"")
        with selectors.DefaultSelector() as selector:
            for i, each in enumerate(sockets):
                selector.register(each, selectors.EVENT_READ, i)
            while seen:
                for key, _ in selector.select():
                    i, data = key.data, self.sockets[key.data].recv(1 << 20)
                    self._read(i, data, seen, first)
                    if seen[i].endswith(ANSWER_ENDS):
                        selector.unregister(self.sockets[i])
                        del seen[i]
        return [(first[i] - began) * 1e3 for i, began in enumerate(sent)]

    def _read(self, i: int, data: bytes, seen: dict[int, bytes], first: dict[int, float]) -> None:
        """Note when the first audio has come. Of what was read, the head or the last bytes are kept."""
        if i in first:
            seen[i] = (seen[i] + data)[-len(ANSWER_ENDS) :]
            return
        seen[i] += data
        if not data or not seen[i].startswith(b"HTTP/1.1 200"[: len(seen[i])]):
            raise RuntimeError(f"a request failed: {seen[i][:500]!r}")
        _, ends, audio = seen[i].partition(HEAD_ENDS)
        if ends and audio:
            first[i] = time.perf_counter()

    def _request(self, extra: dict[str, Any]) -> bytes:
        body = {"model": self.model, "input": numbered_text(), "response_format": "pcm", "stream": True}
        data = json.dumps({**body, **FORCED, **extra}).encode()
        head = f"POST /v1/audio/speech HTTP/1.1\r\nHost: 127.0.0.1:{self.server.port}\r\nAccept: */*\r\n"
        return f"{head}Content-Type: application/json\r\nContent-Length: {len(data)}\r\n\r\n".encode() + data


def new_voice(audio: Path, said: str | None) -> dict[str, Any]:
    """What a request has whose voice is in its body."""
    given = {"ref_audio": "data:audio/wav;base64," + base64.b64encode(audio.read_bytes()).decode()}
    return given if said is None else {**given, "ref_text": said}


def of_rounds(rounds: Sequence[list[float]]) -> dict[str, float]:
    """Medians over rounds."""
    kinds = {"median": statistics.median, "mean": statistics.fmean, "first": min, "last": max}
    return {name: round(statistics.median(kind(r) for r in rounds), 2) for name, kind in kinds.items()}


def measure(model: str, args: argparse.Namespace, folder: Path) -> dict[str, Any]:
    said = words_of(model, args.seconds)
    log = folder / "server.log"
    with serving(model, args.device, 64, log) as server:
        if server.ready(100) is None:
            raise RuntimeError(log.read_text()[-3000:])
        connections = Connections(server, model, args.requests)
        new = [new_voice(recorded(folder, args.seconds, seed), said) for seed in range(10, 11 + NEW)]
        alone = {"very first, a new voice": round(connections.alone(new[0]), 2)}
        upload(server, "anna", recorded(folder, args.seconds, 2), said)
        kinds = {"plain": plain_voice(server, model, folder), "known voice": {"voice": "anna"}}
        for name, lines in {**{kind: [extra] * NEW for kind, extra in kinds.items()}, "new voice": new[1:]}.items():
            alone[name] = round(statistics.median(map(connections.alone, lines)), 2)
        for extra in (*kinds.values(), *kinds.values()):  # they load what is read late, and encode the voices
            connections.round(extra)
        times: dict[str, list[list[float]]] = {kind: [] for kind in kinds}
        for _ in range(args.rounds):
            for kind, extra in kinds.items():
                times[kind].append(connections.round(extra))
    found: dict[str, Any] = {"alone": alone} | {kind: of_rounds(rounds) for kind, rounds in times.items()}
    found["ratio of medians"] = round(found["known voice"]["median"] / found["plain"]["median"], 3)
    found["rounds"] = {kind: [[round(t, 2) for t in r] for r in rounds] for kind, rounds in times.items()}
    return found


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--rounds", type=int, default=15)
    options.add_argument("--requests", type=int, default=16, help="that come at once")
    args = options.parse_args()

    def measured(model: str) -> dict[str, Any]:
        with tempfile.TemporaryDirectory() as folder:
            return measure(model, args, Path(folder))

    result: dict[str, Any] = {}
    run(args, measured, result)
    for model, found in result.items():
        print(f"{model:<30} alone       ", *(f"{name} {value:6.1f}" for name, value in found["alone"].items()))
        for kind in ("plain", "known voice"):
            print(f"{model:<30} {kind:<12}", *(f"{name} {value:6.1f}" for name, value in found[kind].items()))


if __name__ == "__main__":
    main()
