"""Measure the host time of the HTTP server for requests that come together, in all and by part, on a CPU.

Run: python benchmarks/server/burst.py [--streams 16] [--waves 40] [--rounds 3] [--profile FILE] [--json FILE]
Needs: the packages of `stentor[server]`. No GPU.

A client in another process sends all requests of a wave at once on connections that it keeps, and the next wave when
every answer has ended. Waiting replaces the device's work, as in cost.py. The engine's thread is not counted.
The first table is CPU time of the event loop and of the preparing threads per request, without probes. The second has
the loop's CPU time by part: each is without the parts inside it, and probes add to each. The times at the end are of a
wave, by the clock: from the first byte to the last `Engine.submit`, and from the last chunk to the end of all answers.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import cProfile
import functools
import json
import multiprocessing
import os
import selectors
import socket
import statistics
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Generator
from multiprocessing.connection import Connection as Pipe
from pathlib import Path
from typing import Any
from unittest import mock

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # this tree, also where none is installed
from benchmarks.server.cost import Paced, toy

TEXT = "The quick brown fox jumps over the lazy dog, and then it rests for a while in the warm shade of an old tree."
END = b"\r\n0\r\n\r\n"


class Parts:
    """CPU seconds of the event loop by part. A part that runs inside another is not counted in it."""

    def __init__(self) -> None:
        self.seconds: Counter[str] = Counter()
        self.thread = threading.get_ident()
        self._inside: list[float] = []  # seconds of the parts inside each part that runs

    def run(self, name: str, work: Callable[[], Any]) -> Any:
        if threading.get_ident() != self.thread:
            return work()
        began = time.thread_time()
        self._inside.append(0.0)
        try:
            return work()
        finally:
            taken = time.thread_time() - began
            self.seconds[name] += taken - self._inside.pop()
            if self._inside:
                self._inside[-1] += taken

    def probe(self, owner: Any, method: str, name: str) -> Any:
        """A patch that counts a method, or every step of a coroutine."""
        plain = vars(owner)[method]
        if asyncio.iscoroutinefunction(plain):

            async def steps(*args: Any, **named: Any) -> Any:
                return await _Steps(self, name, plain(*args, **named))

            return mock.patch.object(owner, method, steps)
        call = lambda *args, **named: self.run(name, lambda: plain(*args, **named))  # noqa: E731
        return mock.patch.object(owner, method, functools.wraps(plain)(call))


class _Steps:
    """Awaits a coroutine, and counts each of its steps."""

    def __init__(self, parts: Parts, name: str, inner: Coroutine[Any, Any, Any]) -> None:
        self.parts, self.name, self.inner = parts, name, inner

    def __await__(self) -> Generator[Any, Any, Any]:
        step = functools.partial(self.inner.send, None)
        while True:
            try:
                waits = self.parts.run(self.name, step)
            except StopIteration as e:
                return e.value
            step = functools.partial(self.inner.send, None)
            try:
                yield waits
            except BaseException as e:
                step = functools.partial(self.inner.throw, e)


def probes(parts: Parts) -> list[Any]:
    from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

    from stentor.engine.engine import Engine
    from stentor.server.http import json_body, responses
    from stentor.server.http.connections import Connection
    from stentor.server.speech import output, plan, run
    from stentor.server.voices import resolve

    return [
        parts.probe(Connection, "data_received", "1 parse HTTP"),
        parts.probe(RequestResponseCycle, "run_asgi", "2 middleware, route, validation"),
        parts.probe(json_body, "parse", "3 JSON"),
        parts.probe(plan.Planner, "speech", "4 plan"),
        parts.probe(resolve.VoiceResolver, "resolve", "4 plan: voice"),
        parts.probe(plan, "segments", "4 plan: text"),
        parts.probe(plan, "usable", "4 plan: fields"),
        parts.probe(plan, "_validated", "4 plan: check"),
        parts.probe(responses.SpeechResponse, "__init__", "5 begin"),
        parts.probe(run, "make_prompt", "6 prompt"),
        parts.probe(Engine, "submit", "7 submit"),
        parts.probe(responses.SpeechResponse, "_fill", "8 chunks"),
        parts.probe(responses.SpeechResponse, "__call__", "9 respond"),
        parts.probe(responses.SpeechResponse, "_start", "9 respond: start"),
        parts.probe(output.RunningRequest, "completed", "9 respond: record"),
        parts.probe(RequestResponseCycle, "send", "9 respond: write"),
    ]


class Moments:
    """By the clock: when the present wave began, its last submit, its last chunk and its end."""

    def __init__(self) -> None:
        self.first = self.submitted = self.last = self.ended = 0.0

    def probes(self) -> list[Any]:
        from stentor.engine.engine import Engine
        from stentor.engine.stream import Outbox
        from stentor.server.http.connections import Connection

        def before(name: str, plain: Callable[..., Any]) -> Callable[..., Any]:
            def noting(*args: Any, **named: Any) -> Any:
                vars(self)[name] = self.first or time.perf_counter() if name == "first" else time.perf_counter()
                return plain(*args, **named)

            return noting

        places = (("first", Connection, "data_received"), ("submitted", Engine, "submit"), ("last", Outbox, "put"))
        places += (("ended", Connection, "on_response_complete"),)
        return [mock.patch.object(o, m, before(name, vars(o)[m])) for name, o, m in places]

    def taken(self) -> dict[str, float]:
        """ms of the wave that has ended. The next begins with its first byte."""
        found = {"first byte to last submit": self.submitted - self.first, "last chunk to end": self.ended - self.last}
        self.first = 0.0
        return {name: seconds * 1e3 for name, seconds in found.items()}


def serve(pipe: Pipe, a: argparse.Namespace) -> None:
    """The server process. It sends its port, then its figures for each command: reset, probes, read, end."""
    asyncio.run(_serve(pipe, a))


async def _serve(pipe: Pipe, a: argparse.Namespace) -> None:
    import uvicorn

    from stentor.server import logs
    from stentor.server.app import create_app
    from stentor.server.config import ServerConfig
    from stentor.server.http.connections import limited
    from stentor.server.limits import LIMITS
    from stentor.server.main import SWITCH_SECONDS

    torch.set_num_threads(1)
    sys.setswitchinterval(SWITCH_SECONDS)
    logs.configure("info", "text", open(os.devnull, "w"))  # noqa: SIM115 (it is needed to the end)
    tts = toy(a.streams)
    Paced(tts, a.step)
    config = ServerConfig(models=("dummy:toy",), warmup=False, max_active_requests=1000)
    app = create_app(config, load=lambda name, model: lambda: tts)
    options = uvicorn.Config(
        app,
        http=limited(LIMITS, app.state.server.hosts.arriving),
        port=0,
        log_config=None,
        access_log=False,
        server_header=False,
    )
    server, parts, moments, profile = uvicorn.Server(options), Parts(), Moments(), cProfile.Profile()
    stack = contextlib.ExitStack()
    engine = clock_of(tts.engine._thread)

    def figures() -> dict[str, Any]:
        times = {"loop": time.thread_time(), "threads": time.process_time() - time.clock_gettime(engine)}
        times["threads"] -= times["loop"]
        return {"times": times, "parts": dict(parts.seconds), "moments": moments.taken()}

    running = asyncio.create_task(server.serve())
    while not server.started or app.state.server.hosts.all[0].phase != "ready":
        await asyncio.sleep(0.01)
    pipe.send(server.servers[0].sockets[0].getsockname()[1])
    while (command := await asyncio.to_thread(pipe.recv)) != "end":
        if command == "profile":
            profile.enable()
        if command in ("moments", "parts"):
            for each in moments.probes() if command == "moments" else probes(parts):
                stack.enter_context(each)
        if command == "plain":
            stack.close()
        pipe.send(figures())
    profile.disable()
    if a.profile is not None:
        profile.dump_stats(a.profile)
    server.should_exit = True
    await running


def clock_of(thread: threading.Thread | None) -> int:
    """The clock of a thread's CPU time."""
    assert thread is not None
    assert thread.ident is not None
    return time.pthread_getcpuclockid(thread.ident)


class Client:
    """Sends waves of the same request on connections that it keeps."""

    def __init__(self, port: int, a: argparse.Namespace) -> None:
        body = {"model": "dummy:toy", "input": TEXT, "response_format": "pcm", "stream": True, "voice": "default"}
        body |= {"max_new_tokens": a.frames, "min_frames": a.frames}
        data = json.dumps(body).encode()
        head = f"POST /v1/audio/speech HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nAccept: */*\r\nUser-Agent: burst\r\n"
        head += f"Content-Type: application/json\r\nContent-Length: {len(data)}\r\n\r\n"
        self.request = head.encode() + data
        self.sockets = [socket.create_connection(("127.0.0.1", port)) for _ in range(a.streams)]

    def wave(self) -> None:
        """Send a request on each connection, and read all answers."""
        for each in self.sockets:
            each.sendall(self.request)
        with selectors.DefaultSelector() as selector:
            tails = dict.fromkeys(self.sockets, b"")
            for each in self.sockets:
                selector.register(each, selectors.EVENT_READ)
            while tails:
                for key, _ in selector.select():
                    each: Any = key.fileobj
                    data = each.recv(1 << 20)
                    if not data or (not tails[each] and not data.startswith(b"HTTP/1.1 200")):
                        raise RuntimeError(f"a request failed: {data[:300]!r}")
                    tails[each] = (tails[each] + data)[-len(END) :]
                    if tails[each] == END:
                        selector.unregister(each)
                        del tails[each]


def measure(a: argparse.Namespace) -> dict[str, Any]:
    here, there = multiprocessing.Pipe()
    process = multiprocessing.get_context("spawn").Process(target=serve, args=(there, a), daemon=True)
    process.start()
    there.close()  # so that its end is noticed
    try:
        client = Client(here.recv(), a)

        def asked(command: str) -> dict[str, Any]:
            here.send(command)
            found: dict[str, Any] = here.recv()
            return found

        def waves(kind: str) -> tuple[dict[str, Any], dict[str, Any], list[Any]]:
            before, moments = asked(kind), []
            for _ in range(a.waves):
                client.wave()
                if kind == "moments":
                    moments.append(asked("read")["moments"])
            return before, asked("plain"), moments

        requests = a.waves * a.streams
        waves("plain")
        found: dict[str, Any] = {}
        before, after, _ = waves("profile" if a.profile else "plain")
        found["cpu_ms"] = {k: (v - before["times"][k]) / requests * 1e3 for k, v in after["times"].items()}
        before, after, _ = waves("parts")
        found["parts_ms"] = {k: v / requests * 1e3 for k, v in after["parts"].items()}
        moments = waves("moments")[2]
        found["wave_ms"] = {k: statistics.median(m[k] for m in moments) for k in moments[0]}
        here.send("end")
        process.join(30)
    finally:
        process.terminate()
    return found


def table(rounds: list[dict[str, Any]]) -> str:
    """Medians of all rounds."""

    def median(group: str, name: str) -> float:
        return statistics.median(r[group].get(name, 0.0) for r in rounds)

    lines = ["CPU ms per request"]
    lines += [f"  {name:<34}{median('cpu_ms', name):8.3f}" for name in rounds[0]["cpu_ms"]]
    lines += ["CPU ms per request of the event loop by part, with probes"]
    lines += [f"  {name:<34}{median('parts_ms', name):8.3f}" for name in sorted(rounds[0]["parts_ms"])]
    lines += ["ms of a wave by the clock"]
    lines += [f"  {name:<34}{median('wave_ms', name):8.2f}" for name in rounds[0]["wave_ms"]]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--streams", type=int, default=16)
    parser.add_argument("--waves", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=3, help="servers that are started one after another")
    parser.add_argument("--frames", type=int, default=75, help="of a request")
    parser.add_argument("--step", type=float, default=0.005, help="seconds of a step of the device")
    parser.add_argument("--profile", help="a file for cProfile's records of the event loop")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    rounds = [measure(args) for _ in range(args.rounds)]
    print(table(rounds))
    if args.json is not None:
        args.json.write_text(json.dumps(rounds, indent=1) + "\n")


if __name__ == "__main__":
    main()
