"""Time GEMV (one and two rows) with every launch configuration against the library's GEMM, with cold weights.

Run: python benchmarks/kernels/gemv.py [--out DIR] [--seconds 90]       on a GPU
     TRITON_INTERPRET=1 python benchmarks/kernels/gemv.py --small       a dry run on small shapes without a GPU
Needs: a GPU, Triton and nothing but stentor.

A case is one shape of one model at one number of rows. Its launches run in a CUDA graph over so many copies of the
weights that none is in the cache. The table shows microseconds of the library (the GEMM alone, without what our
kernel fuses), of the configuration that `kernels/configs.py` names, of the same without PDL, and of the best one.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

sys.path.insert(
    0, str(Path(__file__).resolve().parents[2])
)  # this tree, also where none is installed
from benchmarks.timing import compile_ahead
from stentor.kernels import gemv
from stentor.kernels.configs import GemvConfig, gemv_config
from stentor.kernels.linear import GEMV_ROWS

SHAPES = {
    "vox lm qkv": (2560, 2048, False),
    "vox lm o": (2048, 2048, False),
    "vox lm gate": (12288, 2048, True),
    "vox lm down": (2048, 6144, False),
    "fish qkv": (6144, 2560, False),
    "fish o": (2560, 4096, False),
    "fish gate": (19456, 2560, True),
    "fish down": (2560, 9728, False),
    "qwen qkv": (4096, 2048, False),
    "depth qkv": (4096, 1024, False),
    "depth gate": (6144, 1024, True),
    "depth o": (1024, 2048, False),
    "depth down": (1024, 3072, False),
    "depth head": (2048, 1024, False),
    "fish head": (4096, 2560, False),
}
"""(rows of the weight matrix, its columns, gated); Qwen3-TTS 1.7B shares what is missing with VoxCPM2."""

TILES = tuple(GemvConfig(*c) for c in (
    (4, 1024, 4), (2, 1024, 4), (8, 1024, 4), (2, 2048, 4), (4, 2048, 8), (1, 2048, 4),
    (2, 256, 1), (4, 256, 1), (1, 512, 1), (4, 512, 2), (2, 512, 2),
    (4, 512, 4), (8, 512, 4), (8, 512, 2),
    (4, 2048, 4), (8, 2048, 8), (2, 1024, 2), (1, 1024, 2), (1, 1024, 1), (2, 512, 1),
    (4, 512, 1), (8, 1024, 8), (16, 512, 4), (8, 512, 1), (16, 512, 2), (16, 1024, 8),
    (16, 256, 2), (8, 256, 1), (8, 1024, 2), (16, 512, 8), (8, 256, 2),
))  # fmt: skip
COLD = 200e6  # bytes of weights that one graph goes through: several times the cache
BANDWIDTH = 4.3e12
REPEATS = 5
WORKERS = 12


@dataclass(frozen=True)
class Case:
    name: str
    width: int
    size: int
    gate: bool
    rows: int

    @property
    def bytes(self) -> int:
        return self.width * self.size * 2

    @property
    def tiles(self) -> list[GemvConfig]:
        own = self.own
        some = [t for t in TILES if t.block_k < 2 * self.size][: None if self.rows == 1 else 6]
        if self.gate:
            some = [t._replace(block_n=max(1, t.block_n // 2)) for t in some]
        return [own, *(t for t in dict.fromkeys(some) if t != own)]

    @property
    def own(self) -> GemvConfig:
        """The configuration that the engine takes."""
        return gemv_config(self.width // 2 if self.gate else self.width, self.size, self.gate)


def cases(small: bool, max_rows: int = GEMV_ROWS, only: str = "") -> list[Case]:
    """One row first, `max_rows` rows last, of the shapes with `only` in their names."""
    scale = 32 if small else 1
    return [
        Case(name, width // scale, size // scale, gate, rows)
        for rows in range(1, max_rows + 1)
        for name, (width, size, gate) in SHAPES.items()
        if only in name
    ]


class Operands:
    def __init__(self, case: Case, device: str, small: bool) -> None:
        dtype = torch.float32 if small else torch.bfloat16
        copies = 1 if small else max(2, int(COLD / case.bytes) + 1)
        made = torch.randn(case.width, case.size, device=device, dtype=dtype) / case.size**0.5
        self.weights = [made, *(made.clone() for _ in range(copies - 1))]
        self.x = torch.randn(case.rows, case.size, device=device, dtype=dtype)
        self.norm = torch.rand(case.size, device=device, dtype=dtype)
        width = case.width // 2 if case.gate else case.width
        self.residual = torch.randn(case.rows, width, device=device, dtype=dtype)
        self.norms = case.gate or case.name.endswith(("qkv", "head"))

    def ours(self, case: Case, tile: GemvConfig, weight: Tensor) -> Tensor:
        norm = (self.norm, 1e-5, True) if self.norms else None
        added = None if self.norms else self.residual
        return gemv.fused_linear(self.x, weight, norm, added, case.gate, None, tile)

    def formula(self, case: Case, weight: Tensor) -> Tensor:
        x = self.x.float()
        if self.norms:
            x = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-5) * self.norm.float()
        y = x @ weight.float().T
        if case.gate:
            gate, up = y.chunk(2, -1)
            y = F.silu(gate) * up
        return y if self.norms else y + self.residual.float()


def microseconds(run: Callable[[Tensor], Any], weights: list[Tensor]) -> float:
    """Microseconds of one launch, in a graph that goes through all the weights."""
    if not weights[0].is_cuda:
        started = time.perf_counter()
        run(weights[0])
        return (time.perf_counter() - started) * 1e6
    run(weights[0])
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for weight in weights:
            run(weight)
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    graph.replay()
    times = []
    for _ in range(REPEATS):
        begin.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end) * 1e3 / len(weights))
    return sorted(times)[REPEATS // 2]


def measure(case: Case, device: str, small: bool) -> dict[str, Any]:
    o = Operands(case, device, small)
    want = o.formula(case, o.weights[0])
    row: dict[str, Any] = {
        "case": case.name,
        "rows": case.rows,
        "floor": round(case.bytes / BANDWIDTH * 1e6, 2),
    }
    row["library"] = round(microseconds(lambda w: F.linear(o.x, w), o.weights), 2)
    row["tiles"] = {}
    for tile in case.tiles:
        label = _label(tile)
        try:
            error = float((o.ours(case, tile, o.weights[0]).float() - want).norm() / want.norm())
            if not error < 0.02:
                row["tiles"][label] = f"wrong: {error}"
                continue
            row["tiles"][label] = round(
                microseconds(lambda w, t=tile: o.ours(case, t, w), o.weights), 2
            )
        except Exception as e:  # a tile that does not fit is an answer
            row["tiles"][label] = f"failed: {e}"[:200]
    row["own"] = row["tiles"][_label(case.own)]
    timed = {k: v for k, v in row["tiles"].items() if isinstance(v, float)}
    row["best"], row["best_tile"] = min(((v, k) for k, v in timed.items()), default=(None, None))
    row["late"] = _without_early(
        lambda: microseconds(lambda w: o.ours(case, case.own, w), o.weights)
    )
    return row


def _label(t: GemvConfig) -> str:
    return f"{t.block_n}x{t.block_k} w{t.num_warps}"


def _without_early(run: Callable[[], float]) -> float | None:
    before = gemv.PDL_LAUNCH
    try:
        gemv.PDL_LAUNCH = {"USE_PDL": False}
        return round(run(), 2)
    except Exception:
        return None
    finally:
        gemv.PDL_LAUNCH = before


def compile_share(share: int, shares: int, max_rows: int, only: str) -> None:
    """Every tile of some cases run once, so that the process that measures finds them compiled."""
    every = [(c, t) for c in cases(False, max_rows, only) for t in c.tiles]
    made: dict[Case, Operands] = {}
    for case, tile in itertools.islice(every, share, None, shares):
        one = made.get(case)
        if one is None:
            made.clear()
            one = made[case] = Operands(case, "cuda", False)
            one.weights = one.weights[:1]
        try:
            one.ours(case, tile, one.weights[0])
            if tile == case.own:
                _without_early(lambda o=one, c=case, t=tile: o.ours(c, t, o.weights[0]) is None)
        except Exception as e:
            print(f"{case} {tile}: {e}"[:200], file=sys.stderr)


def table(found: list[dict[str, Any]]) -> str:
    lines = [f"{'case':12} rows  floor library   late    own   best  of floor  best tile"]
    for r in sorted(found, key=lambda r: (list(SHAPES).index(r["case"]), r["rows"])):
        best = r["best"] or float("nan")
        lines.append(
            f"{r['case']:12} {r['rows']:4} {r['floor']:6} {r['library']:7} {r['late']!s:>6} {r['own']!s:>6.6} {best:6} "
            f"{r['floor'] / best:8.0%}  {r['best_tile']}"
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=Path(os.environ.get("OUT", ".")))
    parser.add_argument("--seconds", type=float, default=90)
    parser.add_argument("--rows", type=int, choices=range(1, GEMV_ROWS + 1), default=GEMV_ROWS)
    parser.add_argument("--only", default="", help="part of a shape's name")
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--share", type=int, help=argparse.SUPPRESS)
    args = parser.parse_args()
    started = time.monotonic()
    with torch.inference_mode():
        if args.share is not None:
            compile_share(args.share, WORKERS, args.rows, args.only)
            return
        if not args.small:
            command = [
                sys.executable,
                __file__,
                "--rows",
                str(args.rows),
                "--only",
                args.only,
                "--share",
            ]
            compile_ahead(command, WORKERS, args.seconds * 0.55)
        print(f"compiled in {time.monotonic() - started:.0f} s; PDL: {gemv.USE_PDL}", flush=True)
        found = []
        for case in cases(args.small, args.rows, args.only):
            if time.monotonic() - started > args.seconds:
                print("out of time")
                break
            found.append(measure(case, "cpu" if args.small else "cuda", args.small))
            args.out.mkdir(parents=True, exist_ok=True)
            (args.out / "gemv.json").write_text(json.dumps(found, indent=1))
    print(table(found))


if __name__ == "__main__":
    main()
