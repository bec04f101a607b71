"""Which launch configs of a kernel give the same bits, and which rows of a GEMM do: what batch invariance can build on.

Run: python benchmarks/kernels/invariance.py [--out DIR] [--only NAME]       on a GPU, about 60 s
Needs: a GPU, Triton and nothing but stentor.

For each kernel the first row's result is hashed for every config, or for every number of rows. A line names how many
different results there are, and which configs gave each. Eight processes compile, then one runs.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # this tree, also where none is installed
from benchmarks.kernels.compile_ahead import compile_ahead
from benchmarks.kernels.conv1d import SHAPES, Operands, candidates
from stentor import kernels
from stentor.kernels.configs import (
    WINDOW,
    ConvConfig,
    DepthConfig,
    GemmConfig,
    LocalConfig,
    PagedConfig,
    WindowConfig,
)

ROWS = (1, 2, 3, 7, 8, 16, 22, 64, 128, 256, 1024)
COMPILERS, COMPILE_S = 8, 45.0
HEADS, KV_HEADS, DIM, LENGTH = 16, 8, 128, 300


@dataclass(frozen=True)
class Case:
    """A kernel, and the configs or numbers of rows with which `run` gives its first row."""

    run: Callable[[Any], Tensor]
    configs: Sequence[Any]


def digest(row: Tensor) -> str:
    return hashlib.md5(row.reshape(-1).view(torch.uint8).cpu().numpy().tobytes()).hexdigest()[:6]


def classes(case: Case) -> dict[str, list[str]]:
    """The configs of each different first row. Those that do not launch are under their error."""
    found: dict[str, list[str]] = {}
    for config in case.configs:
        try:
            key = digest(case.run(config)[0])
        except Exception as error:
            key = type(error).__name__
        found.setdefault(key, []).append(str(tuple(config) if isinstance(config, tuple) else config))
    return found


class Attention:
    """Operands of attention over pages, in depth loops, over short sequences and over windows."""

    def __init__(self, device: torch.device, rows: int = 4) -> None:
        made: dict[str, Any] = {"device": device, "dtype": torch.bfloat16}
        self.pool = torch.randn(2, 256, 16, KV_HEADS, DIM, **made)
        self.table = torch.arange(256, device=device).reshape(rows, -1)
        self.slot = torch.arange(rows, device=device)
        self.pos = torch.full((rows,), LENGTH, device=device)
        self.q, self.k, self.v = (torch.randn(rows, h, DIM, **made) for h in (HEADS, KV_HEADS, KV_HEADS))
        self.cache = torch.randn(2, rows, 16, KV_HEADS, DIM, **made)
        self.short = torch.randn(rows, 11, HEADS + 2 * KV_HEADS, DIM, **made).split((HEADS, KV_HEADS, KV_HEADS), 2)
        self.stream = torch.randn(3, 1, 240, 16, 64, device=device, dtype=torch.float16)

    def paged(self, c: PagedConfig) -> Tensor:
        return kernels.paged_attention.paged_attention(
            self.pool, self.table, self.slot, self.pos, self.q, self.k, self.v, config=c
        )

    def prefill(self, first: int) -> Tensor:
        """The last token of a piece of a prompt from `first` on, and of a decode step where it is the position."""
        pos = torch.arange(first, LENGTH + 1, device=self.pos.device)
        q = torch.cat((self.q[:1].new_ones(len(pos) - 1, HEADS, DIM), self.q[:1]))
        slot = torch.zeros_like(pos)
        return kernels.prefill_attention.prefill_attention(
            self.pool, self.table, slot, pos, q, alone=len(pos) == 1
        ).flip(0)

    def depth(self, c: DepthConfig) -> Tensor:
        new = (t[:, None] for t in (self.q, self.k, self.v))
        return kernels.short_attention.depth_attention(self.cache, 7, *new, config=c)

    def local(self, c: LocalConfig) -> Tensor:
        return kernels.short_attention.local_attention(*self.short, config=c)

    def window(self, given: tuple[int, WindowConfig]) -> Tensor:
        """The token at 200 of a chunk that begins so many tokens before it."""
        before, config = given
        q, k, v = self.stream
        start = torch.full((1,), 200 - before, device=q.device)
        chunk, seen = slice(200 - before, 201), slice(200 - before - 71, 201)
        out = kernels.window_attention.window_attention(q[:, chunk], k[:, seen], v[:, seen], start, 72, config)
        return out[0].flip(0)


def attention(device: torch.device) -> dict[str, Case]:
    a = Attention(device)
    blocks = ((32, 4, 3), (32, 4, 2), (64, 4, 3), (16, 2, 3))
    paged = [PagedConfig(n, w, s, splits) for n, w, s in blocks for splits in (1, 4)]
    windows = [(before, WINDOW) for before in (0, 1, 5, 15, 24)]
    return {
        "prefill attention by where the piece begins": Case(a.prefill, (0, 1, 100, 255, 280, 299, 300)),
        "window attention by where the chunk begins": Case(a.window, windows),
        "depth attention": Case(a.depth, [DepthConfig(h, w) for h in (1, 2) for w in (1, 4)]),
        "local attention": Case(a.local, [LocalConfig(1, 1), LocalConfig(1, 2), LocalConfig(2, 2), LocalConfig(2, 4)]),
        "paged attention": Case(a.paged, paged),
    }


def rows_of(function: Callable[..., Tensor], x: Tensor, *given: Any) -> Case:
    return Case(lambda rows: function(x[:rows], *given), ROWS)


def others(device: torch.device) -> dict[str, Case]:
    """Norms and samplers by rows."""
    x, norm = (torch.randn(*shape, device=device, dtype=torch.bfloat16) for shape in ((max(ROWS), 2048), (2048,)))
    draws = [torch.rand(max(ROWS), device=device) for _ in range(3)]
    top_k = torch.full((max(ROWS),), 50, device=device)

    def sample(rows: int) -> Tensor:
        u, temperature, top_p = (t[:rows] for t in draws)
        return kernels.sampling.sample(x[:rows], u, temperature + 0.5, top_k[:rows], top_p)

    return {
        "norm by rows": rows_of(lambda t: kernels.norm_rope.rms_norm(t, norm, 1e-6, True), x),
        "sampler by rows": Case(sample, ROWS),
    }


GEMMS = ((1024, 4096), (2048, 1024), (6144, 2048), (2560, 9728))
TILES = [
    GemmConfig(m, n, k, w, 3) for m, n, k, w in (
        (64, 16, 128, 4), (64, 32, 128, 4), (64, 64, 128, 4), (64, 128, 64, 4), (64, 64, 64, 4), (128, 128, 64, 8),
        (128, 64, 64, 4), (128, 256, 64, 8), (16, 32, 128, 4), (16, 64, 128, 4), (32, 64, 128, 4), (16, 16, 256, 4),
    )
]  # fmt: skip


def gemms(device: torch.device) -> dict[str, Case]:
    """Ours by config and by rows, and the library's by rows."""
    found = {}
    for k, n in GEMMS:
        x = torch.randn(max(ROWS), k, device=device, dtype=torch.bfloat16)
        w = torch.randn(n, k, device=device, dtype=torch.bfloat16)
        found[f"GEMM {k} -> {n} by rows"] = rows_of(kernels.gemm.linear, x, w)
        found[f"GEMM {k} -> {n} by tile"] = Case(partial(_tiled, x[:200], w), TILES)
        found[f"library {k} -> {n} by rows"] = rows_of(F.linear, x, w)
    return found


def _tiled(x: Tensor, w: Tensor, config: GemmConfig) -> Tensor:
    return kernels.gemm.linear(x, w, None, config)


def convolutions(device: torch.device) -> dict[str, Case]:
    """Convolutions by config, those of few rows too."""
    found = {}
    for name in ("384 k7 act", "96 k7 act", "768 k7 act, few", "192 k1 add"):
        s = SHAPES[name]._replace(steps=min(SHAPES[name].steps, 256))
        depth = 64 if s.inputs % 64 == 0 else 32
        few = [ConvConfig(16, 16, 0, k, 4, 5) for k in (depth, 128) if s.inputs % k == 0]
        few += [ConvConfig(16, 32, 0, depth, 4), ConvConfig(64, 32, 0, depth, 4), ConvConfig(128, 64, 0, depth, 4)]
        found[f"conv {name}"] = Case(Operands(s, device).ours, [*candidates(s)[:4], *few])
    return found


PARTS = (attention, others, gemms, convolutions)


def all_cases(device: torch.device, only: str) -> dict[str, Case]:
    torch.manual_seed(0)
    return {name: case for part in PARTS for name, case in part(device).items() if only in name}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path())
    parser.add_argument("--only", default="", help="cases whose names have this")
    parser.add_argument("--compile", type=int, help="run every eighth launch from this one on, and print nothing")
    args = parser.parse_args()
    device = torch.device("cuda", 0)
    if args.compile is None:
        compile_ahead([sys.executable, __file__, "--only", args.only, "--compile"], COMPILERS, COMPILE_S)
    found = {}
    with torch.inference_mode():
        cases = all_cases(device, args.only)
        if args.compile is not None:
            launches = [Case(case.run, [config]) for case in cases.values() for config in case.configs]
            for case in launches[args.compile :: COMPILERS]:
                classes(case)
            return
        for name, case in cases.items():
            found[name] = classes(case)
            given = "; ".join(f"{key} {', '.join(configs)}" for key, configs in found[name].items())
            print(f"{name}: {len(found[name])} results: {given}", flush=True)
            (args.out / "invariance.json").write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
