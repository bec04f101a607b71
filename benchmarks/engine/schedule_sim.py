"""Simulate many requests at once without a GPU: the real engine, prompts and delivery on a simulated device.

Run: python benchmarks/engine/schedule_sim.py [--models voxcpm2 ...] [--loads burst64 ...] [--json FILE]
Needs: nothing but stentor. No GPU.

The device is a timeline of streams, two of which have work. The work takes as long as it took on an H200
(step_*.json in the history), and both slow each other down. Frames are empty and audio is
silent. The host does all of its real work, which takes as long as this machine needs for it.

Loads:
burstN   N requests of one length that start together, read by N threads, as benchmarks/engine/step.py does
waveN    the same in one event loop, as in the server
loopN    N clients in a closed loop, in one event loop, with texts and lengths that vary
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import random
import statistics
import sys
import threading
import time
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch

sys.path.insert(
    0, str(Path(__file__).resolve().parents[2])
)  # this tree, also where none is installed
from benchmarks.engine.simulated_device import SimulatedDevice, SimulatedGraph
from stentor import TTS, registry
from stentor.config import Policy
from stentor.engine.running.codec_runner import CodecOutput, CodecRunner
from stentor.engine.running.device import CODEC, LANGUAGE_MODEL
from stentor.engine.running.model_runner import MAX_PREFILL_TOKENS, ModelRunner, default_batch_sizes
from stentor.engine.running.prefill_batch import BatchShape, PrefillBuffers
from stentor.engine.scheduling.chunks import RAMP
from stentor.engine.scheduling.sequence import LENGTH, RUNNING
from stentor.layers.types import CodecCall, State
from stentor.models.base import KVSpec, SpeechModel
from stentor.models.lora import NO_ADAPTERS

TEXT = "The quick brown fox jumps over the lazy dog, and then it sleeps in the warm afternoon sun."
SECONDS = 6.0  # of audio per request of a burst
LOOP_SECONDS = (2.0, 10.0)  # of a closed loop
WARM, WINDOW = 1.0, 3.0  # seconds of a closed loop before it counts, and that count
THREADS = 4  # that make prompts
SLOTS = 64
Points = Sequence[tuple[float, float]]


@dataclass(frozen=True)
class Costs:
    """Milliseconds on an H200. `step` by rows, `codec` by rows times frames, `prefill` a step of its rows and more."""

    step: Points
    codec: Points
    prefill: float  # of prompts beside the backbone of a step, however few the tokens
    token: float  # of a prompt
    backbone: float  # of a step: about what its weights take to read


COSTS = {
    "qwen3-tts-1.7b-customvoice": Costs(
        ((1, 2.36), (4, 2.53), (16, 2.96), (64, 4.43)),
        ((1, 0.76), (8, 1.14), (16, 1.43), (64, 2.9), (128, 3.7), (400, 9.3), (512, 12.25)),
        4.0,
        0.008,
        0.9,
    ),
    "voxcpm2": Costs(
        ((1, 3.93), (2, 4.35), (4, 5.15), (8, 6.42), (16, 7.33), (64, 15.5)),
        ((1, 0.5), (8, 0.75), (16, 1.08), (64, 2.72), (128, 4.75), (400, 14.0), (512, 17.6)),
        1.0,
        0.008,
        1.3,
    ),
    "fish-s2-pro": Costs(
        ((1, 4.25), (4, 4.5), (8, 4.73), (16, 5.11), (64, 7.83)),
        ((1, 0.81), (8, 1.47), (16, 1.81), (64, 3.83), (128, 4.65), (400, 12.0), (512, 15.9)),
        2.5,
        0.016,
        2.2,
    ),
}


def interpolate(points: Points, x: float) -> float:
    """The straight line between measured points."""
    xs = [p[0] for p in points]
    at = min(max(1, bisect_left(xs, x)), len(xs) - 1)
    (x0, y0), (x1, y1) = points[at - 1], points[at]
    return y0 + (y1 - y0) * (x - x0) / (x1 - x0)


class Silence:
    """A codec without state."""

    def __init__(self) -> None:
        self.columns: dict[str, Any] = {}

    def decode(
        self, frames: torch.Tensor, state: State, call: CodecCall
    ) -> tuple[torch.Tensor, State]:
        raise AssertionError("only captured calls are simulated")


class ModelOutline:
    """A model's facts and prompts without its weights. It encodes no reference audio."""

    adapters = NO_ADAPTERS

    def __init__(self, model: SpeechModel) -> None:
        self.spec = replace(model.spec, kv=KVSpec(1, 1, 1), takes_reference=False, codec_prefix=0)
        self.codec = Silence()
        self.references = model.references
        self.prompt = model.prompt
        self.speakable = model.speakable


class NoGenerator:
    """There is none for the meta device."""

    def __init__(self, device: object = None) -> None:
        pass

    def manual_seed(self, seed: int) -> None:
        pass


def without_weights(name: str) -> ModelOutline:
    """`dummy:name` of full size, its weights on the meta device."""
    plain = torch.Tensor.tolist
    without = mock.patch.object(
        torch.Tensor, "tolist", lambda t: [0] * len(t) if t.is_meta else plain(t)
    )
    with mock.patch("torch.Generator", NoGenerator), without:
        return ModelOutline(registry.load(f"dummy:{name}", torch.device("meta"), None, {}))


MakeGraph = Callable[[float, Callable[[], None]], Any]
"""A stand-in for a captured graph: what it takes in seconds, and what its `replay` does."""


def captured(runner: ModelRunner, codec: CodecRunner, costs: Costs, graph: MakeGraph) -> None:
    """Give the runners a graph that computes nothing for every key that a GPU would capture."""
    slots, spec, count = runner.slots, runner.model.spec, runner.sizes.slots
    generated, stop = (row.numpy() for row in slots.progress[:2])
    limit = slots.table["max_frames"].numpy()

    def advance(idx: np.ndarray) -> None:
        running = idx[stop[idx] == RUNNING]
        generated[running] += 1
        stop[running] = np.where(generated[running] >= limit[running], LENGTH, RUNNING)

    longest, num_evals = MAX_PREFILL_TOKENS, spec.num_evals
    frames = longest if spec.takes_reference else 0
    runner.prefill_buffers = PrefillBuffers(
        spec, BatchShape(longest, count, frames, longest), count, runner.device
    )
    host_idx, first_idx = runner.idx.numpy(), runner.first_idx.numpy()

    def add(graphs: Any, key: tuple[int, ...], ms: float, run: Callable[[], None]) -> None:
        graphs.graphs[key] = graph(ms / 1e3, run)

    for batch in runner.batch_sizes:
        key = (batch, runner.sizes.max_pages, num_evals)
        add(
            runner.decode_graphs,
            key,
            interpolate(costs.step, batch),
            partial(advance, host_idx[:batch]),
        )
    for shape in runner.prefill_keys():
        ms = costs.backbone + costs.prefill + costs.token * shape[0]
        add(runner.prefill_graphs, shape, ms, lambda: None)
    runner.evals = {num_evals}
    for key in runner.first_keys():
        ms = interpolate(costs.step, key[0]) - costs.backbone
        add(runner.first_graphs, key, ms, partial(advance, first_idx[: key[0]]))
    for key in codec.calls.captured_shapes(count):
        rows, _, decodes = key
        samples = torch.zeros(rows, decodes * spec.hop)
        frames = torch.zeros(rows, decodes, *spec.frame.shape)
        silence = CodecOutput(samples, frames, torch.zeros(rows, decodes, 0))
        speak = partial(codec.outputs.__setitem__, key, silence)
        add(codec.graphs, key, interpolate(costs.codec, rows * decodes), speak)
    runner.kv.fused = True  # shapes do not depend on lengths


@contextmanager
def simulated(name: str, policy: Policy) -> Iterator[TTS]:
    outline = without_weights(name)
    with (
        mock.patch("stentor.engine.running.device.Device", SimulatedDevice),
        mock.patch.object(registry, "load", return_value=outline),
    ):
        tts = TTS(name, device="cpu", max_num_seqs=SLOTS, memory_gb=0.05, max_frames=1024, overlap_steps=1,
                  policy=policy, batch_sizes=default_batch_sizes(SLOTS))  # fmt: skip
    with tts:
        line = tts.engine.side.device.line  # type: ignore[attr-defined]
        captured(tts.engine.runner, tts.engine.codec, COSTS[name], partial(SimulatedGraph, line))
        # as in a server: a collection that visits the model takes 160 ms, by chance of a window
        gc.collect()
        gc.freeze()
        try:
            yield tts
        finally:
            gc.unfreeze()


# -- loads --


def options(tts: TTS, seconds: float) -> dict[str, Any]:
    spec = tts.spec
    given: dict[str, Any] = {
        "max_frames": max(2, round(seconds * spec.sample_rate / spec.hop)),
        "ignore_eos": True,
    }
    if spec.voices:
        given["voice"] = spec.voices[0]
    return {k: v for k, v in given.items() if k in spec.options or k == "voice"}


class Player:
    """A client that plays a stream as it comes. It notes when the first audio came and the longest stall."""

    def __init__(self, rate: int, started: float) -> None:
        self.rate, self.started, self.first, self.samples, self.gap = rate, started, 0.0, 0, 0.0

    def play(self, samples: int) -> None:
        now = time.perf_counter()
        self.first = self.first or now
        self.gap = max(self.gap, now - self.first - self.samples / self.rate)
        self.samples += samples


Outcome = tuple[list[Player], float]
"""Clients, and frames per second."""


def burst(tts: TTS, count: int) -> Outcome:
    """Requests that start together, read by a thread each."""
    given = options(tts, SECONDS)
    frames = tts.engine.stats.frames
    together = threading.Barrier(count + 1)

    def read(seed: int) -> Player:
        together.wait()
        player = Player(tts.sample_rate, started)
        for chunk in tts.submit(tts.request(TEXT, seed=seed, **given)):
            player.play(len(chunk.samples))
        return player

    with ThreadPoolExecutor(count) as pool:
        reading = [pool.submit(read, seed) for seed in range(count)]
        while together.n_waiting < count:  # to start a thread may take long, and is no part of this
            time.sleep(0.01)
        started = time.perf_counter()
        together.wait()
        players = [each.result() for each in reading]
    return players, (tts.engine.stats.frames - frames) / (time.perf_counter() - started)


async def ask(
    tts: TTS, pool: ThreadPoolExecutor, player: Player, text: str, seconds: float, seed: int
) -> None:
    """One request as the server has it: its prompt made by a pool of threads, its audio read in the event loop."""
    request = tts.request(text, seed=seed, **options(tts, seconds))
    prompt = await asyncio.get_running_loop().run_in_executor(pool, tts.prompt, request)
    stream = tts.engine.submit(prompt, seed, True)
    try:
        async for chunk in stream:
            player.play(len(chunk.samples))
    finally:
        stream.cancel()


def wave(tts: TTS, count: int) -> Outcome:
    """Requests that start together in one event loop."""

    async def everyone() -> Outcome:
        with ThreadPoolExecutor(THREADS) as pool:
            await asyncio.gather(*(asyncio.to_thread(time.sleep, 0) for _ in range(THREADS)))
            frames, started = tts.engine.stats.frames, time.perf_counter()
            players = [Player(tts.sample_rate, started) for _ in range(count)]
            await asyncio.gather(
                *(ask(tts, pool, player, TEXT, SECONDS, i) for i, player in enumerate(players))
            )
            return players, (tts.engine.stats.frames - frames) / (time.perf_counter() - started)

    return asyncio.run(everyone())


def loop(tts: TTS, count: int) -> Outcome:
    """A closed loop of clients in one event loop for some seconds, the first of which does not count."""
    draw, words = random.Random(1), TEXT.split()
    players: list[Player] = []

    async def client(pool: ThreadPoolExecutor, seed: int) -> None:
        while True:
            player = Player(tts.sample_rate, time.perf_counter())
            players.append(player)
            text = " ".join(words[: draw.randint(6, len(words))])
            await ask(tts, pool, player, text, draw.uniform(*LOOP_SECONDS), seed)

    async def everyone() -> Outcome:
        with ThreadPoolExecutor(THREADS) as pool:
            clients = [asyncio.ensure_future(client(pool, i)) for i in range(count)]
            await asyncio.sleep(WARM)
            began, frames = time.perf_counter(), tts.engine.stats.frames
            await asyncio.sleep(WINDOW)
            rate = (tts.engine.stats.frames - frames) / (time.perf_counter() - began)
            for c in clients:
                c.cancel()
            await asyncio.gather(*clients, return_exceptions=True)
            return [e for e in players if e.first and e.started >= began], rate

    outcome = asyncio.run(everyone())
    while tts.engine.health().running:
        time.sleep(0.01)
    return outcome


LOADS = {
    "burst1": (burst, 1), "burst16": (burst, 16), "burst64": (burst, 64), "wave64": (wave, 64), "loop16": (loop, 16),
    "loop4": (loop, 4), "loop64": (loop, 64),
}  # fmt: skip


def measure(tts: TTS, load: str) -> dict[str, Any]:
    run, count = LOADS[load]
    stats = tts.engine.stats
    before = stats.steps, stats.prefills
    line, started = tts.engine.side.device.line, time.perf_counter()  # type: ignore[attr-defined]
    busy = dict(line.busy)
    players, rate = run(tts, count)
    wall = time.perf_counter() - started
    firsts = sorted((e.first - e.started) * 1e3 for e in players)
    return {
        "load": load,
        "first_ms": {"min": round(firsts[0], 1), "p50": round(statistics.median(firsts), 1),
                     "p99": round(firsts[int(0.99 * (len(firsts) - 1))], 1)},
        "audio_s_per_s": round(rate * tts.spec.hop / tts.sample_rate, 1),
        "requests": len(players),
        "steps": stats.steps - before[0],
        "prefills": stats.prefills - before[1],
        "longest_gap_ms": round(max(e.gap for e in players) * 1e3, 1),
        "busy": [round((line.busy[p] - busy[p]) / wall, 3) for p in (LANGUAGE_MODEL, CODEC)],
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--models", nargs="+", default=list(COSTS), choices=list(COSTS))
    parser.add_argument("--loads", nargs="+", default=list(LOADS), choices=list(LOADS))
    parser.add_argument(
        "--rounds", type=int, default=2, help="the best of so many: this machine is not alone"
    )
    parser.add_argument(
        "--policy", nargs="+", default=[], metavar="NAME=VALUE", help="of stentor.config.Policy"
    )
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    torch.set_num_threads(1)
    policy = {name: json.loads(value) for name, _, value in (p.partition("=") for p in args.policy)}
    results: dict[str, list[dict[str, Any]]] = {}
    for name in args.models:
        with simulated(name, Policy(**{"ramp": RAMP, **policy})) as tts:
            for load in args.loads:
                rounds = [measure(tts, load) for _ in range(args.rounds)]
                found = min(rounds, key=lambda r: r["first_ms"]["p50"])
                results.setdefault(name, []).append(found)
                print(name, json.dumps(found), flush=True)
    if args.json:
        args.json.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
