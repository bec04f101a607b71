"""Measure models over HTTP: `stentor serve` as a process, `stentor bench serve` as its load, a short table last.

Run: python benchmarks/server/serve.py [--seconds 330] [--waves 3] [--out DIR] [MODEL ...]
     python benchmarks/server/serve.py --device cpu --audio 0.5 --concurrency 1,2 dummy:toy      a dry run
Needs: a GPU, and the packages of `stentor[server]` and `stentor[bench]`.

Per model it measures the time from start to ready, and then a closed loop at 1, 16 and 64 streams of raw PCM with
texts of medium length. Every request makes 12 s of audio whatever the model says (ignore_eos and max_new_tokens).
It also measures the processor time of the server's threads.
A model that does not start or does not answer in time costs only its own figures.

Files: serve.json (the summary), serve_full.json.gz (all results of the benchmark tool), serve_requests.tar.gz (its
records of single requests), serve.log (the log of the servers).
"""

from __future__ import annotations

import argparse
import contextlib
import gzip
import json
import math
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import tarfile
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
MODELS = (
    "dummy:qwen3-tts-1.7b-customvoice",
    "dummy:voxcpm2",
    "dummy:fish-s2-pro",
    "dummy:qwen3-tts-0.6b-customvoice",
)
HOPS = {
    "qwen3": 0.08, "voxcpm2": 0.16, "fish": 2048 / 44100, "cosyvoice3": 0.04, "pocket": 0.08, "dots": 0.16, "toy": 0.01,
    "phonon": 0.08, "vibevoice": 3200 / 24000,
}  # fmt: skip
"""Seconds per frame."""
WITHOUT_STEPS = "kokoro"
"""A family whose lengths follow from the text: nothing forces them."""
CONCURRENCY = (1, 16, 64)
START = 100.0  # seconds to be ready
LEVEL = 45.0  # seconds for one load
TICK = os.sysconf("SC_CLK_TCK")


def environment(tree: Path = ROOT) -> dict[str, str]:
    path = os.pathsep.join([str(tree), os.environ.get("PYTHONPATH", "")])
    return {**os.environ, "PYTHONPATH": path, "PYTHONUNBUFFERED": "1"}


class Server:
    """A server process of one model or several.

    flags: further ones of `stentor serve`. tree: whose package it runs. names: of the models in requests. port: any
    free one by default. variables: of its environment.
    """

    def __init__(
        self,
        models: Sequence[str],
        device: str,
        slots: int,
        log: Path,
        flags: Sequence[str] = (),
        tree: Path = ROOT,
        names: Sequence[str] = (),
        port: int | None = None,
        variables: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        self.port = port or free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.log = log
        waiting = str(4 * slots)
        command = [
            *(sys.executable, "-m", "stentor", "serve", *models),
            *(word for name in names for word in ("--served-model-name", name)),
            *("--port", str(self.port), "--device", device, "--max-num-seqs", str(slots)),
            *("--ignore-unknown-fields", "--uvicorn-log-level", "info"),
            *("--max-active-requests", waiting, "--max-queued-requests", waiting, *flags),
            # not where this user's own voices are
            *("--voices-dir", str(log.with_suffix(".voices"))),
        ]
        self.began = time.monotonic()
        with log.open("w") as sink:
            self.process = subprocess.Popen(
                command,
                cwd=tree,
                env={**environment(tree), **variables},
                stdout=sink,
                stderr=sink,
            )

    def ready(self, limit: float) -> float | None:
        """Seconds from start to ready, None if it never was."""
        while time.monotonic() - self.began < limit and self.process.poll() is None:
            if self.get("/ready") is not None:
                return time.monotonic() - self.began
            time.sleep(0.1)
        return None

    def get(self, path: str) -> str | None:
        """A page, None if there is none now."""
        try:
            with urllib.request.urlopen(self.url + path, timeout=5) as answer:
                return str(answer.read().decode())
        except OSError:
            return None

    def threads(self) -> dict[int, float]:
        """CPU seconds of each thread so far."""
        out = {}
        for task in Path(f"/proc/{self.process.pid}/task").glob("*"):
            with contextlib.suppress(OSError, ValueError, IndexError):
                fields = (task / "stat").read_text().rpartition(")")[2].split()
                out[int(task.name)] = (int(fields[11]) + int(fields[12])) / TICK
        return out

    def stop(self) -> None:
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(8)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


def free_port() -> int:
    """A port of this machine at which nobody listens."""
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])


@contextlib.contextmanager
def serving(
    model: str, device: str, slots: int, log: Path, flags: Sequence[str] = ()
) -> Iterator[Server]:
    server = Server([model], device, slots, log, flags)
    try:
        yield server
    finally:
        server.stop()


def gpu_memory() -> float | None:
    """GiB in use on the GPU, the first of CUDA_VISIBLE_DEVICES."""
    gpu = os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0]
    try:
        ask = [
            "nvidia-smi",
            f"--id={gpu}",
            "--query-gpu=memory.used",
            "--format=csv,noheader,nounits",
        ]
        done = subprocess.run(ask, capture_output=True, text=True, timeout=10, check=True)
        return round(float(done.stdout.split()[0]) / 1024, 1)
    except (OSError, subprocess.SubprocessError, ValueError, IndexError):
        return None


def hop(model: str) -> float:
    return next(seconds for name, seconds in HOPS.items() if name in model)


def body(model: str, seconds: float) -> dict[str, Any]:
    """Forced length: exactly so many frames, and nothing cut because it runs on."""
    if WITHOUT_STEPS in model:
        return {"guard": False}
    frames = max(1, round(seconds / hop(model)))
    forced: dict[str, Any] = {"max_new_tokens": frames, "ignore_eos": True, "guard": False}
    if "toy" in model:
        forced["min_frames"] = frames
    return forced


def load_arguments(p: argparse.ArgumentParser) -> None:
    """Arguments of what `load` sends."""
    p.add_argument("--audio", type=float, default=12.0, help="seconds of audio per request")
    p.add_argument(
        "--waves",
        type=int,
        default=3,
        help="requests per stream, of 5 at least (default %(default)s)",
    )


def bench_command(
    server: Server, folder: Path, name: str, flags: str, extra: dict[str, Any]
) -> list[str]:
    """`stentor bench serve` against a server. Its result is `name` in `folder`. extra: fields of
    each request's body."""
    return [
        *(sys.executable, "-m", "stentor", "bench", "serve", "--base-url", server.url),
        *("--response-format", "pcm", "--extra-body", json.dumps(extra)),
        *("--save-result", "--result-dir", str(folder), "--result-filename", name),
        *("--disable-tqdm", *flags.split()),
    ]


def load(
    server: Server, model: str, c: int, a: argparse.Namespace, limit: float, quiet: bool = False
) -> dict[str, Any]:
    """Run one closed loop. Returns the tool's result and the processor time of the server's threads.

    a: what `load_arguments` adds, and a folder `work`.
    """
    name = f"serve_{slug(model)}_c{c}"
    flags = f"--max-concurrency {c} --num-prompts {max(5, a.waves * c)} --num-warmups 1"
    flags += " --dataset-name medium --request-seed 1"
    command = bench_command(server, a.work, name, flags, body(model, a.audio))
    before, began = server.threads(), time.monotonic()
    try:
        done = subprocess.run(
            command,
            cwd=ROOT,
            env=environment(),
            capture_output=True,
            text=True,
            timeout=limit,
            check=False,
        )
    except subprocess.TimeoutExpired as e:
        shown = e.stdout.decode()[-500:] if isinstance(e.stdout, bytes) else ""
        return {"error": f"not done in {limit:.0f} s {shown}"}
    wall = time.monotonic() - began
    took = {t: s - before.get(t, 0.0) for t, s in server.threads().items()}
    if not quiet:
        print(
            "\n".join(x for x in done.stdout.splitlines() if x.strip())[-2600:],
            done.stderr[-600:],
            flush=True,
        )
    file = a.work / f"{name}.json"
    if done.returncode or not file.exists():
        return {"error": f"exit code {done.returncode}: {done.stderr[-500:]}"}
    found: dict[str, Any] = json.loads(file.read_text())
    others = sorted((s for t, s in took.items() if t != server.process.pid), reverse=True)
    found["server_threads"] = {
        "load_seconds": round(found["duration"], 2),
        "wall_seconds": round(wall, 2),
        "event_loop": round(took.get(server.process.pid, 0.0), 2),
        "others": [round(s, 2) for s in others[:4]],
    }
    return found


def slug(model: str) -> str:
    return re.sub("[^a-z0-9]+", "_", model.removeprefix("dummy:"))


def measure(model: str, a: argparse.Namespace, end: float) -> dict[str, Any]:
    found: dict[str, Any] = {"model": model, "audio_seconds": a.audio}
    log = a.work / f"server_{slug(model)}.log"
    with serving(model, a.device, a.max_num_seqs, log, a.flags) as server:
        found["ready_seconds"] = server.ready(min(START, end - time.monotonic()))
        if found["ready_seconds"] is None:
            found["error"] = "never ready"
            print(log.read_text()[-3000:], flush=True)
            return found
        found["gpu_gib"] = gpu_memory()
        for c in a.concurrency:
            limit = min(LEVEL, end - time.monotonic())
            if limit < 5:
                break
            found[f"c{c}"] = load(server, model, c, a, limit)
        found["gpu_gib_after"] = gpu_memory()
        found["metrics"] = [
            x for x in (server.get("/metrics") or "").splitlines() if "engine_" in x and x[0] != "#"
        ]
    said = log.read_text().splitlines()
    found["log"] = [x for x in said if "captured" in x or "slots" in x or "WARN" in x][:20]
    return found


KEPT = (
    "date", "duration", "scheduled", "completed", "failed", "request_throughput", "audio_throughput",
    "real_time_maintained", "underrun_requests", "stalls", "max_stall_max_ms", "median_e2el_ms", "p99_e2el_ms",
    "median_audio_ttfp_ms", "p95_audio_ttfp_ms", "p99_audio_ttfp_ms", "median_audible_ttfa_ms",
    "p99_audible_ttfa_ms", "median_audio_rtf", "p99_start_buffer_ms", "client_cpu", "p99_client_loop_delay_ms",
    "server_threads", "error",
)  # fmt: skip


def summary(results: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The figures that tables and documents use. The rest is in serve_full.json.gz."""
    rows = []
    for r in results:
        row = {k: v for k, v in r.items() if not isinstance(v, (dict, list))}
        loads = {k: v for k, v in r.items() if isinstance(v, dict)}
        gpus = [gpu for load in loads.values() for gpu in load.get("facts", {}).get("gpus", [])]
        row["gpu"] = f"{gpus[0]['name']}, driver {gpus[0]['driver']}" if gpus else None
        row |= {k: {name: v[name] for name in KEPT if name in v} for k, v in loads.items()}
        rows.append(row)
    return rows


def write(results: list[dict[str, Any]], out: Path) -> None:
    (out / "serve.json").write_text(json.dumps(summary(results), indent=1) + "\n")
    (out / "serve_full.json.gz").write_bytes(gzip.compress(json.dumps(results).encode(), mtime=0))


def pack(work: Path, out: Path) -> None:
    """Few files: what comes back from a lent machine is counted."""
    with tarfile.open(out / "serve_requests.tar.gz", "w:gz") as tar:
        for file in sorted(work.glob("*.jsonl")):
            tar.add(file, file.name)
    with (out / "serve.log").open("w") as log:
        for file in sorted(work.glob("*.log")):
            log.write(f"== {file.name}\n{file.read_text()[-200_000:]}\n")


def table(results: list[dict[str, Any]], concurrency: list[int]) -> str:
    columns = "ms/frame   ttfa p50/p99 ms  audio-s/s  stalled  failed  loop %  thread %"
    lines = [f"{'model':<31} ready s    GiB  c    {columns}"]
    for r in results:
        start = f"{r['model'].removeprefix('dummy:'):<31} {r['ready_seconds'] or 0:>6.1f} {r.get('gpu_gib') or 0:>6.1f}"
        if "error" in r:
            lines.append(f"{start}  {r['error']}")
        for c in concurrency:
            f = r.get(f"c{c}")
            if f is None:
                continue
            if "error" in f:
                lines.append(f"{start}  {c:<3} {f['error'][:80]}")
                continue
            per_frame = math.nan
            if WITHOUT_STEPS not in r["model"]:
                per_frame = f["median_e2el_ms"] / round(r["audio_seconds"] / hop(r["model"]))
            threads, wall = f["server_threads"], max(0.1, f["duration"])
            busy = f"{100 * threads['event_loop'] / wall:6.0f}  {100 * (threads['others'] or [0])[0] / wall:7.0f}"
            ttfa = f"{f['median_audio_ttfp_ms']:7.1f}/{f['p99_audio_ttfp_ms']:<7.1f}"
            lines.append(
                f"{start}  {c:<3} {per_frame:>8.2f}  {ttfa}  {f['audio_throughput']:>9.1f}"
                f"  {f['underrun_requests']:>7}  {f['failed']:>6}  {busy}"
            )
    return "\n".join(lines)


def main() -> None:
    p = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    p.add_argument("models", nargs="*", default=list(MODELS))
    p.add_argument("--out", type=Path, default=Path("."))
    p.add_argument("--seconds", type=float, default=330.0, help="for all of it")
    p.add_argument("--device", default="cuda")
    p.add_argument("--max-num-seqs", type=int, default=64)
    p.add_argument(
        "--flags", type=shlex.split, default=[], help="further flags of stentor serve, in one word"
    )
    p.add_argument(
        "--concurrency", type=lambda s: [int(x) for x in s.split(",")], default=list(CONCURRENCY)
    )
    load_arguments(p)
    a = p.parse_args()
    a.out.mkdir(parents=True, exist_ok=True)
    a.work = Path(tempfile.mkdtemp())
    end, results = time.monotonic() + a.seconds, []
    for i, model in enumerate(a.models):
        left = end - time.monotonic()
        if left < 15:
            print(f"no time left for {model}")
            break
        share = time.monotonic() + max(left / (len(a.models) - i), 20)
        print(f"== {model}", flush=True)
        results.append(measure(model, a, min(share, end)))
        write(results, a.out)
        pack(a.work, a.out)
    print(table(results, a.concurrency))


if __name__ == "__main__":
    main()
