"""Measure models that share a GPU, all of them at once and each without the others, with several kinds of server in turns.

Run: python benchmarks/server/shared_card.py --arm "turns: --mps off" --arm "shared: --mps on" --out FILE [MODEL ...]
     python benchmarks/server/shared_card.py --device cpu --slots 4 --audio 0.5 --seconds 1 --concurrency 1,2 \
         --arm "one: --mps off" --arm "two: --mps off" --out FILE dummy:toy dummy:toy          a dry run
Needs: a GPU, and the packages of `stentor[server]` and `stentor[bench]`.

An arm is a name and the command line of its server as a shell has it: variables, then flags of `stentor serve`. An arm
`name@DIR` runs the package in DIR. The servers of all arms start together and stay, so that `--max-memory-gb` among
the flags must leave room for all. Then the same load goes to one after another. Idle servers do not disturb it.

A load is one closed loop of a client process for each model. Every request makes `--audio` seconds of audio. A figure is
of the `--seconds` of steady load that follow `--warmup`: audio that arrived in them, first audio of requests sent in
them, and of each of these requests the largest gap between two chunks. Each load is written to FILE when it ends.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent))
from serve import ROOT, Server, bench_command, body, environment, gpu_memory, slug

MODELS = ("dummy:qwen3-tts-0.6b-customvoice", "dummy:voxcpm2")
CLIENT_SECONDS = 30.0  # for a client beside its load: start, last answers, analysis
COLUMNS = ("audio-s/s", "ttfa p50", "ttfa p95", "gap p95", "failed")


@dataclass(frozen=True)
class Arm:
    """A kind of server. tree: whose package it runs. reverse: it loads the models last to first."""

    name: str
    variables: dict[str, str]
    flags: tuple[str, ...]
    tree: Path


def parse_arm(text: str) -> Arm:
    """Parse `name[@DIR]: [VARIABLE=VALUE ...] [FLAG ...]`."""
    head, _, line = text.partition(":")
    name, _, folder = head.strip().partition("@")
    words = shlex.split(line)
    variables = {}
    while words and "=" in words[0] and not words[0].startswith("-"):
        variable, _, value = words.pop(0).partition("=")
        variables[variable] = value
    return Arm(name, variables, tuple(words), Path(folder or ROOT).resolve())


@dataclass(frozen=True)
class Load:
    """A closed loop of each of some models, with so many streams each."""

    models: tuple[str, ...]
    streams: int

    @property
    def name(self) -> str:
        return f"{'+'.join(slug(model) for model in self.models)} {self.streams}"


def loads(models: Sequence[str], streams: Sequence[int], apart: bool) -> list[Load]:
    """All models at once, most streams first. apart: then each without the others."""
    groups = [tuple(names(models))]
    if apart:
        groups += [(name,) for name in names(models)]
    return [Load(group, count) for group in groups for count in sorted(streams, reverse=True)]


def names(models: Sequence[str]) -> list[str]:
    """Names in requests: of two equal models the second is `MODEL-2`."""
    seen: list[str] = []
    for model in models:
        count = list(models[: len(seen)]).count(model)
        seen.append(f"{model}-{count + 1}" if count else model)
    return seen


@contextlib.contextmanager
def serving(arms: Sequence[Arm], args: argparse.Namespace) -> Iterator[dict[str, Server]]:
    """Servers of all arms that became ready, by name."""
    servers = {
        arm.name: Server(
            args.models,
            args.device,
            args.slots,
            args.work / f"{arm.name}.log",
            arm.flags,
            arm.tree,
            names(args.models),
            variables=arm.variables,
        )
        for arm in arms
    }
    try:
        for name, server in list(servers.items()):
            seconds = server.ready(args.start)
            print(f"{name}: ready after {seconds} s", flush=True)
            if seconds is None:
                print(server.log.read_text()[-3000:], flush=True)
                servers.pop(name).stop()
        yield servers
    finally:
        for server in servers.values():
            server.stop()


def measure(server: Server, load: Load, args: argparse.Namespace) -> dict[str, Any]:
    """Figures of one load, by model."""
    with ThreadPoolExecutor(len(load.models)) as pool:
        results = pool.map(lambda model: client(server, model, load.streams, args), load.models)
        return dict(zip(load.models, results, strict=True))


def client(server: Server, model: str, streams: int, args: argparse.Namespace) -> dict[str, Any]:
    """Run one closed loop. Returns its figures, or `error`."""
    flags = f"--model {model} --max-concurrency {streams} --dataset-name medium --request-seed 1"
    flags += f" --warmup-seconds {args.warmup} --duration {args.seconds}"
    flags += " --num-warmups 0 --ready-check-timeout-sec 0"
    name = f"load_{slug(model)}"
    (args.work / f"{name}.requests.jsonl").unlink(missing_ok=True)
    limit = args.warmup + args.seconds + CLIENT_SECONDS
    try:
        done = subprocess.run(
            bench_command(server, args.work, name, flags, body(model, args.audio)),
            cwd=ROOT,
            env=environment(),
            capture_output=True,
            text=True,
            timeout=limit,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return {"error": f"not done in {limit:.0f} s"}
    if done.returncode:
        return {"error": f"exit code {done.returncode}: {done.stderr[-500:]}"}
    lines = (args.work / f"{name}.requests.jsonl").read_text().splitlines()
    return figures([json.loads(line) for line in lines], args.warmup, args.warmup + args.seconds)


def figures(rows: Sequence[dict[str, Any]], start: float, end: float) -> dict[str, Any]:
    """Figures of a client's requests between two moments, in seconds from its start."""
    audio = 0.0
    for row in rows:
        times = np.array(row["chunk_times_s"])
        samples = np.array(row["chunk_samples"])
        audio += samples[(times >= start) & (times < end)].sum() / max(1, row["sample_rate"])

    sent = [row for row in rows if row["in_window"] and row["failure"] is None]
    first = [row["audio_ttfp_ms"] for row in sent]
    gaps = [
        1000 * np.diff(row["chunk_times_s"]).max() for row in sent if len(row["chunk_times_s"]) > 1
    ]
    failures = [row["failure_message"] for row in rows if row["failure"] is not None]
    return {
        "audio-s/s": round(audio / (end - start), 1),
        "ttfa p50": percentile(first, 50),
        "ttfa p95": percentile(first, 95),
        "gap p95": percentile(gaps, 95),
        "requests": len(sent),
        "failed": len(failures),
        "failures": failures[:3],
    }


def percentile(values: Sequence[float], percent: float) -> float | None:
    """A percentile in milliseconds. None without values."""
    if not values:
        return None
    return round(float(np.percentile(values, percent)), 1)


def table(results: Sequence[dict[str, Any]]) -> str:
    """A line for each load and arm with the sum over the models, and one for each model."""
    lines = [f"{'load':<60} {'arm':<12} " + " ".join(f"{c:>10}" for c in COLUMNS)]
    for result in sorted(results, key=lambda r: (r["load"], r["arm"])):
        models = result["models"]
        total = sum(m.get("audio-s/s", 0.0) for m in models.values())
        lines.append(f"{result['load']:<60} {result['arm']:<12} {total:>10.1f}")
        for model, row in models.items():
            shown = [str(row.get(column)) for column in COLUMNS]
            cells = " ".join(f"{cell:>10}" for cell in shown)
            lines.append(f"    {model:<69} {cells} {row.get('error', '')}")
    return "\n".join(lines)


def main() -> None:
    p = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    p.add_argument("models", nargs="*", default=list(MODELS))
    p.add_argument("--arm", type=parse_arm, action="append", required=True)
    p.add_argument(
        "--concurrency", type=lambda s: [int(x) for x in s.split(",")], default=[1, 16, 64]
    )
    p.add_argument("--apart", action="store_true", help="each model without the others as well")
    p.add_argument("--rounds", type=int, default=1)
    p.add_argument("--out", type=Path, required=True)
    p.add_argument("--device", default="cuda")
    p.add_argument("--slots", type=int, default=64, help="of each model")
    p.add_argument("--audio", type=float, default=12.0, help="seconds of audio per request")
    p.add_argument("--warmup", type=float, default=1.0, help="seconds of load before the figures")
    p.add_argument("--seconds", type=float, default=5.0, help="of load for the figures")
    p.add_argument("--start", type=float, default=150.0, help="seconds to be ready")
    p.add_argument(
        "--limit", type=float, default=600.0, help="no load begins after so many seconds"
    )
    args = p.parse_args()

    args.work = Path(tempfile.mkdtemp())
    end = time.monotonic() + args.limit
    results: list[dict[str, Any]] = []
    with serving(args.arm, args) as servers:
        print(f"GiB in use {gpu_memory()}", flush=True)
        for round_number in range(args.rounds):
            for load in loads(args.models, args.concurrency, args.apart):
                for name, server in servers.items():
                    if time.monotonic() > end:
                        continue
                    models = measure(server, load, args)
                    results.append(
                        {"round": round_number, "load": load.name, "arm": name, "models": models}
                    )
                    args.out.write_text(json.dumps(results, indent=1) + "\n")
                    print(table(results[-1:]).partition("\n")[2], flush=True)
    print(table(results))


if __name__ == "__main__":
    main()
