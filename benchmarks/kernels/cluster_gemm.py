"""Choose the tiles of products by clusters, alone and in stacks, and check them.

Run, on a GPU: python benchmarks/kernels/cluster_gemm.py [--out DIR] [--stacks flow,fish] [--seconds 60]
     python benchmarks/kernels/cluster_gemm.py --weights int8 --rows 16,32,64    the same with weights in int8
     python benchmarks/kernels/cluster_gemm.py --compile        compile every tile and stop, without a GPU
Needs: a GPU, cuda-bindings, NVRTC and nothing but stentor.

First every product of a stack is timed alone with the most promising tiles, in a CUDA graph over so many copies of its
weights that none is in the cache. Each tile is checked against float64, with a NaN in every output before. Then blocks
run one after the other, each with weights of its own, as they are without the kernel and with it. One product after the
other takes the tile with which the blocks take the least time. The result is `clusters` of sm_90.json.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

sys.path.insert(
    0, str(Path(__file__).resolve().parents[2])
)  # this tree, also where none is installed
from benchmarks.kernels.skinny_gemm import BANDWIDTH, COLD, EPS, TOLERANCE
from benchmarks.kernels.tile_search import ARCH, cluster_candidates, fits
from benchmarks.timing import graph_microseconds
from stentor.kernels import linear
from stentor.kernels.cuda_cpp import tables
from stentor.kernels.cuda_cpp.launch import SOURCES, architecture, compiler
from stentor.kernels.cuda_cpp.product import ClusterTile, Product, WeightType
from stentor.kernels.hopper_gemm import Operands, launch
from stentor.layers.attention import full
from stentor.layers.configs import StackConfig
from stentor.layers.qk_norm_rope import RopePositions
from stentor.layers.quantized import dequantize, quantize, quantized_linear
from stentor.layers.rope import Rope, angles
from stentor.layers.transformer import Stack
from stentor.models.quantization import quantize_layers


class Case(NamedTuple):
    """A stack, how many of its blocks are run, and tokens of a sequence."""

    config: StackConfig
    blocks: int
    tokens: int
    rows: tuple[int, ...]


def stack(hidden: int, ffn: int, heads: int, kv_heads: int, qk_norm: bool = False) -> StackConfig:
    return StackConfig(hidden, ffn, 1, heads, kv_heads, 128, EPS, qk_norm)


CASES = {
    "flow": Case(stack(1024, 4096, 16, 2), 12, 11, (88, 352, 176, 44)),
    "fish": Case(stack(2560, 9728, 32, 8, True), 3, 1, (16, 64, 32)),
    "talker": Case(stack(2048, 6144, 16, 8, True), 5, 1, (64, 16)),
    "depth": Case(stack(1024, 3072, 16, 8, True), 12, 1, (64, 16)),
    "language": Case(stack(2048, 6144, 16, 2), 5, 1, (16, 64)),
    "qwen2": Case(StackConfig(896, 4864, 1, 14, 2, 64, EPS, qkv_bias=True), 12, 1, (64, 32, 16)),
}
DEVICE = torch.device("cuda", 0)
Table = dict[tuple[int, int], ClusterTile]


def products(c: StackConfig, weight: WeightType) -> dict[str, Product]:
    width = (c.heads + 2 * c.kv_heads) * c.head_dim
    return {
        "qkv": Product(c.hidden, width, "bf16", norm=True, bias=c.qkv_bias, weight=weight),
        "o": Product(c.heads * c.head_dim, c.hidden, "bf16", add=True, weight=weight),
        "gate": Product(c.hidden, c.ffn, "bf16", norm=True, gate=True, weight=weight),
        "down": Product(c.ffn, c.hidden, "bf16", add=True, weight=weight),
    }


class Alone:
    """The operands of one product, with copies of the weights."""

    def __init__(self, p: Product, rows: int) -> None:
        made: dict[str, Any] = {"device": DEVICE, "dtype": torch.bfloat16}
        self.p, self.x = p, torch.randn(rows, p.k, **made)
        first, self.scale = torch.randn(p.weight_rows, p.k, **made) / p.k**0.5, None
        if p.weight == "int8":
            first, self.scale = quantize(first, torch.int8)
        self.weights = [first, *(first.clone() for _ in range(max(2, int(COLD / first.nbytes))))]
        self.norm, self.residual = torch.rand(p.k, **made) + 0.5, torch.randn(rows, p.n, **made)
        self.bias = torch.randn(p.n, **made) if p.bias else None
        self.out = torch.empty(rows, p.n, **made)
        self.wanted = self.expected()

    def expected(self) -> Tensor:
        y = self.x.double()
        if self.p.norm:
            y = y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + EPS) * self.norm.double()
        weight = self.weights[0]
        y = (
            y
            @ (
                weight.double()
                if self.scale is None
                else dequantize(weight, self.scale, torch.float64)
            ).T
        )
        if self.p.gate:
            gate, up = y.chunk(2, -1)
            y = F.silu(gate) * up
        if self.bias is not None:
            y = y + self.bias.double()
        return y + self.residual.double() if self.p.add else y

    def operands(self, weight: Tensor, rows: int) -> Operands:
        """The first so many rows times `weight`."""
        return Operands(
            self.x[:rows], weight, (self.norm, EPS), self.bias, self.residual, self.scale
        )

    def library(self, weight: Tensor) -> Tensor:
        """Without what is fused. Weights in int8 have no library: what serves them elsewhere."""
        return (
            F.linear(self.x, weight)
            if self.scale is None
            else quantized_linear(self.x, weight, self.scale, None)
        )

    def run(self, t: ClusterTile, weight: Tensor) -> None:
        launch(self.p, t, self.operands(weight, len(self.x)), self.out)

    def errors(self, t: ClusterTile) -> tuple[float, bool]:
        """Against float64, and whether fewer rows and a second run give the same bits."""
        self.out.fill_(float("nan"))
        self.run(t, self.weights[0])
        first = self.out.clone()
        error = float((first.double() - self.wanted).norm() / self.wanted.norm())
        fewer = len(self.x) - 3
        out = torch.full_like(self.out, float("nan"))
        launch(self.p, t, self.operands(self.weights[1], fewer), out)
        same = torch.equal(out[:fewer], first[:fewer]) and bool(out[fewer:].isnan().all())
        return error, same

    def microseconds(self, run: Callable[[Tensor], object]) -> float:
        return graph_microseconds(lambda: [run(w) for w in self.weights]) / len(self.weights)


def alone(p: Product, rows: int, most: int) -> dict[str, Any]:
    case, found = Alone(p, rows), []
    for t in promising(p, rows, most):
        error, same = case.errors(t)
        entry: dict[str, Any] = {"tile": asdict(t), "error": error, "same": same}
        if error < TOLERANCE and same:
            entry["us"] = case.microseconds(lambda w, t=t: case.run(t, w))  # type: ignore[misc]
        found.append(entry)
    right = sorted((f for f in found if "us" in f), key=lambda f: f["us"])
    library = case.microseconds(case.library)
    floor = p.weight_rows * p.k * p.weight_bytes / BANDWIDTH * 1e6
    return {"rows": rows, "floor_us": floor, "library_us": library, "tiles": found, "right": right}


def fill(name: str, parameter: Tensor) -> None:
    """Random weights whose products keep the size of their inputs."""
    if parameter.dtype == torch.int8:
        parameter.random_(-127, 128)  # a deviation of 73
    elif name.endswith("weight_scale"):
        parameter.fill_(1 / 73 / 40)
    elif parameter.dim() > 1:
        parameter.normal_().mul_(parameter.shape[-1] ** -0.5)
    else:
        parameter.fill_(1)


class Blocks:
    """Blocks one after the other, each with weights of its own."""

    def __init__(self, case: Case, rows: int, weight: WeightType) -> None:
        self.weight = weight
        with torch.device("meta"):
            blocks = [Stack(case.config).to(torch.bfloat16) for _ in range(case.blocks)]
        if weight == "int8":
            quantize_layers(nn.ModuleList(blocks), map(str, range(len(blocks))), torch.int8)
        self.stacks = [b.to_empty(device=DEVICE) for b in blocks]
        for name, parameter in ((n, q) for s in self.stacks for n, q in s.named_parameters()):
            fill(name, parameter.data)
        table = angles(case.config.head_dim, 64, 10000.0, None)
        self.positions = RopePositions(
            Rope(table, torch.bfloat16, interleaved=False, in_float32=True).to(DEVICE), None
        )
        shape = rows // case.tokens, case.tokens, case.config.hidden
        self.x = torch.randn(shape, device=DEVICE, dtype=torch.bfloat16)

    def run(self) -> Tensor:
        x, delta = self.x, None
        for s in self.stacks:
            x, delta = s.layers[0](x, delta, 0, full, self.positions)
        return x if delta is None else x + delta

    def microseconds(self, table: Table, rows: int) -> float:
        """Time of one block, with these tiles."""
        clusters = tables.of(ARCH).clusters  # type: ignore[union-attr]
        clusters.clear()
        clusters.update({(*key, self.weight): ((1, rows, t),) for key, t in table.items()})
        linear.select.cache_clear()
        return graph_microseconds(self.run) / len(self.stacks)


def choose(
    case: Case, rows: int, weight: WeightType, found: dict[str, dict[str, Any]]
) -> dict[str, Any]:
    """The tiles with which blocks take the least time. Where blocks are fused without it, a product may have none."""
    blocks = Blocks(case, rows, weight)
    keys = {name: (p.k, p.weight_rows) for name, p in products(case.config, weight).items()}
    before, reference = blocks.microseconds({}, rows), blocks.run().double()
    tiles = {name: [ClusterTile(**f["tile"]) for f in found[name]["right"]] for name in keys}
    if not all(tiles.values()):
        return {"rows": rows, "before_us": before}
    starts: list[Table] = [{keys[name]: tiles[name][0] for name in keys}]
    table, best = starts[0], blocks.microseconds(starts[0], rows)
    tried = [("all", None, best)]
    for most in (6, 3):
        for name, key in keys.items():
            others: list[ClusterTile | None] = [*tiles[name][:most], None]
            for t in others:
                one = {k: v for k, v in {**table, key: t}.items() if v is not None}
                if one.get(key) == table.get(key):
                    continue
                us = blocks.microseconds(one, rows)
                tried.append((name, None if t is None else asdict(t), us))
                if us < best:
                    table, best = one, us
    blocks.microseconds(table, rows)
    after = blocks.run().double()
    cosine = float(F.cosine_similarity(after.flatten(), reference.flatten(), 0))
    again = {"before": blocks.microseconds({}, rows), "after": blocks.microseconds(table, rows)}
    chosen = [[*key, asdict(t)] for key, t in table.items()]
    return {
        "rows": rows, "before_us": before, "after_us": best, "again_us": again, "cosine": cosine, "table": chosen,
        "tried": tried,
    }  # fmt: skip


def promising(p: Product, rows: int, most: int) -> list[ClusterTile]:
    """Half differ in more than their stages and are the best. Others are the same with more stages or less ahead."""
    by: dict[tuple[int, int, int], list[ClusterTile]] = {}
    for t in cluster_candidates(p, rows):
        by.setdefault((t.columns, t.warp_groups, t.splits), []).append(t)
    kinds = [sorted(ts, key=lambda t: t.stages) for ts in by.values()][: most // 2]
    others = [
        t for ts in kinds for t in (replace(ts[0], ahead=not ts[0].ahead), ts[-1]) if fits(t, p)
    ]
    return list(dict.fromkeys([ts[0] for ts in kinds] + others))[:most]


def begin_compiling(
    cases: dict[str, Case], weight: WeightType, most: int, arch: str
) -> dict[tuple[str, int], list[Future[bytes]]]:
    """The jobs of every stack and number of rows, in the order in which they are needed."""
    return {
        (name, rows): [
            compiler().begin(SOURCES / "cluster_gemm.cu", {**t.macros(p), "PDL": 1}, arch)
            for p in products(case.config, weight).values()
            for t in promising(p, rows, most)
        ]
        for name, case in cases.items()
        for rows in case.rows
    }


def finish(jobs: list[Future[bytes]]) -> None:
    started = time.monotonic()
    for job in jobs:
        job.result()
    print(f"{len(jobs)} tiles compiled, waited {time.monotonic() - started:.1f} s", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=Path())
    parser.add_argument("--stacks", default=",".join(CASES))
    parser.add_argument("--rows", default="", help="only these")
    parser.add_argument("--weights", default="same", choices=("same", "int8"))
    parser.add_argument("--most", type=int, default=12, help="tiles of a product")
    parser.add_argument(
        "--seconds", type=float, default=1e9, help="begin no number of rows after so many"
    )
    parser.add_argument("--compile", action="store_true")
    args = parser.parse_args()
    cases = {name: CASES[name] for name in args.stacks.split(",")}
    if args.rows:
        cases = {
            n: c._replace(rows=tuple(int(r) for r in args.rows.split(",")))
            for n, c in cases.items()
        }
    end = time.monotonic() + args.seconds
    jobs = begin_compiling(
        cases, args.weights, args.most, "sm_90a" if args.compile else architecture(0)
    )
    if args.compile:
        finish([job for some in jobs.values() for job in some])
        return
    results: dict[str, Any] = {}
    with torch.inference_mode():
        for name, case in cases.items():
            for rows in case.rows:
                if time.monotonic() > end:
                    return
                finish(jobs[name, rows])
                found = {
                    n: alone(p, rows, args.most)
                    for n, p in products(case.config, args.weights).items()
                }
                for n, f in found.items():
                    wrong = len(f["tiles"]) - len(f["right"])
                    best = f["right"][0] if f["right"] else {"us": 0, "tile": {}}
                    print(
                        f"{name:8} {n:4} M{rows:<4} floor {f['floor_us']:6.2f} library {f['library_us']:6.2f} "
                        f"best {best['us']:6.2f} wrong {wrong} {tuple(best['tile'].values())}", flush=True
                    )  # fmt: skip
                chain = choose(case, rows, args.weights, found)
                print(name, rows, {k: v for k, v in chain.items() if k != "tried"}, flush=True)
                results.setdefault(name, []).append({"alone": found, "chain": chain})
                (args.out / "cluster_gemm.json").write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
