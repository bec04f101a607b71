"""Say where the time of many rows, of determinism and of one row goes, and what 8 bits could save. A table comes last.

Run: python benchmarks/engine/many_rows.py --out DIR [--seconds 225] [--parts engine,products,...]      on one GPU
     python benchmarks/engine/many_rows.py --out DIR --device cpu --dry         every part on a CPU, with the toy
     python benchmarks/engine/many_rows.py --compile            the kernels of 8 bits for a Hopper GPU, without one
Needs: a GPU and nothing but stentor (no server, no checkpoint). `--compile` needs pytest.

Parts run one after the other, each in a process of its own with its share of the seconds, and write many_rows_PART.json
after every stage. A stage that fails leaves the others. What no time was left for is listed as not done.

`engine`        Qwen3-TTS 1.7B: kernels of a step of 1 and 64 rows, and where a second of 64 and 256 streams goes
`products`      linear layers in bf16, in int8 as now, and with activations in 8 bits, alone and in chains of blocks
`deterministic` a step of 1 to 256 rows of the same model by default and with one order of sums, and its kernels
`voxcpm2`       where a second of 64 streams of VoxCPM2 goes
`pocket`        the same of 64, 128 and 256 streams of Pocket-TTS, one engine of which leaves half of the GPU idle
`workspace`     torch's products of 8 bits without a workspace of cuBLASLt, as the engine has them (64 rows)

How to read it. A kernel that was launched programmatically waits for the one before it inside its own time. So `own` is
what a kernel adds to the end of the one before, and `gap` is the time before it in which none runs. Together they are
the step. Launches in the profiler take longer: compare `traced` with the step. `span` is the time of a graph from
before its first to behind its last kernel while others run beside it, `alone` that of the same graph when nothing else
runs. If `alone` adds up to a second per second, no scheduling gives more. A product that is `today` has norm, gate and
residual inside where its layer fuses them. `fp8 rows` is torch._scaled_mm with a scale for each row, `tile` a plain
Triton kernel in the best of three tiles. Chains have everything but attention: norms and gates that also quantise, and
one more launch before o. "int8 today" of flow is what int8 would be, which leaves flows in 16 bits.

Predicted, for an H200 (an H100 takes 1.2 to 1.35 times as long where weights are read):
A. Chains, 8 bits with the best kernel of each shape over bf16 today. talker: 0.85 at 64 rows, 0.65 at 256. depth: 1.0
   and 0.85, since a launch of 4 us reads 2 to 6 MB. fish: 0.75 and 0.6. language as talker. flow at 22 rows a stream:
   0.7 at 64 streams, 0.6 at 256, by arithmetic. torch's products alone: 1.05 to 1.2 times bf16 at 64 rows of talker and
   depth, as tiles of 128 rows leave most SMs idle, and as good as the best from 512 rows on. Quantising takes 2 us in a
   launch of its own, and adds at most 0.5 us to a norm or gate. So a step of 64 rows of the 1.7B goes from 4.43 to
   4.25 ms, of 256 from 6.9 to 6.0, VoxCPM2 at 64 from 14.7 to 11.7, Fish at 64 from 7.0 to 5.6. If that holds, the goal
   of 1.25 at c=64 is in reach for Fish and nearly for VoxCPM2, and not for the 1.7B. float8 has an error of 3.8 % for
   each product (cosine 0.9993), int8 1.1 % (0.99994): the gate of 0.999 after 28 layers asks for int8.
B. c=64, 1.7B: of each second 0.75 s are steps at their time alone, 0.3 s codec and 0.1 s prefill with frame 0. Together
   1.15 s, as both streams overlap a little. The card is idle less than 3 %. c=256: steps 0.6, codec 0.4. VoxCPM2: steps
   0.75, codec 0.35. Convolutions of the last two blocks take over half of a codec call.
C. Deterministic at one row: 5.1 ms for 2.3. Triton products make 70 % of the difference (twice the time of skinny
   products), norms, gates and additions as launches of their own 20 %, attention in one split 10 %. At 64 rows 1.25
   times, nine tenths of it products. By clusters that split K alike: 2.8 ms at one row, 2.9 at 4, 3.3 at 16, 4.7 at 64
   and 7.5 at 256, for 2.35, 2.5, 2.95, 4.46 and 6.9.
D. One row: 700 to 900 launches in 2.3 ms. Products own 70 % of the step at 60 % of the memory's speed, attention of the
   depth loop 15 %, samplers 5 %, gaps less than 3 %.
"""

from __future__ import annotations

import argparse
import gc
import json
import logging
import os
import queue
import re
import subprocess
import sys
import tempfile
import time
import traceback
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch

sys.path.insert(
    0, str(Path(__file__).resolve().parents[2])
)  # this tree, also where none is installed
from benchmarks.engine.step import TEXT, Bench
from benchmarks.timing import machine_speed, milliseconds
from stentor.engine.running.codec_calls import CallShape
from stentor.engine.running.codec_runner import CodecRunner
from stentor.engine.scheduling.sequence import Place
from stentor.engine.stream import Chunk, StreamEvent
from stentor.layers.configs import StackConfig
from stentor.layers.quantized import LARGEST

PARTS = {
    "engine": 80.0,
    "products": 85.0,
    "deterministic": 60.0,
    "voxcpm2": 60.0,
    "pocket": 80.0,
    "workspace": 25.0,
}
"""The parts in their order, and seconds that each may take while others wait."""
LEAST = 18.0  # seconds without which no part begins
SECONDS_OF_AUDIO = 12.0
DETERMINISTIC_ROWS = (1, 4, 16, 64, 256)
WARM, MEASURED = 1.5, 3.0  # seconds of streams
WAYS = ("bf16 today", "int8 today", "fp8 rows", "fp8 best", "int8 best")  # of a chain of blocks
TOP, TOP_OF_GRAPH = 12, 4  # kernels in the table. The files have all
RUNS = 3  # of a graph under the profiler
FIRST_OF_THE_SECOND_HALF = ("sample_first", "dit_input_tokens")
"""Kernels with which the second half of a step begins: the depth loop, or the flow."""


class Report:
    """Results of a part, in its file. Stages are kept apart."""

    def __init__(self, part: str, out: Path, seconds: float, device: str) -> None:
        self.part, self.file, self.device = (
            part,
            out / f"many_rows_{part}.json",
            torch.device(device),
        )
        self.end = time.monotonic() + seconds
        self.found: dict[str, Any] = {"part": part, "errors": {}, "skipped": []}
        if self.device.type == "cuda":
            self.found["card"] = torch.cuda.get_device_name()
            self.found["torch"] = torch.__version__

    @property
    def left(self) -> float:
        return self.end - time.monotonic()

    def stage(self, name: str, run: Callable[[], Any], need: float = 1.0) -> bool:
        """Run a stage if so many seconds are left. Whether it has a result."""
        started = time.monotonic()
        if self.left < need:
            self.found["skipped"].append(name)
        else:
            try:
                self.found[name] = run()
            except Exception:
                self.found["errors"][name] = traceback.format_exc()[-1500:]
                print(f"-- {name} failed\n{self.found['errors'][name]}", flush=True)
        print(
            f"{self.part} {name}: {time.monotonic() - started:.1f} s, {self.left:.0f} left",
            flush=True,
        )
        self.save()
        return name in self.found

    def save(self) -> None:
        self.file.write_text(json.dumps(self.found, indent=1))


# -- kernels of a graph --


class Launch(NamedTuple):
    """A kernel, copy or fill as it ran: microseconds."""

    name: str
    grid: str
    start: float
    end: float
    graph: int


def traced(run: Callable[[], None]) -> list[list[Launch]]:
    """Launches of each of three runs, in the order of their starts. Empty on a CPU."""
    if not torch.cuda.is_available():
        run()
        return []
    run()
    torch.cuda.synchronize()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as p:
        for _ in range(RUNS):
            run()
            torch.cuda.synchronize()
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "trace.json"
        p.export_chrome_trace(str(file))
        events = json.loads(file.read_text())["traceEvents"]
    launches = sorted(
        (_launch(e) for e in events if e.get("cat") in ("kernel", "gpu_memcpy", "gpu_memset")),
        key=_start,
    )
    return by_run(launches)


def by_run(launches: list[Launch]) -> list[list[Launch]]:
    """Launches of three runs one after the other, each one graph. Else a run begins where the largest two gaps are."""
    graphs = list(dict.fromkeys(launch.graph for launch in launches))
    if len(graphs) == RUNS:
        return [[launch for launch in launches if launch.graph == g] for g in graphs]
    if len(launches) < RUNS:
        return [launches] if launches else []
    ends, latest = [], 0.0
    for launch in launches:
        ends.append(launch.start - latest)
        latest = max(latest, launch.end)
    cuts = sorted(sorted(range(1, len(launches)), key=lambda i: -ends[i])[: RUNS - 1])
    return [launches[a:b] for a, b in zip([0, *cuts], [*cuts, len(launches)], strict=True)]


def _launch(event: dict[str, Any]) -> Launch:
    args, start = event.get("args", {}), float(event["ts"])
    grid = "x".join(str(n) for n in args.get("grid", ()))
    return Launch(
        short(event["name"]),
        grid,
        start,
        start + float(event.get("dur", 0)),
        int(args.get("correlation", 0)),
    )


def _start(launch: Launch) -> float:
    return launch.start


def short(name: str) -> str:
    """A kernel's name without return type, namespaces and arguments."""
    name = re.sub(r"^void |\(anonymous namespace\)::|at::native::|cutlass::|<unnamed>::", "", name)
    head = re.split(r"[<(]", name, maxsplit=1)[0]
    return (name if head in ("Kernel", "Kernel2", "device_kernel") else head)[:40]


def kernels(runs: list[list[Launch]]) -> dict[str, Any]:
    """The middle one of the runs: kernels by what they add to its time, by name and grid and by half of the step."""
    if not runs:
        return {}
    launches = sorted(runs, key=lambda run: run[-1].end - run[0].start)[len(runs) // 2]
    rows: defaultdict[tuple[int, str, str], list[float]] = defaultdict(lambda: [0, 0.0, 0.0, 0.0])
    latest, half, halves = launches[0].start, 1, [0.0, 0.0]
    for launch in launches:
        if any(mark in launch.name for mark in FIRST_OF_THE_SECOND_HALF):
            half = 2
        own, gap = max(0.0, launch.end - max(latest, launch.start)), max(0.0, launch.start - latest)
        row = rows[half, launch.name, launch.grid]
        for i, value in enumerate((1, own, gap, launch.end - launch.start)):
            row[i] += value
        halves[half - 1] += own + gap
        latest = max(latest, launch.end)
    found = sorted(rows.items(), key=lambda item: -item[1][1] - item[1][2])
    return {
        "us": round(latest - launches[0].start, 1),
        "launches": len(launches),
        "own_us": round(sum(row[1] for row in rows.values()), 1),
        "gap_us": round(sum(row[2] for row in rows.values()), 1),
        "halves_us": [round(h, 1) for h in halves],
        "all": [
            {
                "half": h, "name": name, "grid": grid, "count": int(row[0]), "own_us": round(row[1], 1),
                "gap_us": round(row[2], 1), "each_us": round(row[3] / row[0], 2),
            }
            for (h, name, grid), row in found
        ],
    }  # fmt: skip


# -- where a second goes --


class Span(NamedTuple):
    """A replay of a graph, between two events."""

    runner: str
    key: tuple[int, ...]
    before: torch.cuda.Event
    after: torch.cuda.Event


class TimedGraph:
    """Stands for a captured graph in a runner's table, and notes when its replays begin and end."""

    def __init__(
        self, graph: torch.cuda.CUDAGraph, runner: str, key: tuple[int, ...], spans: list[Span]
    ) -> None:
        self.graph, self.runner, self.key, self.spans = graph, runner, key, spans

    def replay(self) -> None:
        a, b = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        a.record()
        self.graph.replay()
        b.record()
        self.spans.append(Span(self.runner, self.key, a, b))


class Listener:
    """Where the engine puts the audio of one request (an EventSink). Its reader is never behind."""

    keeps_arrays = False
    ended = False

    def __init__(self, streams: Streams) -> None:
        self.streams = streams

    def put(self, event: StreamEvent) -> None:
        if isinstance(event, Chunk):
            self.streams.samples += len(event.samples)
        if not isinstance(event, Chunk) or event.finish is not None:
            self.ended = True
            self.streams.failed += not isinstance(event, Chunk)
            self.streams.done.put(self)


class Streams:
    """So many requests at a time, without threads. The first ones have different lengths, so that later ones begin and
    end at different times, as those of independent clients."""

    def __init__(self, bench: Bench, count: int, audio: float) -> None:
        self.tts, self.count = bench.tts, count
        spec = self.tts.spec
        frames = max(2, round(audio * spec.sample_rate / spec.hop))
        given: dict[str, Any] = {"ignore_eos": True, "min_frames": frames}
        self.options = {k: v for k, v in given.items() if k in spec.options}
        later = max(320, 2 * count)  # requests
        lengths = [1 + (i + 1) * frames // count for i in range(count)] + [frames] * later
        self.prompts = [self.prompt(i, n) for i, n in enumerate(lengths)]
        self.begun = self.open = self.samples = self.failed = 0
        self.done: queue.SimpleQueue[Listener] = queue.SimpleQueue()

    def prompt(self, number: int, frames: int) -> Any:
        options = {**self.options, "max_frames": frames}
        if "min_frames" in options:
            options["min_frames"] = frames
        if self.tts.spec.voices:
            options["voice"] = self.tts.spec.voices[0]
        return self.tts.prompt(self.tts.request(f"Number {number}. {TEXT}", seed=number, **options))

    def begin(self) -> None:
        number, self.begun, self.open = self.begun, self.begun + 1, self.open + 1
        prompt = self.prompts[min(number, len(self.prompts) - 1)]
        self.tts.engine.queue(prompt, number, True, Place.ADMITTED, Listener(self))

    def run(self, seconds: float) -> None:
        """Keep them going for so long."""
        end = time.monotonic() + seconds
        while self.begun < self.count:
            self.begin()
        while (left := end - time.monotonic()) > 0 and self.ended(left):
            self.begin()

    def finish(self) -> None:
        """Let the open ones end."""
        while self.open and self.ended(10):
            pass

    def ended(self, seconds: float) -> bool:
        """Whether a request has ended within so many seconds."""
        try:
            self.done.get(timeout=seconds)
        except queue.Empty:
            return False
        self.open -= 1
        return True


def second(bench: Bench, count: int, seconds: float, audio: float) -> dict[str, Any]:
    """Run `count` streams. Returns replays by graph, and the time in which the streams of the device are busy."""
    engine = bench.tts.engine
    streams, spans = Streams(bench, count, audio), list[Span]()
    originals = {runner.name: dict(runner.graphs) for runner in engine.side.graph_runners}
    streams.run(min(WARM, seconds / 2))
    for runner in engine.side.graph_runners:
        for key, graph in originals[runner.name].items():
            timed: Any = TimedGraph(graph, runner.name, key, spans)
            runner.graphs[key] = timed
    cuda = bench.device == "cuda"
    marks = [torch.cuda.Event(enable_timing=True) for _ in range(2)] if cuda else []
    eager, begun, samples, started = (
        engine.side.eager_calls,
        streams.begun,
        streams.samples,
        time.monotonic(),
    )
    for mark in marks[:1]:
        mark.record()
    streams.run(seconds)
    for mark in marks[1:]:
        mark.record()
    wall, heard, requests = (
        time.monotonic() - started,
        streams.samples - samples,
        streams.begun - begun,
    )
    eager = engine.side.eager_calls - eager
    for runner in engine.side.graph_runners:
        runner.graphs.update(originals[runner.name])
    streams.finish()
    found: dict[str, Any] = {
        "streams": count,
        "audio_s_per_s": round(heard / bench.tts.sample_rate / wall, 1),
        "requests_per_s": round(requests / wall, 1),
        "failed": streams.failed,
        "still_open": streams.open,
        "eager_calls": eager,
    }
    if cuda:
        torch.cuda.synchronize()
        window = marks[0].elapsed_time(marks[1])
        times = [
            (s.runner, s.key, marks[0].elapsed_time(s.before), marks[0].elapsed_time(s.after))
            for s in spans
        ]
        found |= account([t for t in times if t[2] >= 0 and t[3] <= window], window)
    return found


def account(
    spans: list[tuple[str, tuple[int, ...], float, float]], window: float
) -> dict[str, Any]:
    """Milliseconds of each second, from (runner, key, begin, end) within a window of so many milliseconds."""
    model = [(a, b) for name, _, a, b in spans if "codec" not in name]
    codec = [(a, b) for name, _, a, b in spans if "codec" in name]
    either = length(model + codec)
    busy = {"language model": length(model), "codec": length(codec), "either": either}
    busy["both"] = busy["language model"] + busy["codec"] - either
    by: defaultdict[tuple[str, tuple[int, ...]], list[float]] = defaultdict(list)
    for name, key, a, b in spans:
        by[name, key].append(b - a)
    return {
        "window_ms": round(window),
        "busy_ms_per_s": {name: round(1e3 * ms / window) for name, ms in busy.items()},
        "graphs": [
            {
                "runner": name, "key": list(key), "calls_per_s": round(1e3 * len(ms) / window, 1),
                "span_ms": round(sum(ms) / len(ms), 3), "span_ms_per_s": round(1e3 * sum(ms) / window, 1),
            }
            for (name, key), ms in sorted(by.items(), key=lambda item: -sum(item[1]))
        ],
    }  # fmt: skip


def length(spans: list[tuple[float, float]]) -> float:
    """Length of the union of intervals."""
    total, latest = 0.0, float("-inf")
    for a, b in sorted(spans):
        total += max(0.0, b - max(a, latest))
        latest = max(latest, b)
    return total


def alone(bench: Bench, found: dict[str, Any]) -> None:
    """Add to the graphs of a second what they take when nothing runs beside them, and to each runner its kernels."""
    engine, sums = bench.tts.engine, defaultdict[str, float](float)
    tops: dict[str, Any] = {}
    for graph in found.get("graphs", []):
        runner = next(r for r in engine.side.graph_runners if r.name == graph["runner"])
        key, stream = tuple(graph["key"]), runner.stream
        graph["alone_ms"] = graph["span_ms"]
        if graph["span_ms_per_s"] >= 2:  # others are of no account
            with torch.inference_mode(), stream.active():
                replay = runner.graphs[key].replay
                if runner is bench.runner.decode_graphs:
                    bench.occupy(key[0])
                elif runner is engine.codec.graphs:
                    replay = padding_call(engine.codec, CallShape(*key))
                graph["alone_ms"] = round(milliseconds(replay), 3)
                if runner.name not in tops:  # the graph with the most time of its runner
                    tops[runner.name] = {"key": list(key), **kernels(traced(replay))}
        sums[runner.name] += graph["calls_per_s"] * graph["alone_ms"]
    found["alone_ms_per_s"] = {name: round(ms) for name, ms in sums.items()}
    found["alone_ms_per_s"]["all"] = round(sum(sums.values()))
    found["tops"] = tops


def padding_call(codec: CodecRunner, shape: CallShape) -> Callable[[], None]:
    """A codec call of padding rows. Each run begins with their first state: after many, their
    positions would be behind the end of RoPE's table, which fails the device."""

    def run() -> None:
        codec.fill_padding(shape)
        codec.graphs(*shape)

    return run


# -- parts --


def step_kernels(bench: Bench, rows: int) -> dict[str, Any]:
    """Milliseconds of a step of so many rows, and its kernels."""
    if bench.device != "cuda":
        return {}
    ms, key = bench.step_ms(rows), bench.occupy(rows)
    with torch.inference_mode(), bench.runner.stream.active():
        return {"ms": ms, **kernels(traced(lambda: bench.runner.decode_graphs(*key)))}


def opened(
    report: Report, out: Path, model: str, slots: int, rows: tuple[int, ...], deterministic: bool
) -> Bench | None:
    bench = Bench(model, out, report.device.type, slots, "auto", deterministic)
    bench.batches = tuple(r for r in rows if r <= slots) if report.device.type == "cuda" else None
    return (
        bench
        if report.stage("start_deterministic" if deterministic else "start", bench.start)
        else None
    )


def seconds_of(report: Report, bench: Bench, counts: tuple[int, ...], dry: bool) -> None:
    for count in counts:
        name, seconds = f"second_{count}", 0.3 if dry else MEASURED
        report.stage(
            name,
            lambda c=count, s=seconds: second(bench, c, s, 0.5 if dry else SECONDS_OF_AUDIO),
            9,
        )  # type: ignore[misc]
    # last: a graph with inputs of another call may fail the device
    for name in (f"second_{count}" for count in counts):
        if name in report.found:
            report.stage(
                name.replace("second", "alone"), lambda n=name: alone(bench, report.found[n]), 3
            )  # type: ignore[misc]


def engine_part(report: Report, out: Path, dry: bool) -> None:
    model, slots, counts = (
        ("dummy:toy", 4, (4,)) if dry else ("dummy:qwen3-tts-1.7b-customvoice", 256, (64, 256))
    )
    report.stage("machine", lambda: {} if dry else machine_speed(report.device))
    if (bench := opened(report, out, model, slots, (1, 64, 256), False)) is None:
        return
    report.stage("step_1", lambda: step_kernels(bench, 1))
    report.stage("step_64", lambda: step_kernels(bench, min(64, slots)))
    report.stage("step_256_ms", lambda: 0 if dry else bench.step_ms(256))
    seconds_of(report, bench, counts, dry)
    bench.tts.close()


def deterministic_part(report: Report, out: Path, dry: bool) -> None:
    model, slots = ("dummy:toy", 4) if dry else ("dummy:qwen3-tts-1.7b-customvoice", 256)
    rows = tuple(r for r in DETERMINISTIC_ROWS if r <= slots)
    if (usual := opened(report, out, model, slots, rows, False)) is not None:
        report.stage("default_ms", lambda: _steps_of(usual, rows))
        usual.tts.close()
    if (bench := opened(report, out, model, slots, rows, not dry)) is None:
        return
    report.stage("deterministic_ms", lambda: _steps_of(bench, rows))
    report.stage("step_1", lambda: step_kernels(bench, 1))
    report.stage("step_64", lambda: step_kernels(bench, min(64, slots)))
    if report.left > 12:
        streams, seconds, audio = (slots, 0.3, 0.5) if dry else (64, 2.0, SECONDS_OF_AUDIO)
        report.stage("second_64", lambda: second(bench, streams, seconds, audio))
    bench.tts.close()


def _steps_of(bench: Bench, rows: tuple[int, ...]) -> dict[int, float]:
    return {n: bench.step_ms(n) if bench.device == "cuda" else 0.0 for n in rows}


def voxcpm2_part(report: Report, out: Path, dry: bool) -> None:
    _served(report, out, dry, "dummy:voxcpm2", (64,))


def pocket_part(report: Report, out: Path, dry: bool) -> None:
    _served(report, out, dry, "dummy:pocket-tts", (64, 128, 256))


def _served(report: Report, out: Path, dry: bool, model: str, counts: tuple[int, ...]) -> None:
    """Kernels of steps of so many rows, and where a second of so many streams goes."""
    if dry:
        model = "dummy:toy"
        counts = (4,)
    if (bench := opened(report, out, model, max(counts), (1, *counts), False)) is None:
        return
    for rows in counts:
        report.stage(f"step_{rows}", lambda rows=rows: step_kernels(bench, rows))  # type: ignore[misc]
    seconds_of(report, bench, counts, dry)
    bench.tts.close()


TINY = StackConfig(256, 512, 1, 2, 1, 128, 1e-6)


def products_part(report: Report, out: Path, dry: bool) -> None:
    """64 rows of all stacks first, then 256, 128 and 32."""
    from benchmarks.kernels import eight_bits as e

    gc.disable()
    report.stage("machine", lambda: {} if dry else machine_speed(report.device))
    if report.device.type == "cuda":
        with torch.inference_mode():
            report.stage("quantisation_errors", lambda: e.check_quantisation(report.device))
    stacks = {"talker": TINY} if dry else e.STACKS
    report.found |= {"products": [], "blocks": [], "late": []}
    done: dict[tuple[Any, int], Any] = {}
    passes = sorted(
        {(p.stack, p.factor) for model in e.MODELS.values() for p in model},
        key=lambda p: (p[1] > 11, p),
    )
    with torch.inference_mode():
        for rows in (4,) if dry else (64, 256, 128, 32):
            for name, factor in [p for p in passes if p[0] in stacks]:
                if report.left < 3:
                    report.found["late"].append(f"{name} {factor} x {rows}")
                    continue
                try:
                    _stack(report, e, name, stacks[name], rows * factor, done)
                except Exception:
                    report.found["errors"][f"{name} {rows * factor}"] = traceback.format_exc()[
                        -1500:
                    ]
                print(f"products {name} {rows * factor}: {report.left:.0f} s left", flush=True)
                report.save()


def _stack(
    report: Report,
    e: Any,
    name: str,
    config: StackConfig,
    rows: int,
    done: dict[tuple[Any, int], Any],
) -> None:
    """Every product of a stack at so many rows, then its blocks with the best ways."""
    chain = e.Chain(name, report.device, config)
    fused, best = chain.fuses(rows), {d: dict[str, str]() for d in LARGEST}
    for shape in e.shapes(config):
        if (shape, rows) not in done:
            measure = e.Measure(e.Weights(shape, report.device), rows, fused)
            done[shape, rows] = {"stack": name, **measure.run()}
            report.found["products"].append(done[shape, rows])
        us = done[shape, rows]["us"]
        for dtype, prefixes in ((e.FLOAT8, ("fp8 rows", "fp8 tile")), (e.INT8, ("int8 tile",))):
            ways = [way for way in us if way.startswith(prefixes)]
            if ways:
                best[dtype][shape.role] = min(ways, key=us.__getitem__)
    chosen = {str(d): w for d, w in best.items()}
    report.found["blocks"].append({"stack": name, **chain.measure(rows, best), "ways": chosen})
    del chain
    gc.collect()
    if report.device.type == "cuda":
        torch.cuda.empty_cache()  # memory of graphs that are gone, which no other graph can use


def workspace_part(report: Report, out: Path, dry: bool) -> None:
    """torch's products of 64 rows, in a process whose cuBLASLt has no workspace."""
    from benchmarks.kernels import eight_bits as e

    gc.disable()
    report.found["products"] = []
    with torch.inference_mode():
        for name in () if dry else ("talker", "depth", "fish"):
            for shape in e.shapes(e.STACKS[name]):
                if report.left > 2:
                    measure = e.Measure(e.Weights(shape, report.device), 64, False)
                    report.found["products"].append({"stack": name, **measure.library()})
                    report.save()


RUN = {
    "engine": engine_part, "products": products_part, "deterministic": deterministic_part, "voxcpm2": voxcpm2_part,
    "pocket": pocket_part, "workspace": workspace_part,
}  # fmt: skip


# -- the table --


def table(out: Path) -> str:
    found = {
        part: json.loads(f.read_text())
        for part in PARTS
        if (f := out / f"many_rows_{part}.json").exists()
    }
    lines: list[str] = []
    for part, f in found.items():
        wrong = [
            *f["errors"],
            *(f"late: {x}" for x in f.get("late", [])),
            *(f"skipped: {x}" for x in f["skipped"]),
        ]
        lines.append(
            f"{part:13} {f.get('card', 'CPU')} {f.get('machine', '')}  not done: {', '.join(wrong) or 'nothing'}"
        )
    for name, write in (
        ("D", _one_row),
        ("C", _determinism),
        ("B", _seconds),
        ("A", _products),
        ("A", _steps),
    ):
        try:
            lines += write(found)
        except Exception:
            lines.append(f"table {name} failed: {traceback.format_exc()[-400:]}")
    return "\n".join(lines)


def _kernels(title: str, f: dict[str, Any], top: int) -> list[str]:
    if not f.get("us"):
        return []
    ms = f"step {f['ms']} ms, " if "ms" in f else ""
    lines = [
        f"{title}: {ms}traced {f['us'] / 1e3:.3f} ms, {f['launches']} launches, own {f['own_us'] / 1e3:.3f}, gaps "
        f"{f['gap_us'] / 1e3:.3f}, first and second half {f['halves_us'][0] / 1e3:.2f} {f['halves_us'][1] / 1e3:.2f}"
    ]
    lines += [
        f"  {k['half']} {k['name'][:30]:30} {k['grid']:>9} x{k['count']:<3} own {k['own_us']:7.1f} gap "
        f"{k['gap_us']:5.1f} each {k['each_us']:5.1f}"
        for k in f["all"][:top]
    ]
    return lines


def _one_row(found: dict[str, Any]) -> list[str]:
    return [
        "== D. one row, 1.7B (us)",
        *_kernels("default", found.get("engine", {}).get("step_1", {}), 15),
    ]


def _determinism(found: dict[str, Any]) -> list[str]:
    usual, fixed = found.get("engine", {}), found.get("deterministic", {})
    lines = ["== C. determinism, 1.7B (us)"]
    default, ours = (
        fixed.get("default_ms", {}),
        fixed.get("deterministic_ms", {}),
    )  # by rows, which JSON made text
    for rows, ms in default.items():
        if ms and rows in ours:
            lines.append(
                f"{rows} rows: default {ms} ms, deterministic {ours[rows]} ms, ratio {ours[rows] / ms:.2f}"
            )
    for name in ("step_1", "step_64"):
        a, b = usual.get(name, {}).get("ms"), fixed.get(name, {}).get("ms")
        lines.append(
            f"{name}: default {a} ms, deterministic {b} ms, ratio {round(b / a, 2) if a and b else '-'}"
        )
        if name == "step_64":
            lines += _kernels("default", usual.get(name, {}), TOP)
        lines += _kernels("deterministic", fixed.get(name, {}), TOP)
    if "second_64" in fixed:
        lines.append(f"deterministic, 64 streams: {fixed['second_64']['audio_s_per_s']} audio-s/s")
    return lines


def _seconds(found: dict[str, Any]) -> list[str]:
    lines = ["== B. where a second goes (ms of each second)"]
    for part in ("engine", "voxcpm2", "pocket"):
        for name, f in found.get(part, {}).items():
            if not name.startswith("second_") or "graphs" not in f:
                continue
            lines.append(
                f"{part} {f['streams']} streams: {f['audio_s_per_s']} audio-s/s, busy {f['busy_ms_per_s']}, "
                f"alone {f.get('alone_ms_per_s')}, failed {f['failed']}, eager {f['eager_calls']}"
            )
            lines += [
                f"  {g['runner']:8} {g['key']!s:13} {g['calls_per_s']:6.1f}/s span {g['span_ms']:7.3f} alone "
                f"{g.get('alone_ms', 0):7.3f} ms, {g['span_ms_per_s']:6.1f} ms of a second"
                for g in f["graphs"][:7]
            ]
            for runner, top in f.get("tops", {}).items() if f["streams"] == 64 else ():
                if (runner != "decode" or part != "engine") and runner != "frame 0":
                    lines += _kernels(f" {runner} {top['key']}", top, TOP_OF_GRAPH)
    return lines


def _products(found: dict[str, Any]) -> list[str]:
    lines = [
        "== A. products (us): bf16 library | bf16, int8 today | fp8 rows, tensor, tile, rows + quantise | int8 mm, tile"
    ]
    for p in found.get("products", {}).get("products", []):
        us = p["us"]
        if p["rows"] in (64, 256, 1408, 5632):
            tiles = [
                min((t for w, t in us.items() if w.startswith(x)), default=0.0)
                for x in ("fp8 tile", "int8 tile")
            ]
            cells = [
                us.get(w, 0.0)
                for w in ("bf16 library", "bf16 today", "int8 today", "fp8 rows", "fp8 tensor")
            ]
            cells += [
                tiles[0],
                us.get("quantise + fp8 rows", 0.0),
                us.get("int8 mm, int32 out", 0.0),
                tiles[1],
            ]
            wrong = f" failed: {', '.join(p['failed'])}" if p["failed"] else ""
            lines.append(
                f"{p['stack'][:6]:6} {p['role']:4} {p['rows']:5} "
                + " ".join(f"{c:6.1f}" for c in cells)
                + wrong
            )
    without = found.get("workspace", {}).get("products", [])
    lines += [f"no workspace: {p['stack'][:6]} {p['role']} {p['us']}" for p in without[:8]]
    return lines


def _steps(found: dict[str, Any]) -> list[str]:
    from benchmarks.kernels import eight_bits as e

    blocks = {(b["stack"], b["rows"]): b for b in found.get("products", {}).get("blocks", [])}
    measured = {
        ("qwen3-tts-1.7b", 64): found.get("engine", {}).get("step_64", {}).get("ms"),
        ("qwen3-tts-1.7b", 256): found.get("engine", {}).get("step_256_ms"),
        ("voxcpm2", 64): found.get("voxcpm2", {}).get("step_64", {}).get("ms"),
    }
    lines = ["== A. blocks without attention (us): " + ", ".join(WAYS)]
    for (stack, rows), b in sorted(blocks.items()):
        cells = " ".join(f"{b['us'].get(w, 0.0):7.1f}" for w in WAYS)
        failed = f" failed: {', '.join(b['failed'])}" if b["failed"] else ""
        lines.append(f"{stack:8} {rows:5} {cells} cosine {list(b['cosine'].values())[1:]}{failed}")
    lines.append("== A. blocks of a step (ms), and what a measured step would be")
    bandwidth = found.get("products", {}).get("machine", {}).get("TB/s")
    for model, passes in e.MODELS.items():
        if bandwidth:
            floors = [round(e.floor_ms(model, bandwidth, size), 3) for size in (2, 1)]
            lines.append(
                f"{model}: reading the weights of its blocks takes {floors[0]} ms in 16 bits, {floors[1]} in 8"
            )
        for rows in (32, 64, 128, 256):
            at = [
                (p.blocks, blocks.get((p.stack, p.factor * rows), {}).get("us", {})) for p in passes
            ]
            sums = {
                w: sum(n * us[w] for n, us in at) / 1e3
                for w in WAYS
                if all(w in us for _, us in at)
            }
            text = ", ".join(f"{w} {ms:.3f}" for w, ms in sums.items())
            if (step := measured.get((model, rows))) and "bf16 today" in sums:
                would = {
                    w: round(step - sums["bf16 today"] + ms, 2)
                    for w, ms in sums.items()
                    if w != "bf16 today"
                }
                text += f"; a step would be {would} instead of {step}"
            if sums:
                lines.append(f"{model} {rows} rows: {text}")
    return lines


# -- processes --


def drive(parts: list[str], out: Path, seconds: float, device: str, dry: bool) -> None:
    """Every part in a process of its own, so that a crash or a hang costs only itself."""
    end = time.monotonic() + seconds - 3
    root = Path(__file__).resolve().parents[2]
    for i, part in enumerate(parts):
        left = end - time.monotonic()
        share = left if i + 1 == len(parts) else min(left, PARTS[part])
        if share < LEAST:
            print(f"== {part}: skipped, {left:.0f} s left", flush=True)
            continue
        command = [
            sys.executable,
            str(Path(__file__).resolve()),
            "--one",
            part,
            "--out",
            str(out),
            "--device",
            device,
        ]
        command += ["--seconds", f"{share - 9:.0f}", *["--dry"] * dry]
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(root), os.environ.get("PYTHONPATH", "")]),
        }
        environment |= {"CUBLASLT_WORKSPACE_SIZE": "0"} if part == "workspace" else {}
        started = time.monotonic()
        with (out / f"many_rows_{part}.log").open("w") as log:
            child = subprocess.Popen(command, cwd=root, stdout=log, stderr=log, env=environment)
            try:
                code: int | str = child.wait(share)
            except subprocess.TimeoutExpired:
                child.kill()
                code = "out of time"
        print(
            f"== {part}: {time.monotonic() - started:.0f} of {share:.0f} s, ended with {code}",
            flush=True,
        )
        if code != 0:
            print((out / f"many_rows_{part}.log").read_text()[-600:], flush=True)
    text = table(out)
    (out / "many_rows.txt").write_text(text)
    print(text, flush=True)


def compile_only() -> None:
    """Compile the kernels of 8 bits for a Hopper GPU."""
    from benchmarks.kernels import eight_bits as e
    from tests.helpers.compiled import HOPPER, compile_launch, floats, launches, meta

    x, norm = meta(64, 2048, dtype=torch.bfloat16), meta(2048, dtype=torch.bfloat16)
    for dtype in LARGEST:
        q = e.QuantizedRows(meta(64, 2048, dtype=dtype), floats(64, 1))
        cases: list[tuple[str, Callable[[], object]]] = [
            ("plain", lambda d=dtype: e.quantize_rows(x, d)),  # type: ignore[misc]
            ("norm", lambda d=dtype: e.quantize_rows(x, d, (norm, 1e-6, True))),  # type: ignore[misc]
        ]
        for t in sorted({t for rows in (64, 256, 512) for t in e.tiles(rows)}):
            weight = meta(4096, 2048, dtype=dtype), floats(4096, 1)
            cases.append(
                (f"tile {tuple(t)}", lambda q=q, w=weight, t=t: e.product(q, *w, x.dtype, config=t))
            )  # type: ignore[misc]
        for name, call in cases:
            compiled = compile_launch(launches(call)[0], HOPPER)
            print(
                f"{dtype} {name}: {compiled.metadata.shared} bytes, wgmma {'wgmma' in compiled.asm['ptx']}",
                flush=True,
            )


def main() -> None:
    p = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    p.add_argument("--out", type=Path, default=Path("."))
    p.add_argument("--seconds", type=float, default=225.0)
    p.add_argument("--parts", default=",".join(PARTS))
    p.add_argument("--one", choices=list(PARTS), help="one part, in this process")
    p.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    p.add_argument("--dry", action="store_true", help="tiny shapes and the toy")
    p.add_argument("--compile", action="store_true")
    a = p.parse_args()
    a.out.mkdir(parents=True, exist_ok=True)
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    if a.compile:
        compile_only()
    elif a.one:
        report = Report(a.one, a.out, a.seconds, a.device)
        report.save()
        RUN[a.one](report, a.out, a.dry)
        report.save()
    else:
        drive(a.parts.split(","), a.out, a.seconds, a.device, a.dry)


if __name__ == "__main__":
    main()
