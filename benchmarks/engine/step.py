"""Time the engine's steps on a GPU. Every model runs in a process of its own. A short table comes last.

Run: python benchmarks/engine/step.py [--seconds 330] [--out DIR] [MODEL ...]     all models share the time
     python benchmarks/engine/step.py --one MODEL --out DIR                       one model, in this process
     python benchmarks/engine/step.py --one MODEL --out DIR --brief --max-num-seqs 16 --quantization auto int8 fp8
                                                                    the same with weights of its own and in 8 bits
     python benchmarks/engine/step.py --one MODEL --out DIR --brief --deterministic   one order of sums for all
     python benchmarks/engine/step.py --one dummy:toy --device cpu --brief          a dry run without a GPU
Needs: a GPU and nothing but stentor (no server, no checkpoint).

Per model it measures the time from start to ready, the memory of the CUDA graphs, milliseconds per step at batches of
1 to `--max-num-seqs`, time to first audio and audio seconds per second in process, and the kernels that a step spends
its time in. It compares captured steps with eager ones, and it fails a steady run that synchronises with the device.
Each stage writes its result to step_MODEL.json before the next one begins.
"""

from __future__ import annotations

import argparse
import gc
import json
import logging
import os
import re
import statistics
import subprocess
import sys
import time
import traceback
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch

sys.path.insert(
    0, str(Path(__file__).resolve().parents[2])
)  # this tree, also where none is installed
from stentor import kernels
from stentor.layers.linear import QuantizedLinear

MODELS = (
    "dummy:qwen3-tts-1.7b-customvoice",
    "dummy:voxcpm2",
    "dummy:fish-s2-pro",
    "dummy:qwen3-tts-0.6b-customvoice",
    "dummy:dots-tts-mf",
    "dummy:qwen3-omni-talker",
)
TEXT = "The quick brown fox jumps over the lazy dog, and then it sleeps in the warm afternoon sun."
BATCHES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
CONTEXT = 200  # tokens in the cache when steps are timed
REPEATS = 30
SECONDS = 6.0  # of audio per request in the runs through the engine


class Bench:
    """One model: stages that write into `found`."""

    def __init__(
        self,
        model: str,
        out: Path,
        device: str,
        slots: int,
        quantization: str = "auto",
        deterministic: bool = False,
    ) -> None:
        self.model, self.device, self.slots, self.quantization = model, device, slots, quantization
        self.deterministic = deterministic
        off = os.environ.get("STENTOR_KERNELS_OFF", "")
        name = model.rsplit(":", maxsplit=1)[-1] + (f"_without_{off}" if off else "")
        name += "" if quantization == "auto" else f"_{quantization}"
        name += "_deterministic" * deterministic
        self.file = out / f"step_{re.sub('[^a-z0-9]+', '_', name)}.json"
        self.found: dict[str, Any] = {
            "model": model,
            "quantization": quantization,
            "kernels_off": off,
            "errors": {},
        }
        self.found["deterministic"] = deterministic

    def stage(self, name: str, run: Callable[[], Any]) -> None:
        started = time.perf_counter()
        try:
            self.found[name] = run()
        except Exception:
            self.found["errors"][name] = traceback.format_exc()
            print(f"-- {self.model} {name} failed\n{traceback.format_exc()[-2500:]}", flush=True)
        print(
            f"{self.model} {name} {time.perf_counter() - started:.1f} s: {self.found.get(name)}",
            flush=True,
        )
        self.file.write_text(json.dumps(self.found, indent=1))

    def run(self, brief: bool) -> None:
        self.batches = tuple(b for b in BATCHES if b <= self.slots) if brief else None
        self.stage("start", self.start)
        if "start" not in self.found:
            return
        if brief:
            self.stage("ms_per_step", self.steps)
            self.stage("profile", lambda: self.profile(1))
            self.stage("profile_16", lambda: self.profile(16))
            self.stage("weights", self.weights)
            self.tts.close()
            return
        self.stage("captured_equals_eager", self.captured_equals_eager)
        self.stage("ms_per_step", self.steps)
        self.stage("alone", lambda: self.through_the_engine(1))
        self.stage("profile", lambda: self.profile(1))
        self.stage("c4", lambda: self.through_the_engine(4))
        self.stage("c16", lambda: self.through_the_engine(16))
        self.stage("c64", lambda: self.through_the_engine(64))
        self.stage("no_synchronisation", self.alarmed)
        self.stage("codec_ms", self.codec)
        self.stage("profile_4", lambda: self.profile(4))
        self.stage("profile_16", lambda: self.profile(16))
        self.stage("profile_64", lambda: self.profile(64))
        self.stage("memory", self.memory)
        self.tts.close()

    def settings(self) -> dict[str, Any]:
        """How the model is loaded."""
        return {
            "memory_gb": float(os.environ.get("KV_GB", "10")),
            "batch_sizes": self.batches,
            "quantization": self.quantization,
            "deterministic": self.deterministic,
        }

    def start(self) -> dict[str, Any]:
        from stentor import TTS

        started = time.perf_counter()
        self.tts = TTS(self.model, device=self.device, max_num_seqs=self.slots, **self.settings())
        ready = time.perf_counter() - started
        self.runner = self.tts.engine.runner
        graph_runners = self.tts.engine.side.graph_runners
        return {
            "ready_seconds": round(ready, 1),
            "graphs": {x.name: len(x.graphs) for x in graph_runners},
            "failed": {
                x.name: {str(k): v[:300] for k, v in x.failed.items()} for x in graph_runners
            },
            "sizes": self.runner.sizes.describe(),
            "gib": self.memory(),
        }

    def memory(self) -> dict[str, float]:
        if not torch.cuda.is_available():
            return {}
        return {
            "reserved": round(torch.cuda.memory_reserved() / 2**30, 2),
            "allocated": round(torch.cuda.memory_allocated() / 2**30, 2),
            "peak": round(torch.cuda.max_memory_allocated() / 2**30, 2),
        }

    def weights(self) -> dict[str, float]:
        """GiB of all weights and tables, and of the layers that have 8 bits, now and with 16."""
        modules = [m for m in vars(self.tts._model).values() if isinstance(m, torch.nn.Module)]
        layers = {
            id(x): x for m in modules for x in m.modules() if isinstance(x, QuantizedLinear)
        }.values()
        held = {id(t): t.nbytes for m in modules for t in (*m.parameters(), *m.buffers())}
        found = {
            "all": sum(held.values()),
            "in 8 bits": sum(x.weight.nbytes + x.weight_scale.nbytes for x in layers),
        }
        found["the same in 16 bits"] = sum(2 * x.weight.numel() for x in layers)
        return {name: round(size / 2**30, 3) for name, size in found.items()}

    # -- bare steps, with rows that run for ever --

    def occupy(self, batch: int) -> tuple[int, ...]:
        """Give the first `batch` slots CONTEXT tokens and pages of their own. Returns the decode key for them."""
        w, sizes = self.runner, self.runner.sizes
        each = min(sizes.max_pages, sizes.pages // self.slots, 64)
        table = w.slots.table
        with torch.inference_mode():
            for name, column in w.slots.columns.items():
                table[name].fill_(column.fill)
            table["stop"].fill_(1)
            table["stop"][:batch] = 0
            table["pos"][:batch] = CONTEXT
            table["step"][:batch] = 20
            table["max_frames"][:batch] = sizes.max_frames
            table["min_frames"][:batch] = sizes.max_frames
            table["temperature"][:batch] = 0.9
            table["top_k"][:batch] = 50
            table["seed"][:batch] = torch.arange(batch, device=self.runner.device.torch)
            for name, value in (
                ("flow_steps", 10),
                ("cfg", 2.0),
                ("subtalker_temperature", 0.9),
                ("subtalker_top_k", 50),
            ):
                if name in table:
                    table[name][:batch] = value
            pages = torch.arange(batch * each, device=self.runner.device.torch).view(batch, each)
            w.kv.table.fill_(sizes.pages)
            w.kv.table[:batch, :each] = pages
            for kv in w.kv.frames.values():
                own = min(kv.table.shape[1], kv.pages // self.slots, 64)
                kv.table.fill_(kv.pages)
                kv.table[:batch, :own] = torch.arange(batch * own, device=kv.table.device).view(
                    batch, own
                )
            w.idx.fill_(self.slots)
            w.idx[:batch] = torch.arange(batch, device=self.runner.device.torch)
            w._idx_host = []
        wanted = (batch, sizes.max_pages if w.kv.fused else 16, w.model.spec.num_evals)
        return w.decode_graphs.covering_key(wanted, least=1)

    def steps(self) -> dict[str, float]:
        if not torch.cuda.is_available():
            return {}
        out = {}
        for batch in (b for b in BATCHES if b <= self.slots):
            out[f"b{batch}"] = self.step_ms(batch)
            spec = self.tts.spec
            out[f"b{batch}_audio_s_per_s"] = round(
                batch * spec.hop / spec.sample_rate / (out[f"b{batch}"] / 1e3), 1
            )
        return out

    def step_ms(self, batch: int) -> float:
        """Median milliseconds of a captured step of so many rows."""
        key = self.occupy(batch)
        times = []
        with torch.inference_mode(), self.runner.stream.active():
            for _ in range(3):
                self.runner.decode_graphs(*key)
            for _ in range(5):
                a, b = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
                a.record()
                for _ in range(REPEATS // 5):
                    self.runner.decode_graphs(*key)
                b.record()
                b.synchronize()
                times.append(a.elapsed_time(b) / (REPEATS // 5))
        return round(statistics.median(times), 3)

    def captured_equals_eager(self) -> dict[str, Any]:
        out: dict[str, Any] = {}
        w = self.runner
        for batch in (b for b in (1, 16) if b <= self.slots):
            results = []
            for captured in (True, False):
                key = self.occupy(batch)
                torch.manual_seed(1)
                with (
                    torch.inference_mode(),
                    kernels.batch_invariant(self.deterministic),
                    w.stream.active(),
                ):
                    w.kv.pool.normal_()
                    w.slots.table["prev"].fill_(1)
                    for _ in range(3):
                        if captured:
                            w.decode_graphs(*key)
                        else:
                            w._decode(*key)
                    w.device.synchronize()
                results.append(
                    [w.slots.table[n][:batch].clone() for n in ("prev", "pos", "step", "stop")]
                )
            differ = [
                float((a.float() - b.float()).abs().max()) for a, b in zip(*results, strict=True)
            ]
            out[f"b{batch}"] = {
                "largest_difference": differ,
                "finite": bool(results[0][0].isfinite().all()),
            }
            out[f"b{batch}"]["step"] = results[0][2][:2].tolist()
        return out

    def codec(self) -> dict[str, float]:
        codec, out = self.tts.engine.codec, {}
        for key in sorted(codec.graphs.graphs):
            if key[0] not in (1, 16, 64) or key[1] not in (1, 8, codec.timing.chunk):
                continue
            with torch.inference_mode(), codec.stream.active():
                codec.inputs.fill_(codec.sizes.slots)  # the frames that captures read
                codec.graphs(*key)
                a, b = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
                a.record()
                for _ in range(3):
                    codec.graphs(*key)
                b.record()
                b.synchronize()
                out[f"{key[0]}x{key[1]}"] = round(a.elapsed_time(b) / 3, 3)
        return out

    def profile(self, batch: int) -> dict[str, Any]:
        if not torch.cuda.is_available() or batch > self.slots:
            return {}
        key = self.occupy(batch)
        w = self.runner
        with torch.inference_mode(), w.stream.active():
            w.decode_graphs(*key)
            w.device.synchronize()
            with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as p:
                for _ in range(2):
                    w.decode_graphs(*key)
                w.device.synchronize()
        rows = [(e.key[:90], e.count / 2, e.self_device_time_total / 2) for e in p.key_averages()]
        rows = sorted((r for r in rows if r[2] > 0), key=lambda r: -r[2])
        return {
            "kernels": sum(r[1] for r in rows),
            "kernel_us": round(sum(r[2] for r in rows)),
            "top": [[name, count, round(us, 1)] for name, count, us in rows[:24]],
        }

    # -- through the engine --

    def options(self) -> dict[str, Any]:
        spec = self.tts.spec
        frames = max(2, round(SECONDS * spec.sample_rate / spec.hop))
        options: dict[str, Any] = {"max_frames": frames, "ignore_eos": True}
        if spec.voices:
            options["voice"] = spec.voices[0]
        return {k: v for k, v in options.items() if k in spec.options or k == "voice"}

    def through_the_engine(self, concurrency: int) -> dict[str, Any]:
        """Requests of equal length that start together. Time to first audio: soonest, median, latest."""
        if concurrency > self.slots:
            return {}
        tts, options = self.tts, self.options()
        eager = self.tts.engine.side.eager_calls
        rounds = []
        for _ in range(2 if concurrency > 1 else 3):
            started = time.perf_counter()
            reqs = [tts.request(TEXT, seed=i, **options) for i in range(concurrency)]
            with ThreadPoolExecutor(concurrency) as pool:
                answers = list(pool.map(self.listen, reqs))
            wall = time.perf_counter() - started
            firsts = sorted(h[0] - started for h in answers)
            samples, frames = sum(h[1] for h in answers), sum(h[2] for h in answers)
            audio = samples / tts.sample_rate
            rounds.append(
                {
                    "ttfa_ms": [round(firsts[i] * 1e3, 2) for i in (0, len(firsts) // 2, -1)],
                    "wall_s": round(wall, 3),
                    "audio_s_per_s": round(audio / wall, 2),
                    "ms_per_frame": round(wall * 1e3 / max(1, frames / concurrency), 3),
                    "frames": frames,
                }
            )
        return {"rounds": rounds, "eager_calls": self.tts.engine.side.eager_calls - eager}

    def listen(self, request: Any) -> tuple[float, int, int]:
        """When the first audio came, and how many samples and frames there were."""
        first, samples, frames = 0.0, 0, 0
        for chunk in self.tts.submit(request):
            first = first or time.perf_counter()
            samples, frames = samples + len(chunk.samples), frames + len(chunk.frames)
        return first, samples, frames

    def alarmed(self) -> dict[str, Any]:
        """A run in which any hidden synchronisation raises."""
        if not torch.cuda.is_available():
            return {}
        failed = self.tts.engine.stats.failed
        torch.cuda.set_sync_debug_mode("error")
        try:
            found = self.through_the_engine(min(4, self.slots))
        finally:
            torch.cuda.set_sync_debug_mode("default")
        return {
            "failed": self.tts.engine.stats.failed - failed,
            "frames": [r["frames"] for r in found["rounds"]],
        }


def table(out: Path) -> str:
    lines = [
        "model, ready s, ms per step at "
        + ", ".join(map(str, BATCHES))
        + " rows, ttfa ms, ms/frame, audio-s/s c4, c16, c64"
    ]
    for file in sorted(out.glob("step_*.json")):
        f = json.loads(file.read_text())
        steps = f.get("ms_per_step") or {}
        alone = (f.get("alone") or {}).get("rounds") or [{}]
        wide = [(f.get(n) or {}).get("rounds") or [{}] for n in ("c4", "c16", "c64")]
        cells = [
            f.get("start", {}).get("ready_seconds"),
            *(steps.get(f"b{b}") for b in BATCHES),
            (alone[-1].get("ttfa_ms") or [None])[0], alone[-1].get("ms_per_frame"),
            *(r[-1].get("audio_s_per_s") for r in wide),
        ]  # fmt: skip
        row = "  ".join(f"{c if c is not None else '-':>7}" for c in cells)
        name = f"{f['model'].rsplit('/')[-1]:<34} {f['quantization']:<5} {f['kernels_off']:<7}"
        name += " deterministic" * f.get("deterministic", False)
        lines.append(f"{name} {row}  errors: {', '.join(f['errors']) or 'none'}")
    return "\n".join(lines)


def drive(models: list[str], out: Path, seconds: float, device: str, slots: int) -> None:
    """Every section in a process of its own, so that a crash or a hang costs only itself."""
    end = time.monotonic() + seconds
    here = [sys.executable, str(Path(__file__).resolve())]
    root = Path(__file__).resolve().parents[2]
    path = os.pathsep.join([str(root), os.environ.get("PYTHONPATH", "")])
    sections: list[tuple[str, str, float, str]] = [(m, "", 85.0, "") for m in models]
    if device == "cuda":  # what the kernels are worth
        sections += [(m, "skinny_gemm", 25.0, "--brief") for m in models]
    for i, (name, without, share, brief) in enumerate(sections):
        left = end - time.monotonic()
        models_left = max(1, len(models) - i)
        allowed = min(max(share, left / models_left), left)
        print(f"== {name} without {without or 'nothing'}: {left:.0f} s left", flush=True)
        if allowed < 10:
            continue
        command = [
            *here,
            "--one",
            name,
            "--out",
            str(out),
            "--device",
            device,
            "--max-num-seqs",
            str(slots),
        ]
        environment = {**os.environ, "STENTOR_KERNELS_OFF": without, "PYTHONPATH": path}
        with (out / "log.txt").open("a") as log:
            log.write(f"== {name} {brief} without {without}\n")
            log.flush()
            at = log.tell()
            child = subprocess.Popen(
                command + brief.split(), cwd=root, stdout=log, stderr=log, env=environment
            )
            try:
                child.wait(allowed)
            except subprocess.TimeoutExpired:
                child.kill()
                log.write("\n-- out of time\n")
        print((out / "log.txt").read_text()[at:][-1800:], flush=True)
    print(table(out), flush=True)


def main() -> None:
    p = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    p.add_argument("models", nargs="*", default=list(MODELS))
    p.add_argument("--one")
    p.add_argument("--out", type=Path, default=Path("."))
    p.add_argument("--seconds", type=float, default=330.0)
    p.add_argument("--device", default="cuda")
    p.add_argument("--max-num-seqs", type=int, default=64)
    p.add_argument("--brief", action="store_true", help="only the time per step")
    p.add_argument(
        "--quantization", nargs="+", default=["auto"], help="with --one: one after the other"
    )
    p.add_argument("--deterministic", action="store_true", help="with --one")
    a = p.parse_args()
    a.out.mkdir(parents=True, exist_ok=True)
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    if a.one:
        for quantization in a.quantization:
            Bench(a.one, a.out, a.device, a.max_num_seqs, quantization, a.deterministic).run(
                a.brief
            )
            gc.collect()
        print(table(a.out), flush=True)
    else:
        drive(a.models, a.out, a.seconds, a.device, a.max_num_seqs)


if __name__ == "__main__":
    main()
