"""Compare two trees of stentor over HTTP on one machine, in turns: closed loops of one client, ratios last.

Run: python benchmarks/server/turns.py --base DIR [--rounds 3] [--concurrency 1,4,16,64] [--out FILE] [MODEL ...]
     python benchmarks/server/turns.py --base . --also=--deterministic --arms base,also MODEL     one flag of this tree
     python benchmarks/server/turns.py --base DIR --device cpu --audio 0.5 --concurrency 1,2 dummy:toy
     DIR holds the other tree's `stentor`, such as `git archive COMMIT stentor | tar x -C DIR` makes it.
Needs: what serve.py needs.

In each round each tree serves each model in a process of its own, with every graph captured, and the same client of
this tree sends the same load. A figure is the median of the rounds. Its spread is the largest less the smallest. A
ratio is this tree's median over the other's.
"""

from __future__ import annotations

import argparse
import json
import shlex
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))
from serve import MODELS, ROOT, START, Server, gpu_memory, load, load_arguments, slug

FIGURES = {
    "ttfa p50": "median_audio_ttfp_ms",
    "ttfa p95": "p95_audio_ttfp_ms",
    "audio-s/s": "audio_throughput",
}


def measure(model: str, name: str, a: argparse.Namespace) -> dict[str, Any]:
    """One tree's figures of one round."""
    tree = a.base.resolve() if name == "base" else ROOT
    flags = ["--capture-all", *a.flags, *(a.also if name == "also" else [])]
    server = Server(
        [model], a.device, a.max_num_seqs, a.work / f"{slug(model)}_{name}.log", flags, tree
    )
    try:
        found: dict[str, Any] = {"ready_seconds": server.ready(START), "gpu_gib": gpu_memory()}
        if found["ready_seconds"] is None:
            return {**found, "error": server.log.read_text()[-2000:]}
        for c in a.concurrency:
            got = load(server, model, c, a, 60.0, quiet=True)
            found[f"c{c}"] = {name: got.get(key) for name, key in FIGURES.items()}
            found[f"c{c}"] |= {
                k: got[k]
                for k in ("failed", "error", "underrun_requests", "server_threads")
                if k in got
            }
        return found
    finally:
        server.stop()


def median(rounds: list[dict[str, Any]], c: int, figure: str) -> tuple[float, float]:
    """A figure's median and spread over the rounds that have it. NaN: none has."""
    got = [r[f"c{c}"][figure] for r in rounds if (r.get(f"c{c}") or {}).get(figure) is not None]
    return (statistics.median(got), max(got) - min(got)) if got else (float("nan"), float("nan"))


def cell(trees: dict[str, list[dict[str, Any]]], c: int, figure: str) -> str:
    """The base's median and spread, then those of the others with their ratio."""
    base, spread = median(trees["base"], c, figure)
    shown = f"{figure} {base:6.1f} ±{spread:4.1f}"
    for name in [name for name in trees if name != "base"]:
        value, spread = median(trees[name], c, figure)
        shown += f" -> {value:6.1f} ±{spread:4.1f} = {value / base if base else float('nan'):5.3f}"
    return shown


def table(results: dict[str, dict[str, list[dict[str, Any]]]], concurrency: list[int]) -> str:
    lines = []
    for model, trees in results.items():
        starts = {
            name: [round(r["ready_seconds"] or 0, 1) for r in rounds]
            for name, rounds in trees.items()
        }
        lines.append(
            f"{model}: ready s {starts}, GiB { {n: [r['gpu_gib'] for r in rs] for n, rs in trees.items()} }"
        )
        for c in concurrency:
            got = [r[f"c{c}"] for rounds in trees.values() for r in rounds if f"c{c}" in r]
            failed = [x.get("failed", x.get("error")) for x in got]
            lines.append(f"  c={c:<4}" + "   ".join(cell(trees, c, figure) for figure in FIGURES))
            lines += [f"         failed {failed}"] if any(failed) else []
    return "\n".join(lines)


def main() -> None:
    p = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    p.add_argument("models", nargs="*", default=list(MODELS))
    p.add_argument("--base", type=Path, required=True)
    p.add_argument("--rounds", type=int, default=3)
    p.add_argument(
        "--seconds",
        type=float,
        default=570.0,
        help="no round begins that would not end within so many",
    )
    p.add_argument("--out", type=Path, default=Path("turns.json"))
    p.add_argument("--device", default="cuda")
    p.add_argument("--max-num-seqs", type=int, default=256)
    p.add_argument(
        "--flags", type=shlex.split, default=[], help="further flags of stentor serve, in one word"
    )
    p.add_argument(
        "--also",
        type=shlex.split,
        default=[],
        help="measure this tree with these flags too, in one word",
    )
    p.add_argument(
        "--arms",
        type=lambda s: s.split(","),
        default=["base", "new", "also"],
        help="which of base, new and also to measure, base among them",
    )
    p.add_argument(
        "--concurrency",
        type=lambda s: [int(x) for x in s.split(",")],
        default=[1, 4, 16, 64, 128, 256],
    )
    load_arguments(p)
    a = p.parse_args()
    a.work = Path(tempfile.mkdtemp())
    names = [name for name in a.arms if name != "also" or a.also]
    results: dict[str, dict[str, list[dict[str, Any]]]] = {
        m: {name: [] for name in names} for m in a.models
    }
    began, longest = time.monotonic(), 0.0
    for i in range(a.rounds):
        for model in a.models:
            for name in names if i % 2 == 0 else names[::-1]:
                now = time.monotonic()
                if now - began + longest > a.seconds:
                    print(f"no time left for round {i + 1} of {model}, {name}", flush=True)
                    continue
                results[model][name].append(measure(model, name, a))
                longest = max(longest, time.monotonic() - now)
                a.out.write_text(json.dumps(results, indent=1) + "\n")
    print(table(results, a.concurrency))


if __name__ == "__main__":
    main()
