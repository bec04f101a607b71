"""Many requests at once, watched: if nothing moves for some seconds, say where the host, the engine and the GPU stand.

Run: python benchmarks/gpu_hang.py [--seconds 150] [--out DIR] [MODEL ...]
     python benchmarks/gpu_hang.py --one MODEL --variant NAME --out DIR         one case, here

Each case runs in a process of its own. A case that stops is examined from within (threads, queues, tickets, streams)
and from outside (cuda-gdb's list of kernels on the device), and is then run again with one thing changed: everything on
one stream, the codec without graphs, the kernels off. What hangs as it is and runs with the change names the cause.
"""

from __future__ import annotations

import argparse
import contextlib
import faulthandler
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import torch
from gpu_step import Bench

MODELS = ("dummy:qwen3-tts-1.7b-customvoice", "dummy:fish-s2-pro")
STILL = 15.0  # seconds without progress that are a hang
START = 75.0  # seconds for building and capturing
VARIANTS = ("as_it_is", "one_stream", "codec_eager", "no_kernels")


class Watch:
    """A thread that looks whether the engine gets on, and describes it when it does not."""

    def __init__(self, bench: Bench, file: Path) -> None:
        self.bench, self.file = bench, file
        self.idle = True  # nothing is asked for
        self.state: dict[str, Any] = {}
        threading.Thread(target=self._run, daemon=True).start()

    def _marks(self) -> tuple[Any, ...]:
        stats = self.bench.tts.engine.stats
        return (stats.submitted, stats.finished, stats.failed, stats.steps, stats.prefills, stats.frames)

    def _run(self) -> None:
        seen, since = None, time.monotonic()
        while True:
            faulthandler.dump_traceback_later(STILL + 5, exit=False)  # needs no interpreter lock, as this thread does
            time.sleep(0.5)
            marks = self._marks()
            if marks != seen or self.idle:
                seen, since = marks, time.monotonic()
            elif time.monotonic() - since > STILL:
                self._describe()
                return

    def _describe(self) -> None:
        print("-- no progress; threads:", flush=True)
        faulthandler.dump_traceback(all_threads=True)
        engine, worker = self.bench.tts.engine, self.bench.worker
        s = engine.scheduler
        self.note(stats=vars(engine.stats), queued=len(s.queue), waiting=engine._waiting, preemptions=s.preemptions)
        self.note(free_slots=len(s.free_slots), free_pages=s.pages.available, pages=s.pages.count)
        self.note(phases=dict(Counter(q.phase.value for q in s.live)), stalled=engine._stalled)
        names = ("id", "slot", "launched", "made", "status", "in_flight", "audio_planned", "audio_done")
        self.note(live={n: [getattr(q, n) for q in s.live] for n in names})
        self.note(eager={x.name: x.eager_calls for x in worker._ladders})
        self.note(tickets=len(engine._tickets), audio=[[len(t.jobs), t.jobs[0].count] for t in engine._audio])
        self.note(ticket_ready=[t.done.ready() for t in engine._tickets])
        self.note(audio_ready=[t.done.ready() for t in engine._audio])
        for name, stream in (("lm", worker.lm), ("codec", worker.codec)):
            self.note(**{f"{name}_stream_idle": stream.cuda is None or stream.cuda.query()})
        self.note(described=True)

    def note(self, **facts: Any) -> None:
        """One fact at a time: the next question to the driver may not come back."""
        self.state.update(facts)
        print("   ", facts, flush=True)
        self.file.write_text(json.dumps({"hung": True, **self.state}, default=str))


def change(variant: str, bench: Bench) -> None:
    """Make the variant of what is about to run."""
    from stentor.engine import worker

    if variant == "one_stream":
        build = worker.Worker.__init__

        def together(self: worker.Worker, *a: Any, **k: Any) -> None:
            build(self, *a, **k)
            self.codec = self.codec_ladder.stream = self.lm

        worker.Worker.__init__ = together  # type: ignore[method-assign]
    elif variant == "codec_eager":
        worker.Worker._codec_keys = lambda self, slots: []  # type: ignore[method-assign]


def one(model: str, variant: str, out: Path, device: str, concurrency: int) -> None:
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    bench = Bench(model, out, device, concurrency)
    file = case_file(out, model, variant)
    change(variant, bench)
    bench.batches = None
    found: dict[str, Any] = {"start": bench.start()}
    watch = Watch(bench, file)
    for c in sorted({1, min(16, concurrency), concurrency}):
        watch.idle = False
        found[f"c{c}"] = bench.through_the_engine(c)
        watch.idle = True
        file.write_text(json.dumps({"hung": False, **found}))
        print(f"c{c}: {found[f'c{c}']}", flush=True)
    if torch.cuda.is_available():
        found["memory"] = bench.memory()
    file.write_text(json.dumps({"hung": False, "complete": True, **found}))
    os._exit(0)


def case_file(out: Path, model: str, variant: str) -> Path:
    return out / f"gpu_hang_{re.sub('[^a-z0-9]+', '_', model.removeprefix('dummy:'))}_{variant}.json"


def run_case(model: str, variant: str, a: argparse.Namespace, allowed: float) -> dict[str, Any]:
    """A case in its own process, at most `allowed` seconds; what it found."""
    root = Path(__file__).resolve().parents[1]
    file = case_file(a.out, model, variant)
    file.unlink(missing_ok=True)
    command = [sys.executable, str(Path(__file__).resolve()), "--one", model, "--variant", variant]
    command += ["--out", str(a.out), "--device", a.device, "--concurrency", str(a.concurrency)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(root), os.environ.get("PYTHONPATH", "")])}
    if variant == "no_kernels":
        environment["STENTOR_KERNELS_OFF"] = "all"
    log = a.out / "gpu_hang.log"
    with log.open("a") as sink:
        sink.write(f"== {model} {variant}\n")
        sink.flush()
        at = sink.tell()
        child = subprocess.Popen(command, stdout=sink, stderr=sink, cwd=root, env=environment)
        end = time.monotonic() + allowed
        while child.poll() is None and time.monotonic() < end:
            if "described" in read(file) or "Timeout (0:" in log.read_text()[at:]:  # the second: nothing interprets
                break
            time.sleep(0.25)
        if child.poll() is None:
            examine(child.pid, sink)
            child.kill()
            child.wait()
    print(log.read_text()[at:][-2500:], flush=True)
    return {"model": model, "variant": variant, "code": child.returncode, **read(file)}


def examine(pid: int, sink: Any) -> None:
    """What runs on the device, asked from outside."""
    sink.write("-- stopped from outside; threads:\n")
    sink.flush()
    os.kill(pid, signal.SIGUSR1)
    time.sleep(1)
    gdb = shutil.which("cuda-gdb")
    if gdb is None:
        sink.write("no cuda-gdb\n")
        return
    asks = [x for line in ("info cuda kernels", "info cuda devices", "info cuda blocks") for x in ("-ex", line)]
    quiet: dict[str, Any] = {"capture_output": True, "text": True, "timeout": 40}
    with contextlib.suppress(subprocess.TimeoutExpired):
        done = subprocess.run([gdb, "-p", str(pid), "-batch", *asks], check=False, **quiet)
        lines = [x for x in done.stdout.splitlines() if "Kernel" in x or "sm_" in x or x.startswith(("*", " ("))]
        sink.write("-- cuda-gdb:\n" + "\n".join(lines)[-3000:] + "\n" + done.stderr[-800:] + "\n")
    sink.flush()


def read(file: Path) -> dict[str, Any]:
    try:
        found: dict[str, Any] = json.loads(file.read_text())
    except (FileNotFoundError, json.JSONDecodeError):
        return {}
    return found


def line(found: dict[str, Any], concurrency: int) -> str:
    def last(c: int, key: str) -> Any:
        value = (found.get(f"c{c}") or {"rounds": [{}]})["rounds"][-1].get(key)
        return value[1] if isinstance(value, list) else value

    verdict = "HUNG" if found.get("hung") else "ran" if found.get("complete") else f"ended early, code {found['code']}"
    cells = [f"c{c} {last(c, 'audio_s_per_s')} a/s, ttfa {last(c, 'ttfa_ms')} ms" for c in (1, 16, concurrency)]
    return f"{found['model']:<36} {found['variant']:<12} {verdict:<8} {'; '.join(cells)}"


def main() -> None:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("models", nargs="*", default=list(MODELS))
    p.add_argument("--one")
    p.add_argument("--variant", choices=VARIANTS, default=VARIANTS[0])
    p.add_argument("--out", type=Path, default=Path("."))
    p.add_argument("--seconds", type=float, default=150.0)
    p.add_argument("--device", default="cuda")
    p.add_argument("--concurrency", type=int, default=64)
    a = p.parse_args()
    a.out.mkdir(parents=True, exist_ok=True)
    if a.one:
        one(a.one, a.variant, a.out, a.device, a.concurrency)
        return
    end, results = time.monotonic() + a.seconds, []
    for model in a.models:
        for variant in VARIANTS:
            left = end - time.monotonic()
            if left < 20:
                print(f"no time left for {model} {variant}")
                break
            results.append(run_case(model, variant, a, min(START + 60, left)))
            if not results[-1].get("hung") and variant == VARIANTS[0]:
                break
    print("\n".join(line(r, a.concurrency) for r in results))


if __name__ == "__main__":
    main()
