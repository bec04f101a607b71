"""A real server (uvicorn, real sockets) around the toy model, in this process, on a port of its own."""

from __future__ import annotations

import asyncio
import io
import json
import os
import re
import socket
import subprocess
import sys
import threading
import time
import wave
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import av
import httpx
import numpy as np
import pytest
import uvicorn

import stentor
from stentor.config import Policy
from stentor.server.app import create_app
from stentor.server.config import ServerConfig
from stentor.server.limits import LIMITS, Limits
from stentor.server.main import uvicorn_config
from stentor.server.model_hosts import GiveUp
from stentor.server.state import Server
from tests.helpers.local_engine import Load, Starting, local, local_engine
from tests.helpers.patience import STUCK_S, until

LAWS = {"ulaw": "mulaw", "alaw": "alaw"}  # FFmpeg's names
LOCAL, PROCESS = "local", "process"
either_engine = pytest.mark.parametrize("live", [LOCAL, PROCESS], indirect=True)
"""A test whose server's engine is in this process, and again with one that is in a process of its own."""


@dataclass
class Live:
    """A running server and a client for it."""

    url: str
    server: Server
    http: httpx.Client
    loop: asyncio.AbstractEventLoop

    def drain(self) -> None:
        """Begin to end, as after SIGTERM."""
        self.loop.call_soon_threadsafe(self.server.drain.set)

    def end(self) -> None:
        """End what still runs, as when the time for it is over."""
        self.drain()
        self.loop.call_soon_threadsafe(self.server.ended.set)

    def speech(self, **body: Any) -> httpx.Response:
        return self.http.post("/v1/audio/speech", json=body)

    def voice_names(self) -> list[str]:
        names: list[str] = self.http.get("/v1/audio/voices", params={"format": "names"}).json()[
            "voices"
        ]
        return names

    def sum_of(self, start: str, label: str = "") -> float:
        """The sum of the metrics whose names begin so, of those that have this label."""
        lines = "\n".join(self.metrics_pages()).splitlines()
        return sum(
            float(line.split()[-1])
            for line in lines
            if line.startswith("stentor:" + start) and label in line
        )

    def metrics_pages(self) -> list[str]:
        """Samples of /metrics, of each process of the server."""
        return [self.http.get("/metrics").text]

    @property
    def voices_folder(self) -> Path:
        """Where uploaded voices are."""
        return self.server.voices.folder

    @property
    def tts(self) -> stentor.TTS:
        engine = local_engine(self.server.hosts.all[0])
        assert engine.tts is not None
        return engine.tts

    def idle(self, seconds: float = STUCK_S) -> bool:
        """Whether every slot and page is free again, within some time."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            h = self.tts.engine.health()
            if (h.running, h.queued, h.free_pages) == (
                0,
                0,
                h.pages,
            ) and not self.server.metrics.live:
                return True
            time.sleep(0.02)
        return False


class Held:
    """An engine that stops at certain numbers of steps, delivered frames or finished requests until it is told to go on.

    What a client sees while it stands is what it sees before the speech is complete, however busy the machine is.
    """

    def __init__(self, live: Live, counter: str, limits: Sequence[int]) -> None:
        self.engine, self.counter = live.tts.engine, counter
        self.begin = getattr(self.engine.stats, counter)
        self.limits = list(limits)
        self.standing, self.going = threading.Event(), threading.Event()

    def wait(self) -> None:
        """Wait until the engine stands."""
        assert self.standing.wait(STUCK_S)

    def go(self) -> None:
        """Let it go on, to the next limit if there is one."""
        self.wait()
        self.limits.pop(0)
        self.standing.clear()
        self.going.set()

    def check(self) -> None:
        """Called in the engine's thread before each step."""
        limit = next(iter(self.limits), None)  # looked at once: the test may clear them meanwhile
        if limit is not None and getattr(self.engine.stats, self.counter) - self.begin >= limit:
            self.standing.set()
            self.going.wait(STUCK_S)
            self.going.clear()


@contextmanager
def held(
    live: Live,
    *,
    steps: Sequence[int] = (),
    frames: Sequence[int] = (),
    finished: Sequence[int] = (),
) -> Iterator[Held]:
    """Stop the engine after so many steps, or once so many frames have been delivered or requests have finished."""
    scheduler, counter = (
        live.tts.engine.scheduler,
        "steps" if steps else "frames" if frames else "finished",
    )
    hold, plan = Held(live, counter, steps or frames or finished), scheduler.plan

    def held_plan(*given: Any) -> Any:
        hold.check()
        return plan(*given)

    scheduler.plan = held_plan  # type: ignore[method-assign]
    try:
        yield hold
    finally:
        hold.limits.clear()
        hold.going.set()
        scheduler.plan = plan  # type: ignore[method-assign]


def processes(config: ServerConfig) -> None:
    """`start` of `serving`: engines in processes of their own, as `stentor serve` has them."""


def toy(
    slots: int = 8,
    max_queue: int = 256,
    max_frames: int = 16,
    kind: str = "dummy:toy",
    languages: tuple[str, ...] = ("english",),
) -> Callable[[str, str | None], Callable[[], stentor.TTS]]:
    """How `create_app` makes its model in these tests. `max_frames`: of a request that does not say how many; the toy
    speaks on to the last, and each takes time. languages: what it says that it speaks."""

    def load() -> stentor.TTS:
        policy = Policy(max_queue=max_queue)
        tts = stentor.TTS(kind, memory_gb=0.01, max_num_seqs=slots, threads=1, policy=policy)
        options = tts.spec.options
        short = replace(options["max_frames"], default=max_frames)
        tts._model.spec = replace(
            tts.spec, options={**options, "max_frames": short}, languages=languages
        )
        return tts

    return lambda name, model: load


@contextmanager
def serving(
    voices: Path,
    load: Load | None = None,
    give_up: GiveUp = lambda code: None,
    limits: Limits = LIMITS,
    model: str | tuple[str, ...] | None = "dummy:toy",
    port: int = 0,
    send_buffer: int | None = None,
    start: Callable[[ServerConfig], Starting | None] | None = None,
    **settings: Any,
) -> Iterator[Live]:
    """A server that is ready. `send_buffer`: bytes that the system takes for a client that does not read. `start`: how
    its engines are started, default in this process with what `load` makes."""
    models = () if model is None else (model,) if isinstance(model, str) else model
    config = ServerConfig(models=models, voices_dir=str(voices), **settings)
    starting = local(load or toy(), config.warmup) if start is None else start(config)
    app = create_app(config, Server(config, give_up, starting, limits))
    how = {"port": port, "log_level": None, "timeout_graceful_shutdown": 5}
    runner = uvicorn.Server(uvicorn_config(app, config, limits, **how))
    loops: list[asyncio.AbstractEventLoop] = []

    async def run() -> None:
        loops.append(asyncio.get_running_loop())
        await runner.serve()

    thread = threading.Thread(target=lambda: asyncio.run(run()), daemon=True)
    thread.start()
    try:
        while not runner.started:
            assert thread.is_alive()
            time.sleep(0.01)
        listening = runner.servers[0].sockets[0]
        if send_buffer is not None:  # what it accepts has the same
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, send_buffer)
        port = listening.getsockname()[1]
        url = f"http://127.0.0.1:{port}"
        headers = {"Authorization": f"Bearer {config.api_key[0]}"} if config.api_key else {}
        quick = {
            "trust_env": False,
            "verify": False,
        }  # what a client would verify with takes 25 ms to read
        with httpx.Client(base_url=url, timeout=STUCK_S, headers=headers, **quick) as http:
            live = Live(url, app.state.server, http, loops[0])
            assert until(lambda: http.get("/ready").status_code == 200)
            yield live
    finally:
        runner.should_exit = True
        thread.join(STUCK_S)
        assert not thread.is_alive()


def count(live: Live, start: str) -> float:
    """The sum of the metrics whose names begin so."""
    return live.sum_of(start)


def connect(live: Live) -> socket.socket:
    """A connection by a client of our own."""
    host, port = live.url.removeprefix("http://").split(":")
    return socket.create_connection((host, int(port)), STUCK_S)


def raw(live: Live, body: dict, buffer: int | None = None) -> socket.socket:
    """A request by a client of our own, which need not read."""
    host, port = live.url.removeprefix("http://").split(":")
    s = socket.socket()
    if buffer is not None:
        s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer)
    s.settimeout(STUCK_S)
    s.connect((host, int(port)))
    data = json.dumps(body).encode()
    head = "POST /v1/audio/speech HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Type: application/json\r\n"
    s.sendall(f"{head}Content-Length: {len(data)}\r\n\r\n".encode() + data)
    return s


def decoded(data: bytes, format: str | None = None) -> tuple[np.ndarray, int]:
    """Samples float32 [n] and rate of any container, by FFmpeg. format: of audio without a header, ulaw or alaw."""
    raw = {} if format not in LAWS else {"format": LAWS[format], "options": {"sample_rate": "8000"}}
    with av.open(io.BytesIO(data), **raw) as f:
        rate = f.streams.audio[0].rate
        blocks = []
        for frame in f.decode(audio=0):
            a = frame.to_ndarray().reshape(-1)
            blocks.append(a.astype(np.float32) / 32768 if a.dtype == np.int16 else a)
    return np.concatenate(blocks), rate


def samples_of(format: str, data: bytes) -> np.ndarray:
    """float32 [n] of an answer in any format."""
    return pcm(data) if format == "pcm" else decoded(data, format)[0]


def pcm(data: bytes) -> np.ndarray:
    return np.frombuffer(data, "<i2").astype(np.float32) / 32767


def assert_same_speech(one: bytes, other: bytes) -> None:
    """Two answers in PCM to a request with reference audio: the same but for rounding.

    One may compute the voice and the other find it in the prefix cache (docs/serving/requests.md, Seeds), as replicas have
    heard different requests before.
    """
    a, b = (np.frombuffer(data, "<i2").astype(int) for data in (one, other))
    assert len(a) == len(b) > 0
    assert np.abs(a - b).max() <= 2


def tone_wav(seconds: float = 1.5, rate: int = 8000, hz: float = 200.0) -> bytes:
    t = np.arange(int(seconds * rate)) / rate
    out = io.BytesIO()
    with wave.open(out, "wb") as f:
        f.setnchannels(1)
        f.setsampwidth(2)
        f.setframerate(rate)
        f.writeframes((np.sin(2 * np.pi * hz * t) * 9000).astype("<i2").tobytes())
    return out.getvalue()


@contextmanager
def process(
    *flags: str,
    command: Sequence[str] = (sys.executable, "-m", "stentor"),
    env: Mapping[str, str] | None = None,
    model: Sequence[str] = ("dummy:toy",),
    log: list[str] | None = None,
) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """`stentor serve` in a process of its own; the process and its address once it is ready. `log` gets its
    lines, all of them when it has ended."""
    words = [
        *command,
        "serve",
        *model,
        "--port",
        "0",
        "--memory-gb",
        "0.01",
        "--threads",
        "1",
        *flags,
    ]
    log = [] if log is None else log
    with subprocess.Popen(
        words,
        stderr=subprocess.STDOUT,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, **(env or {})},
    ) as running:
        assert running.stdout is not None
        lines = iter(running.stdout.readline, "")
        reader = threading.Thread(target=lambda: log.extend(lines), daemon=True)
        try:
            url = ""
            for line in lines:
                log.append(line)
                if found := re.search(r"running on (https?://[\d.]+:\d+|unix socket \S+)", line):
                    url = found.group(1)
                    break
            assert url, "".join(log)
            reader.start()
            assert until(
                lambda: running.poll() is not None or any("is ready" in line for line in log)
            )
            assert running.poll() is None, "".join(log)
            yield running, url
        finally:
            if running.poll() is None:
                running.kill()
            if reader.is_alive():
                reader.join(STUCK_S)  # the log is whole
