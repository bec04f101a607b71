"""Look for leaks and wrong answers: many clients, half of them misbehaving, against a server process.

Run: python benchmarks/server/soak.py --clients 64 --seconds 120 --output soak.json
     python benchmarks/server/soak.py --hours 1 --clients 12 --output soak_hour.json
Needs: Linux, aiohttp and the packages of `stentor[server]`. No GPU.

The model is `dummy:toy`, because the server is under test and not the model. `--model voice` takes the built-in voice,
whose answers may differ by 0.2 % of full scale, because its flow amplifies the rounding of other batch sizes.
Answers to well-behaved clients are compared with the answer that the same request gets alone.
With `--hours` or `--minutes` honest clients are timed, in windows alone and in windows beside hostile ones, and the
result has a curve of memory, speed and 5xx (soak_long.py). It is written after every round.
The exit code is 0 if nothing leaked, no answer was wrong, and the only 5xx were 503 with Retry-After.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import contextlib
import functools
import io
import json
import os
import platform
import random
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
import wave
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import aiohttp
import numpy as np
import soak_long
from soak_honest import answers, ask, session
from soak_hostile import HOSTILE

ROOT = Path(__file__).resolve().parents[2]
LSB = {"dummy:toy": 2.1, "voice": 65.0}  # answers alone and in company differ by rounding
PHASES = 3  # after each of them all is counted
HOSTILE_PAUSE_S = 1.0  # on average, in long runs
SETTLE_SECONDS = 120.0  # in which a busy machine has ended what clients have left
SLACK = {
    "files": 3,
    "tasks": 3,
    "threads": 10,
}  # pools of threads, which have a bound, fill with time
GROWTH_MB = 30.0  # of resident memory between the first count and the last

# On SIGUSR1: gives what is free back to the system, and tells how many asyncio tasks are alive.
SERVER = """
import asyncio, ctypes, gc, signal, sys
def count(*_):
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    tasks = [o for o in gc.get_objects() if isinstance(o, asyncio.Task) and not o.done()]
    print("TASKS", len(tasks), flush=True)
signal.signal(signal.SIGUSR1, count)
sys.argv[0] = "stentor"
from stentor.cli import main
sys.exit(main())
"""


class Server:
    """A server process and what it holds."""

    def __init__(self, model: str, voices: Path) -> None:
        flags = [
            "--port",
            "0",
            "--memory-gb",
            "0.05",
            "--threads",
            "1",
            "--voices-dir",
            str(voices),
            "--max-num-seqs",
            "8",
        ]
        flags += [
            "--max-queued-requests",
            "32",
            "--max-active-requests",
            "60",
            "--max-buffered-mb",
            "0.25",
        ]
        flags += ["--no-log-requests", "--uvicorn-log-level", "info"]
        words = [
            sys.executable,
            "-c",
            SERVER,
            "serve",
            *([] if model == "voice" else [model]),
            *flags,
        ]
        path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
        env = {**os.environ, "PYTHONPATH": path}
        self.process = subprocess.Popen(
            words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=env
        )
        self.model, self.log = model, list[str]()
        threading.Thread(target=self._read, daemon=True).start()
        try:
            self.url = self._wait(r"running on (http://[\d.:]+)")
            self._wait(r"(is ready)")
        except BaseException:
            self.process.kill()
            raise

    def _read(self) -> None:
        assert self.process.stdout is not None
        self.log.extend(iter(self.process.stdout.readline, ""))

    def _wait(self, pattern: str, start: int = 0) -> str:
        end = time.monotonic() + 180  # of a busy machine
        while time.monotonic() < end and self.process.poll() is None:
            if found := re.search(pattern, "".join(self.log[start:])):
                return found.group(1)
            time.sleep(0.02)
        raise RuntimeError("".join(self.log))

    def held(self) -> dict[str, float]:
        """Files, threads, tasks and resident MB of the process."""
        start = len(self.log)
        self.process.send_signal(signal.SIGUSR1)
        tasks = int(self._wait(r"TASKS (\d+)", start))
        proc = Path(f"/proc/{self.process.pid}")
        status = (proc / "status").read_text()
        return {
            "files": len(list((proc / "fd").iterdir())),
            "threads": int(re.search(r"Threads:\s*(\d+)", status).group(1)),  # type: ignore[union-attr]
            "tasks": tasks,
            "memory_mb": int(re.search(r"VmRSS:\s*(\d+)", status).group(1)) / 1024,  # type: ignore[union-attr]
        }

    def stop(self) -> int:
        self.process.terminate()
        return self.process.wait(SETTLE_SECONDS)


class Soak:
    """Clients of every kind, and what became of their requests."""

    def __init__(self, url: str, http: aiohttp.ClientSession, seed: int, lsb: float) -> None:
        self.url, self.http, self.random, self.lsb = url, http, random.Random(seed), lsb
        self.truth: dict[tuple[str, int], np.ndarray] = {}
        self.counts: Counter[str] = Counter()
        self.statuses: Counter[int] = Counter()
        self.problems: list[str] = []
        self.kinds: list[Callable[[], Awaitable[None]]] = [
            self.whole, self.stream, self.events, self.socket, self.leaver, self.leaver, self.slow, self.malformed,
            self.voice, self.rude_socket, self.batch, self.container,
        ]  # fmt: skip

    def ask(self) -> dict[str, Any]:
        return ask(*self.random.choice(list(self.truth)))

    async def learn(self) -> None:
        self.truth = await answers(self.url, self.http)
        # FFmpeg is loaded with the first compressed answer: before the first count, or it looks like growth.
        body = {"input": "Hello.", "response_format": "mp3", "speed": 1.7}
        async with self.http.post(self.url + "/v1/audio/speech", json=body) as answer:
            await answer.read()

    @contextlib.asynccontextmanager
    async def post(
        self, path: str = "/v1/audio/speech", **how: Any
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        async with self.http.post(self.url + path, **how) as answer:
            self.statuses[answer.status] += 1
            if answer.status >= 500 and not (
                answer.status == 503 and "Retry-After" in answer.headers
            ):
                self.problems.append(f"{answer.status}: {(await answer.text())[:200]}")
            yield answer
        if answer.status in (429, 503):
            await asyncio.sleep(self.random.uniform(0.1, 0.6))  # sooner than Retry-After says

    def check(self, kind: str, ask: dict[str, Any], data: bytes, fade: int = 0) -> None:
        """`fade`: samples at the end that may differ."""
        truth, answer = (
            self.truth[ask["input"], ask["seed"]],
            np.frombuffer(data, "<i2").astype(int),
        )
        if len(truth) != len(answer):
            self.problems.append(
                f"{kind}: {len(answer)} samples instead of {len(truth)} for {ask['input']!r}"
            )
        elif np.abs(truth - answer)[: len(truth) - fade].max() > self.lsb:
            self.problems.append(f"{kind}: wrong audio for {ask['input']!r}")
        else:
            self.counts[f"{kind}: right"] += 1

    # -- kinds of client --

    async def whole(self) -> None:
        ask = self.ask()
        async with self.post(json={**ask, "stream": False}) as answer:
            if answer.status == 200:
                self.check("whole", ask, await answer.read())

    async def stream(self) -> None:
        ask = self.ask()
        async with self.post(json={**ask, "stream_format": "audio"}) as answer:
            if answer.status == 200:
                self.check("stream", ask, await answer.read())

    async def events(self) -> None:
        ask = self.ask()
        async with self.post(json={**ask, "stream_format": "sse"}) as answer:
            if answer.status == 200:
                rows = [
                    json.loads(r[6:])
                    for r in (await answer.text()).splitlines()
                    if r.startswith("data: ")
                ]
                parts = [
                    base64.b64decode(r["audio"]) for r in rows if r["type"] == "speech.audio.delta"
                ]
                self.check("events", ask, b"".join(parts))

    async def container(self) -> None:
        ask = {
            **self.ask(),
            "stream_format": "audio",
            "sample_rate": 24_000,
            "speed": self.random.choice((0.5, 1.7)),
        }
        async with self.post(
            json={**ask, "response_format": self.random.choice(("mp3", "opus", "flac", "aac"))}
        ) as a:
            if a.status == 200:
                self.counts["container: " + ("some" if len(await a.read()) > 100 else "empty")] += 1

    async def batch(self) -> None:
        asks = [self.ask() for _ in range(4)]
        async with self.post("/v1/audio/speech/batch", json={"items": asks}) as answer:
            if answer.status != 200:
                return
            for ask, result in zip(asks, (await answer.json())["results"], strict=True):
                if result["status"] == "success":
                    self.check("batch", ask, base64.b64decode(result["audio"]))
                elif result["error"]["code"] != "queue_full":
                    self.problems.append(f"batch: {result['error']}")

    async def leaver(self) -> None:
        how = self.random.choice(
            ({"stream": False}, {"stream_format": "audio"}, {"stream_format": "sse"})
        )
        body = {**self.ask(), "min_frames": 800, "max_frames": 800, **how}
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self.random.expovariate(3)), self.post(json=body) as answer:
                await answer.read()
        self.counts["leaver"] += 1

    async def slow(self) -> None:
        """Takes a little and then nothing."""
        body = {
            **self.ask(),
            "min_frames": 800,
            "max_frames": 800,
            "speed": 0.25,
            "sample_rate": 48_000,
        }
        async with self.post(json={**body, "stream_format": "audio"}) as answer:
            with contextlib.suppress(aiohttp.ClientError):
                await answer.content.read(100)
                await asyncio.sleep(self.random.uniform(0.5, 3))
                while self.random.random() < 0.9 and await answer.content.read(20_000):
                    await asyncio.sleep(0.05)
            self.counts["slow"] += 1
            answer.close()

    async def malformed(self) -> None:
        noise = self.random.randbytes(self.random.randrange(200))
        data = self.random.choice(
            (b"", b"{", b"[]", noise, b'{"input": 5}', b'{"input": "x", "speed": 99}', b"[" * 5000)
        )
        async with self.post(data=data, headers={"Content-Type": "application/json"}) as answer:
            if answer.status not in (400, 429):
                self.problems.append(f"malformed: {answer.status} for {data[:40]!r}")
        self.counts["malformed"] += 1

    async def voice(self) -> None:
        name = f"v{self.random.randrange(10**9)}"
        form = aiohttp.FormData({"name": name, "consent": "soak"})
        wav = _wav() if self.random.random() < 0.7 else self.random.randbytes(3000)
        form.add_field("audio_sample", wav, filename="v.wav", content_type="audio/wav")
        async with self.post("/v1/audio/voices", data=form) as answer:
            stored = answer.status == 200
        if stored:
            async with self.post(json={**self.ask(), "voice": name}) as answer:
                await answer.read()
            async with self.http.delete(f"{self.url}/v1/audio/voices/{name}") as answer:
                if answer.status != 200:
                    self.problems.append(f"voice: {answer.status} at its end")
        self.counts["voice"] += 1

    async def socket(self) -> None:
        ask = self.ask()
        async with self.http.ws_connect(self.url + "/v1/audio/speech/stream") as ws:
            config = {k: v for k, v in ask.items() if k != "input"}
            await ws.send_json({"type": "session.config", **config})
            for word in re.findall(r"\S+\s*", ask["input"]):
                await ws.send_json({"type": "input.text", "text": word})
            await ws.send_json({"type": "input.done"})
            data = b""
            async for message in ws:
                if message.type is aiohttp.WSMsgType.BINARY:
                    data += message.data
                elif (event := message.json())["type"] == "session.done":
                    if event["finish_reason"] != "error":
                        self.check("socket", ask, data, fade=3)
                    return
                elif event["type"] == "error" and event["code"] != "queue_full":
                    self.problems.append(f"socket: {event}")
        self.problems.append("socket: closed early")

    async def rude_socket(self) -> None:
        """Says anything, cancels, and leaves in the middle."""
        async with self.http.ws_connect(self.url + "/v1/audio/speech/stream") as ws:
            await ws.send_json(
                {
                    "type": "session.config",
                    "response_format": "pcm",
                    "min_frames": 500,
                    "max_frames": 500,
                }
            )
            for _ in range(self.random.randrange(1, 12)):
                kind = self.random.choice(
                    ("input.text", "input.text", "input.done", "response.cancel", "nonsense")
                )
                await ws.send_json(
                    {"type": kind, **({"text": "One. Two, "} if kind == "input.text" else {})}
                )
                await asyncio.sleep(self.random.uniform(0, 0.1))
        self.counts["rude socket"] += 1

    async def client(
        self, end: float, kinds: Sequence[Callable[[], Awaitable[None]]], pause: float
    ) -> None:
        """One request after another, with pauses of `pause` seconds on average."""
        while time.monotonic() < end:
            if pause:
                await asyncio.sleep(self.random.expovariate(1 / pause))
            try:
                await self.random.choice(kinds)()
            except (aiohttp.ClientError, TimeoutError, ConnectionError) as e:
                self.counts[f"client: {type(e).__name__}"] += 1

    async def run(self, clients: int, seconds: float) -> None:
        end = time.monotonic() + seconds
        await asyncio.gather(*(self.client(end, self.kinds, 0) for _ in range(clients)))

    async def attack(self, hostile: int, seconds: float) -> None:
        """Hostile clients. They pause, so that the server is attacked and not merely full."""
        end = time.monotonic() + seconds
        attacks: list[Callable[[], Awaitable[None]]] = [
            *self.kinds,
            *(functools.partial(f, self) for f in HOSTILE),
        ]
        await asyncio.gather(*(self.client(end, attacks, HOSTILE_PAUSE_S) for _ in range(hostile)))

    async def engine(self) -> dict[str, Any]:
        """The engine's part of /health."""
        async with self.http.get(self.url + "/health") as answer:
            state: dict[str, Any] = next(iter((await answer.json())["models"].values()))
        return state

    async def settled(self) -> dict[str, Any]:
        """The engine's state once nothing runs any more, or what is left after SETTLE_SECONDS."""
        end = time.monotonic() + SETTLE_SECONDS
        while True:
            state = await self.engine()
            async with self.http.get(self.url + "/metrics") as answer:
                text = await answer.text()
            state["sessions"] = _value(text, "websocket_sessions")
            state["cache_mb"] = _value(text, "voice_cache_bytes") / 2**20
            idle = (
                not state["running"]
                and not state["queued"]
                and state["free_pages"] == state["pages"]
            )
            if (idle and not state["sessions"]) or time.monotonic() > end:
                return {**state, "idle": idle and not state["sessions"]}
            await asyncio.sleep(0.1)


async def soak(
    server: Server, clients: int, seconds: float, seed: int, voices: Path
) -> dict[str, Any]:
    async with session() as http:
        run = Soak(server.url, http, seed, LSB[server.model])
        await run.learn()
        states, held = [], []
        for _ in range(PHASES):
            await run.run(clients, seconds / PHASES)
            states.append(await run.settled())
            held.append(await counted(server, held))
        await run.whole()
    growth = (
        held[-1]["memory_mb"]
        - held[0]["memory_mb"]
        - (states[-1]["cache_mb"] - states[0]["cache_mb"])
    )
    if growth > GROWTH_MB:
        run.problems.append(
            f"memory grew by {growth:.0f} MB beside the cache of voices, which is bounded"
        )
    return {
        "clients": clients, "seconds": seconds, "seed": seed, **_found(run, states, held, voices),
        "memory_growth_mb": growth,
    }  # fmt: skip


async def long_soak(
    server: Server,
    honest: int,
    hostile: int,
    seconds: float,
    seed: int,
    voices: Path,
    output: Path | None,
) -> dict[str, Any]:
    """Honest clients alone and beside hostile ones, in turns. The result has a curve. It is written as it grows."""
    async with session() as http:
        run = Soak(server.url, http, seed, LSB[server.model])
        clients = soak_long.Honest(server.url, honest, seed, LSB[server.model])
        curve = soak_long.Curve(server.process.pid, run.statuses, run.engine)
        await run.learn()
        states, held = [await run.settled()], [await asyncio.to_thread(server.held)]

        def result(windows: list[soak_long.Window]) -> dict[str, Any]:
            judged = soak_long.judge(clients, curve, windows)
            found = _found(run, states, held, voices)
            found["problems"] = found["problems"] + judged.pop("problems")
            return {
                "honest": honest, "clients": hostile, "seconds": seconds, "seed": seed, **found, "judged": judged,
                "curve": curve.samples,
            }  # fmt: skip

        await clients.start()
        windows = await soak_long.rounds(
            seconds,
            clients,
            curve,
            functools.partial(run.attack, hostile),
            lambda w: _write(output, result(w)),
        )
        await clients.stop()
        states.append(await run.settled())
        held.append(await counted(server, held))
        await run.whole()
        return result(windows)


def _write(output: Path | None, result: dict[str, Any]) -> None:
    if output is not None:
        output.parent.mkdir(parents=True, exist_ok=True)
        output.write_text(soak_long.text(result) + "\n")


def _found(
    run: Soak, states: list[dict[str, Any]], held: list[dict[str, float]], voices: Path
) -> dict[str, Any]:
    """Report of clients and server, with faults as `problems`."""
    problems = [*run.problems]
    problems += [f"not idle afterwards: {s}" for s in states if not s["idle"]]
    problems += grown(held[0], held[-1])
    if left := [p.name for p in voices.iterdir() if not p.name.endswith(".safetensors")]:
        problems.append(f"files left in the voice directory: {left}")
    return {
        "requests": sum(run.statuses.values()),
        "statuses": {str(k): v for k, v in sorted(run.statuses.items())}, "counts": dict(sorted(run.counts.items())),
        "held": held, "engine": states[-1], "problems": problems,
        "python": platform.python_version(), "cores": os.cpu_count(), "nice": os.nice(0), "autogroup": _autogroup(),
    }  # fmt: skip


def grown(first: dict[str, float], last: dict[str, float]) -> list[str]:
    """Resources of which the process holds more than at the first count."""
    return [
        f"{k} grew: {first[k]} -> {last[k]}"
        for k, more in SLACK.items()
        if last[k] > first[k] + more
    ]


async def counted(server: Server, before: Sequence[dict[str, float]]) -> dict[str, float]:
    """Count resources once connections have closed and there are no more than at first, or after SETTLE_SECONDS."""
    end = time.monotonic() + SETTLE_SECONDS
    while True:
        await asyncio.sleep(1.5)
        held = await asyncio.to_thread(server.held)
        if not before or not grown(before[0], held) or time.monotonic() > end:
            return held


def _autogroup() -> str | None:
    """The group in which Linux schedules this process and the server, and its niceness. Other sessions are others."""
    path = Path("/proc/self/autogroup")
    return path.read_text().strip() if path.exists() else None


def _value(metrics: str, name: str) -> float:
    return float(re.search(rf"\nstentor:{name} (\S+)", metrics).group(1))  # type: ignore[union-attr]


def _wav() -> bytes:
    out = io.BytesIO()
    with wave.open(out, "wb") as f:
        f.setnchannels(1)
        f.setsampwidth(2)
        f.setframerate(8000)
        f.writeframes((np.sin(np.arange(12_000) / 6) * 9000).astype("<i2").tobytes())
    return out.getvalue()


@contextlib.contextmanager
def running(model: str, voices: Path) -> Iterator[Server]:
    server = Server(model, voices)
    try:
        yield server
    finally:
        if server.process.poll() is None:
            server.process.kill()


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", choices=list(LSB), default="dummy:toy")
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=120)
    parser.add_argument(
        "--minutes", type=float, default=0, help="with --hours: a long run, with a curve"
    )
    parser.add_argument("--hours", type=float, default=0)
    parser.add_argument("--honest", type=int, default=4, help="timed clients of a long run")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output", type=Path)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, running(args.model, Path(folder)) as server:
        long = 60 * args.minutes + 3600 * args.hours
        if long:
            coroutine = long_soak(
                server, args.honest, args.clients, long, args.seed, Path(folder), args.output
            )
        else:
            coroutine = soak(server, args.clients, args.seconds, args.seed, Path(folder))
        result = asyncio.run(coroutine)
        result["exit_code"] = server.stop()
        errors = [line.strip() for line in server.log if " ERROR " in line or "Traceback" in line]
        cut = [
            e for e in errors if "without completing response" in e
        ]  # uvicorn's words for a client that was cut off
        result["clients_cut_off"], errors = len(cut), [e for e in errors if e not in cut]
        result["errors_logged"] = dict(
            Counter(re.sub(r"^\S+ \S+ ", "", e)[:160] for e in errors).most_common(10)
        )
    if result["exit_code"]:
        result["problems"].append(f"the server ended with {result['exit_code']}")
    _write(args.output, result)
    print(soak_long.summary(result) if long else soak_long.text(result))
    return 1 if result["problems"] else 0


if __name__ == "__main__":
    sys.exit(main())
