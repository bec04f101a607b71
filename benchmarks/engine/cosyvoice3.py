"""Time CosyVoice3 on a GPU: first audio, throughput in cells and as wholes, and the parts of its codec.

Run: python benchmarks/engine/cosyvoice3.py [--window 20] [--in-codec 512] [--brief] [--out DIR]
     python benchmarks/engine/cosyvoice3.py --model FOLDER --device cpu --window 8    a dry run with a tiny checkpoint
Needs: a GPU with room for 90 MB times seconds of the window times slots, and nothing but stentor.

Milliseconds of the codec and of the vocoder are those of one captured call of a cell (25 codes), or of two, with 10
cells kept of each row, beside the floor: bytes of weights at 4.3 TB/s or operations at 790 TFLOP/s, whichever takes
longer. One thread is the client of all streams, as in a server. Each stage writes its result to step_MODEL.json before
the next one begins. A short table comes last.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

sys.path.insert(
    0, str(Path(__file__).resolve().parents[2])
)  # this tree, also where none is installed
from benchmarks.engine.step import TEXT, Bench
from benchmarks.timing import machine_speed, milliseconds
from stentor.config import Policy
from stentor.engine.running.codec_state import CodecStateTable
from stentor.engine.running.cuda_graphs import CudaGraphRunner
from stentor.layers.types import NO_END, CodecCall, CodecPageTable

ROWS, KEPT = (1, 4, 16, 32, 64), 10
FLOW_FLOP, VOCODER_FLOP, FLOW_BYTES, VOCODER_BYTES = (
    378e9,
    33.7e9,
    3.78e9,
    41.6e6,
)  # of a cell, or of one call
WHOLE = 350  # codes of a whole call, a prompt of 100 among them
SECONDS = 10


def floor(rows: int, flop: float, read: float) -> float:
    """Milliseconds."""
    return round(1e3 * max(read / 4.3e12, rows * flop / 790e12), 3)


class Streams(Bench):
    """The stages of a run. See the module docstring."""

    def __init__(self, a: argparse.Namespace) -> None:
        super().__init__(a.model, a.out, a.device, a.slots)
        self.window, self.in_codec, self.brief = a.window, a.in_codec, a.brief
        self.found |= {"window": a.window, "in_codec": a.in_codec}

    def run_all(self) -> None:
        if not self.brief:
            self.stage("machine", lambda: machine_speed(torch.device(self.device)))
        self.stage("start", self.start)
        while "start" not in self.found and self.slots > 1:  # another process may use the GPU
            self.slots //= 2
            self.stage("start", self.start)
        self.stage("prompt", self.prompt)
        for streaming in (True,) if self.brief else (True, False):
            for count in (1, 16, 64) if self.cuda else (1, 2):
                name = f"{'cells' if streaming else 'whole'}_c{count}"
                self.stage(name, lambda c=count, s=streaming: self.speak(c, s))
        self.stage("ms_per_step", self.steps)
        self.stage("parts", self.parts)
        self.stage("profile", lambda: self.profile(1))
        if not self.brief:
            self.stage("no_synchronisation", self.alarmed)
            self.stage("codec_ms", self.codec)
        self.stage("memory", self.memory)
        self.tts.close()

    def settings(self) -> dict[str, Any]:
        """Cells with so large a window, and a codec that holds so many frames."""
        return {
            "memory_gb": 4.0 if self.cuda else 0.05,
            "stream_window": self.window,
            "policy": Policy(max_frames_in_codec=self.in_codec or None),
        }

    @property
    def cuda(self) -> bool:
        return torch.cuda.is_available() and self.device != "cpu"

    def prompt(self) -> dict[str, Any]:
        """Milliseconds from a request to its prompt, with the codec's state after a voice that is new, then kept."""
        made = []
        for _ in range(3):
            started = time.perf_counter()
            self.tts.prompt(self.tts.request(TEXT, voice=self.tts.spec.voices[0]))
            made.append(round(1e3 * (time.perf_counter() - started), 1))
        return {"ms": made, "codec states": str(self.tts.engine.health().codec_states)}

    def speak(self, count: int, streaming: bool) -> dict[str, Any]:
        """Requests of equal length that start together: milliseconds to the first audio of the soonest, the median and
        the latest one, and seconds of audio per second, of the round in the middle of three behind a first."""
        tts, rounds = self.tts, list[dict[str, Any]]()
        frames = SECONDS * 25 if self.cuda else 30
        options = {"max_frames": frames, "ignore_eos": True, "voice": tts.spec.voices[0]}
        eager = tts.engine.side.eager_calls
        for _ in range(4):
            started = time.perf_counter()
            reqs = [
                tts.request(f"{i}. {TEXT if self.cuda else ''}", seed=i, **options)
                for i in range(count)
            ]
            heard = asyncio.run(self.hear_all(reqs, streaming))
            wall = time.perf_counter() - started
            firsts = sorted(1e3 * (h[0] - started) for h in heard)
            rounds.append(
                {
                    "ttfa_ms": [round(firsts[i], 1) for i in (0, count // 2, -1)],
                    "wall_s": round(wall, 3),
                    "audio_s_per_s": round(sum(h[1] for h in heard) / tts.sample_rate / wall, 1),
                    "eager_calls": tts.engine.side.eager_calls - eager,
                }
            )
        every = sorted(rounds[1:], key=lambda found: float(found["audio_s_per_s"]))
        return {**every[1], "rounds": [found["audio_s_per_s"] for found in rounds]}

    async def hear_all(self, requests: list[Any], streaming: bool) -> list[tuple[float, int]]:
        return await asyncio.gather(*(self.hear(request, streaming) for request in requests))

    async def hear(self, request: Any, streaming: bool) -> tuple[float, int]:
        """When the first audio came, and how many samples there were."""
        first, samples = 0.0, 0
        async for chunk in self.tts.submit(request, streaming):
            first = first or time.perf_counter()
            samples += len(chunk.samples)
        return first, samples

    # -- parts of the codec --

    def parts(self) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for rows in ROWS if self.cuda else (1,):
            for name, run in self.calls(rows).items():
                found[f"{name} {rows}"] = self.timed(
                    run, profiled=rows in (1, 16, 32, 64) and name != "vocoder"
                )
        for rows in ROWS:
            found[f"floor flow {rows}"] = floor(rows, FLOW_FLOP, FLOW_BYTES)
            found[f"floor vocoder {rows}"] = floor(rows, VOCODER_FLOP, VOCODER_BYTES)
        found[f"whole of {WHOLE} codes"] = self.timed(self.whole, profiled=not self.brief)
        found["floor whole"] = floor(WHOLE // 25, FLOW_FLOP + VOCODER_FLOP, 0.0)
        return found

    def calls(self, rows: int) -> dict[str, Callable[[], object]]:
        """The flow of a cell, the vocoder of a cell, and the whole codec call, of so many rows."""
        codec, runner, where = (
            self.tts._model.codec,
            self.tts.engine.codec,
            self.runner.device.torch,
        )
        kept, cells = min(KEPT, self.window - 2), codec.timing.chunk_pages
        state = CodecStateTable(codec.columns, rows, where).columns
        state["prompt_count"].fill_(100)
        most = runner.pages.padding  # the engine is idle: its pages may be written
        table = (torch.arange(rows * self.window, device=where) % most).view(rows, self.window)
        at = torch.full((rows,), 25 * (kept - 4), device=where)
        pages = CodecPageTable(runner.pages.pool, table, torch.full_like(at, kept))
        call = CodecCall(at, torch.full_like(at, NO_END), pages)
        mel = torch.randn(rows, 50, 80, device=where)
        frames = torch.zeros(rows, 25 * cells + 3, 1, dtype=torch.int64, device=where)
        own = {n.removeprefix("vocoder."): v for n, v in state.items() if n.startswith("vocoder.")}
        return {
            "codec": lambda: codec.decode(frames[:, :28], state, call),
            f"codec of {cells} cells": lambda: codec.decode(frames, state, call),
            "vocoder": lambda: codec.vocoder(mel, 2 * at, torch.full_like(at, NO_END), own),
        }

    def whole(self) -> object:
        codec, where = self.tts._model.codec, self.runner.device.torch
        count = WHOLE if self.cuda else 50
        state = CodecStateTable(codec.columns, 1, where).columns
        state["prompt_count"].fill_(25)
        at = torch.full((1,), -25, device=where)
        frames = torch.zeros(1, count, 1, dtype=torch.int64, device=where)
        pages = CodecPageTable({}, torch.zeros(1, 0, dtype=torch.int64, device=where), at)
        return codec.decode(
            frames, state, CodecCall(at, torch.full_like(at, count - 25), pages, whole=True)
        )

    def timed(self, run: Callable[[], object], profiled: bool) -> dict[str, Any]:
        """Milliseconds eagerly, on the host until it is launched, and captured. Kernels of a captured call."""
        device, found = self.runner.device, dict[str, Any]()
        stream = device.stream(0)

        def once() -> None:
            run()

        graphs = CudaGraphRunner("part", once, device, stream)
        with torch.inference_mode(), stream.active():
            run()
            if not self.brief:
                found["eager"] = round(milliseconds(run), 3)
                started = time.perf_counter()
                run()
                found["launch"] = round(1e3 * (time.perf_counter() - started), 3)
            if self.cuda:
                graphs.capture([()])
                found["captured"] = round(milliseconds(graphs), 3)
                found["failed"] = list(graphs.failed.values())
                found |= self.kernels_of(graphs) if profiled else {}
        return found

    def kernels_of(self, graphs: CudaGraphRunner) -> dict[str, Any]:
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as p:
            graphs()
            self.runner.device.synchronize()
        rows = [(e.key[:90], e.count, e.self_device_time_total) for e in p.key_averages()]
        rows = sorted((r for r in rows if r[2] > 0), key=lambda r: -r[2])
        return {
            "kernels": sum(r[1] for r in rows),
            "us": round(sum(r[2] for r in rows)),
            "top": rows[:22],
        }


def table(found: dict[str, Any]) -> str:
    lines = [
        f"window {found['window']}, {found['in_codec']} frames in the codec, {found.get('start', {}).get('sizes')}"
    ]
    lines += [
        f"{name:<22} {found[name]}"
        for name in found
        if name.startswith(("prompt", "cells_", "whole_", "ms_"))
    ]
    for name, value in found.get("parts", {}).items():
        short = {k: v for k, v in value.items() if k != "top"} if isinstance(value, dict) else value
        lines.append(f"{name:<22} {short}")
    lines.append(f"errors: {', '.join(found['errors']) or 'none'}")
    return "\n".join(lines)


def main() -> None:
    p = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    p.add_argument("--model", default="dummy:cosyvoice3")
    p.add_argument("--window", type=int, default=20, help="seconds that a stream keeps")
    p.add_argument(
        "--in-codec", type=int, default=0, help="frames that the codec holds. 0: the default"
    )
    p.add_argument("--slots", type=int, default=64)
    p.add_argument(
        "--brief", action="store_true", help="without utterances as wholes, within a minute"
    )
    p.add_argument("--device", default="cuda")
    p.add_argument("--out", type=Path, default=Path("."))
    a = p.parse_args()
    a.out.mkdir(parents=True, exist_ok=True)
    logging.basicConfig(level=logging.WARNING, format="%(message)s")
    sys.setswitchinterval(0.0001)  # as in a server
    bench = Streams(a)
    bench.run_all()
    print(table(bench.found), flush=True)


if __name__ == "__main__":
    main()
