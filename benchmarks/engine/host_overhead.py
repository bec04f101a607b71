"""Measure the engine's host work per decode step: scheduling, launching, reading reports, handing out audio.

Run: python benchmarks/engine/host_overhead.py [--model voxcpm2] [--rows 64 256] [--service] [--json FILE] [--profile]
Needs: nothing but stentor, with --service the packages of `stentor[server]`. No GPU.

Prompts, buffers and captured shapes are those of a model of full size. A launch computes nothing: it makes one frame
for every row, and audio lies on the host already. One event loop of this process reads all streams. With --service
they go through a socket to another process, as in a server. Streams begin at different frames, so that their chunks
are spread over the steps.
The figures are milliseconds of CPU time of the engine's thread: all steps while every stream runs in chunks of full
length, and those of them that hand out no audio.
"""

from __future__ import annotations

import argparse
import asyncio
import cProfile
import json
import platform
import pstats
import socket
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch

sys.path.insert(
    0, str(Path(__file__).resolve().parents[2])
)  # this tree, also where none is installed
import stentor
from benchmarks.engine.schedule_sim import (
    COSTS,
    TEXT,
    Costs,
    captured,
    options,
    without_weights,
)
from stentor import TTS, registry
from stentor.config import Policy
from stentor.engine.engine import Engine
from stentor.engine.running.device import Device
from stentor.engine.running.kv_cache import PagedKV
from stentor.engine.running.model_runner import default_batch_sizes
from stentor.engine.scheduling.chunks import RAMP
from stentor.engine.stream import AudioStream

FULL = sum(RAMP) * 2  # frames after which every chunk has its full length
MODELS = (*COSTS, "pocket-tts")
NO_COSTS = Costs(((1, 0.0), (2, 0.0)), ((1, 0.0), (2, 0.0)), 0.0, 0.0, 0.0)
READER = "import os\nwhile os.read(0, 1 << 20): pass"  # another process, which drops what it reads


class InstantDevice(Device):
    """A CPU to which samples need not be copied: a GPU copies them by itself."""

    def __init__(self, name: str, *settings: Any) -> None:
        super().__init__("cpu", *settings)

    def download(self, value: torch.Tensor) -> torch.Tensor:
        return value if value.is_floating_point() else value.clone()


@dataclass(frozen=True)
class Instant:
    """A captured function that takes no time."""

    seconds: float
    replay: Callable[[], None]


class Recorder:
    """CPU milliseconds of the engine's steps, and which of them handed out audio."""

    def __init__(self, profile: cProfile.Profile | None) -> None:
        self.steps: list[tuple[float, bool]] = []
        self.profile = profile
        self.plain = Engine._step

    def step(self, engine: Engine) -> None:
        frames, counts = engine.stats.frames, self._counts(engine)
        if counts and self.profile is not None:
            self.profile.enable()
        started = time.thread_time()
        self.plain(engine)
        took = (time.thread_time() - started) * 1e3
        if counts and self.profile is not None:
            self.profile.disable()
        if counts:
            self.steps.append((took, engine.stats.frames > frames))

    @staticmethod
    def _counts(engine: Engine) -> bool:
        """Whether every slot holds a stream in chunks of full length that does not end now."""
        live = engine.scheduler.live
        if len(live) < engine.sizes.slots:
            return False
        return all(FULL < s.num_generated < s.max_frames - 1 for s in (live[0], live[-1]))


def without_device(model: str, rows: int) -> TTS:
    outline = without_weights(model)
    policy = Policy(ramp=RAMP, max_ahead=float("inf"))
    with (
        mock.patch("stentor.engine.running.device.Device", InstantDevice),
        mock.patch.object(registry, "load", return_value=outline),
    ):
        tts = TTS(model, device="cpu", max_num_seqs=rows, memory_gb=0.3, max_frames=2048, overlap_steps=1,
                  policy=policy, batch_sizes=default_batch_sizes(rows))  # fmt: skip
    captured(tts.engine.runner, tts.engine.codec, NO_COSTS, Instant)
    return tts


async def listen(streams: list[AudioStream]) -> None:
    async def one(stream: AudioStream) -> None:
        async for _ in stream:
            pass

    await asyncio.gather(*map(one, streams))


def read(tts: TTS, requests: Sequence[Mapping[str, Any]]) -> None:
    """Have an event loop of this process read a stream of each request, to its end."""
    prompts = [tts.prompt(tts.request(TEXT, **request)) for request in requests]
    streams = [tts.engine.submit(prompt, 1, True) for prompt in prompts]
    asyncio.run(listen(streams))


def serve(tts: TTS, requests: Sequence[Mapping[str, Any]]) -> None:
    """Have an engine's service send a stream of each request to another process."""
    from stentor.server.engines import messages as m
    from stentor.server.engines.client import EngineClient
    from stentor.server.engines.process import Peer, ready
    from stentor.server.engines.service import EngineService

    ours, theirs = socket.socketpair()
    with theirs:
        reader = subprocess.Popen([sys.executable, "-c", READER], stdin=theirs.fileno())
    peer = Peer(ours)
    ended = threading.Semaphore(0)

    def send(api: int, events: Sequence[m.Event], arrays: Sequence[np.ndarray]) -> None:
        peer.send(events, arrays)
        for event in events:
            if isinstance(event, m.Ended) or (isinstance(event, m.Audio) and event.finish):
                ended.release()

    async def commands() -> list[m.Command]:
        """Commands of the requests, as an API process sends them."""
        sent: list[m.Command] = []
        client = EngineClient("", 0, lambda command, arrays: sent.append(command))
        client.receive([ready(tts, [])], m.Reader(memoryview(b"")))
        for request in requests:
            client.submit(client.request(TEXT, seed=1, **request), True)
        return sent

    service = EngineService(tts, send, 0)
    service.connect(0)
    for command in asyncio.run(commands()):
        service.handle(command, m.Reader(memoryview(b"")))
    for _ in requests:
        ended.acquire()
    peer.close()
    reader.wait()


def measure(
    model: str,
    rows: int,
    seconds: float,
    profile: cProfile.Profile | None,
    use: Callable[[TTS, Sequence[Mapping[str, Any]]], None] = read,
) -> dict[str, Any]:
    """Milliseconds of CPU time per step with `rows` streams of so many seconds. use: has streams of
    requests generated and read."""
    recorder = Recorder(profile)

    def step(engine: Engine) -> None:
        recorder.step(engine)

    with (
        without_device(model, rows) as tts,
        mock.patch.object(Engine, "_step", step),
        mock.patch.object(PagedKV, "fill"),  # a voice of the model's full size
    ):
        hop_seconds = tts.spec.hop / tts.sample_rate
        lengths = [
            RAMP[-1] * i // rows + 1 for i in range(rows)
        ]  # those of first requests, which stagger the others
        given = options(tts, seconds)
        use(tts, [*({**given, "max_frames": n} for n in lengths), *(given for _ in lengths)])
        assert tts.engine.side.eager_calls == 0
    ms = [took for took, _ in recorder.steps]
    silent = [took for took, audio in recorder.steps if not audio]
    return {
        "model": model,
        "rows": rows,
        "steps": len(ms),
        "audio_s_per_step": rows * hop_seconds,
        "mean_ms": statistics.fmean(ms),
        "median_ms": statistics.median(ms),
        "p99_ms": float(np.percentile(ms, 99)),
        "without_audio_median_ms": statistics.median(silent) if silent else None,
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default="qwen3-tts-1.7b-customvoice", choices=MODELS)
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 16, 64, 256])
    parser.add_argument("--seconds", type=float, default=30.0, help="of audio per stream")
    parser.add_argument(
        "--rounds", type=int, default=3, help="the best of so many: this machine is not alone"
    )
    parser.add_argument(
        "--service", action="store_true", help="send streams to another process, as a server does"
    )
    parser.add_argument("--json", type=Path)
    parser.add_argument("--profile", action="store_true", help="print where the time goes instead")
    args = parser.parse_args()
    torch.set_num_threads(1)
    results = []
    for rows in args.rows:
        profile = cProfile.Profile(time.thread_time) if args.profile else None
        rounds = [
            measure(args.model, rows, args.seconds, profile, serve if args.service else read)
            for _ in range(1 if profile else args.rounds)
        ]
        found = min(rounds, key=lambda r: r["mean_ms"])
        results.append(found)
        print(
            json.dumps({k: round(v, 3) if isinstance(v, float) else v for k, v in found.items()}),
            flush=True,
        )
        if profile is not None:
            pstats.Stats(profile).sort_stats("tottime").print_stats(35)
    if args.json is not None:
        facts = {
            "stentor": stentor.__version__,
            "torch": torch.__version__,
            "machine": platform.machine(),
        }
        args.json.write_text(json.dumps({"facts": facts, "results": results}, indent=1) + "\n")


if __name__ == "__main__":
    main()
