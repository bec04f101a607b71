"""Time the attention kernels of a decode step with every launch configuration, at the shapes of the three models.

Run: python benchmarks/kernels/attention.py [--out DIR] [--seconds 45] [--before DIR]      on a GPU
     TRITON_INTERPRET=1 python benchmarks/kernels/attention.py --device cpu --tiny         a dry run without a GPU
Needs: a GPU, Triton and nothing but stentor.

A case is one kernel at one model's shape and batch. Its launches run in a CUDA graph: over so many pools that no
history is in the cache (paged), as the passes and layers of a frame follow each other (depth), or over the same queries
(local). The table shows microseconds per launch: the floor by memory traffic, earlier kernels if any are given, the
configuration that kernels/configs.py names, and the best ones. Each result is first compared with a float32 reference,
with itself, and with the result for half of its rows.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import torch
from torch import Tensor

sys.path.insert(
    0, str(Path(__file__).resolve().parents[2])
)  # this tree, also where none is installed
from benchmarks.timing import compile_ahead
from stentor.kernels import paged_attention, short_attention
from stentor.kernels.configs import (
    HeadsConfig,
    PagedConfig,
    depth_config,
    local_config,
    paged_config,
)
from stentor.kernels.pdl import USE_PDL
from stentor.kernels.types import QKNormRope
from stentor.layers.rope import angles

PAGE = 16
COLD = 240e6  # bytes of history that one graph goes through: several times the cache
BANDWIDTH = 4.3e12
LAUNCHES = 60  # of a graph, at least: its own start must not count
REPEATS = 5
WORKERS = 14
BATCHES = (64, 16, 1)


class Model(NamedTuple):
    heads: int
    kv_heads: int
    interleaved: bool
    in_float32: bool
    normed: bool
    passes: int = 0
    """Attention of a depth loop; the first step takes two tokens."""
    depth_layers: int = 0


MODELS = {
    "qwen": Model(
        16, 8, interleaved=False, in_float32=False, normed=True, passes=15, depth_layers=5
    ),
    "fish": Model(32, 8, interleaved=True, in_float32=True, normed=False, passes=9, depth_layers=4),
    "vox": Model(16, 2, interleaved=False, in_float32=True, normed=False),
}
PAGED = (
    PagedConfig(32, 2, 4), PagedConfig(32, 4, 3), PagedConfig(32, 4, 4), PagedConfig(32, 2, 3), PagedConfig(64, 4, 2),
    PagedConfig(64, 4, 3), PagedConfig(64, 8, 3), PagedConfig(16, 1, 6), PagedConfig(128, 8, 2),
)  # fmt: skip
SPLIT = (
    PagedConfig(32, 4, 3, num_splits=4), PagedConfig(32, 2, 4, num_splits=4), PagedConfig(32, 4, 3, num_splits=8),
    PagedConfig(64, 4, 2, num_splits=4), PagedConfig(32, 4, 3, num_splits=2), PagedConfig(32, 4, 3, num_splits=16),
    PagedConfig(64, 4, 2, num_splits=8),
)  # fmt: skip
DEPTH = tuple(
    HeadsConfig(heads, warps)
    for heads, warps in ((1, 1), (1, 2), (1, 4), (2, 1), (2, 2), (4, 1), (4, 2))
)
LOCAL = tuple(
    HeadsConfig(heads, warps)
    for heads, warps in ((1, 1), (1, 2), (2, 2), (2, 4), (4, 4), (8, 8), (8, 4))
)


@dataclass(frozen=True)
class Case:
    kernel: str
    model: str
    batch: int
    context: int = 0
    tiny: bool = False

    @property
    def label(self) -> str:
        return f"{self.kernel} {self.model} b{self.batch}" + (
            f" x{self.context}" if self.context else ""
        )

    @property
    def shape(self) -> Model:
        m = MODELS[self.model]
        return (
            m
            if not self.tiny
            else m._replace(heads=m.heads // 4, kv_heads=max(1, m.kv_heads // 4), passes=2)
        )

    @property
    def dim(self) -> int:
        return 32 if self.tiny else 128

    @property
    def bytes(self) -> int:
        m = self.shape
        if self.kernel == "paged":
            return 4 * self.batch * self.context * m.kv_heads * self.dim
        if self.kernel == "depth":
            return 2 * self.batch * self.dim * (2 * m.heads + m.kv_heads * (2 + m.passes))
        return 2 * 2 * self.batch * 11 * (2 * m.heads + 2 * m.kv_heads) * self.dim

    @property
    def own(self) -> Any:
        """The tile that the engine takes."""
        m = self.shape
        group = m.heads // m.kv_heads
        if self.kernel == "paged":
            return paged_config(self.batch * m.kv_heads, group, 4 if self.tiny else 2)
        return (
            depth_config(self.batch * m.kv_heads, group)
            if self.kernel == "depth"
            else local_config(2 * self.batch, group)
        )

    @property
    def tiles(self) -> list[Any]:
        some: tuple[Any, ...] = {"paged": PAGED, "depth": DEPTH, "local": LOCAL}[self.kernel]
        if self.kernel == "paged" and (
            self.batch < 64 or self.model == "vox" or self.context > 1000
        ):
            some = (*some[:8], *SPLIT)
        if self.kernel != "paged":
            some = tuple(t for t in some if t.block_h <= self.shape.heads // self.shape.kv_heads)
        if self.tiny:
            some = (some[0], some[-1])
        return list(dict.fromkeys((self.own, *some)))


def cases(tiny: bool) -> list[Case]:
    if tiny:
        return [Case(k, m, 2, 40 if k == "paged" else 0, True)
                for k, m in (("paged", "fish"), ("depth", "qwen"), ("local", "vox"))]  # fmt: skip
    found = []
    for batch in BATCHES:
        found += [Case("paged", m, batch, 200) for m in MODELS]
        found += [Case("depth", m, batch) for m in ("qwen", "fish")] + [Case("local", "vox", batch)]
    return [
        *found,
        Case("paged", "fish", 16, 1500),
        Case("paged", "qwen", 1, 1500),
        Case("paged", "vox", 16, 1500),
    ]


Launch = Callable[[], Tensor]


class Kernels(NamedTuple):
    """The modules with attention kernels."""

    paged: ModuleType
    short: ModuleType


CURRENT = Kernels(paged_attention, short_attention)


class Operands:
    """Random tensors of a case, the launches that a graph goes through, and the float32 formula of the first."""

    def __init__(self, case: Case, device: str, few: bool) -> None:
        self.case, self.few = case, few
        self.dtype = torch.float32 if case.tiny else torch.bfloat16
        torch.manual_seed(3)
        m = case.shape
        table = angles(case.dim, 2048, 1e6).to(device)
        norms = None
        if m.normed:
            weights = [self._random(device, case.dim) for _ in range(2)]
            norms = (weights[0], weights[1], 1e-6, True)
        rounded = torch.bfloat16
        cos, sin = (f(table).to(rounded).float() for f in (torch.cos, torch.sin))
        self.norm_rope = QKNormRope(cos, sin, m.interleaved, m.in_float32, norms)
        self.tokens = 11 if case.kernel == "local" else 2
        rows = 2 * case.batch if case.kernel == "local" else case.batch
        width = (m.heads + 2 * m.kv_heads) * case.dim
        qkv = self._random(device, rows, self.tokens, width)
        sizes = (m.heads * case.dim, m.kv_heads * case.dim, m.kv_heads * case.dim)
        self.qkv = [t.view(*t.shape[:-1], -1, case.dim) for t in torch.split(qkv, list(sizes), -1)]
        if case.kernel == "paged":
            self._history(device, m)
        elif case.kernel == "depth":
            self.caches = self._random(
                device, m.depth_layers, 2, rows, m.passes + 2, m.kv_heads, case.dim
            )

    def _random(self, device: str, *shape: int) -> Tensor:
        return torch.randn(*shape, device=device, dtype=self.dtype)

    def _history(self, device: str, m: Model) -> None:
        c = self.case
        each = c.context // PAGE + 1
        copies = 1 if self.few else max(4, min(1200, int(COLD / c.bytes) + 1))
        pages = c.batch * each
        self.pools = self._random(device, copies, 2, pages + 1, PAGE, m.kv_heads, c.dim)
        self.table = torch.randperm(pages, device=device).view(c.batch, each)
        self.slot = torch.randperm(c.batch, device=device)
        self.pos = torch.full((c.batch,), c.context, device=device)

    def launches(self, tile: Any, made: Kernels = CURRENT) -> Iterator[Launch]:
        """One after the other; `tile` None: as `made` chooses."""
        q, k, v = self.qkv
        if self.case.kernel == "paged":
            chosen = {} if tile is None else {"config": tile}
            one = q[:, 0], k[:, 0], v[:, 0]
            places = self.table, self.slot, self.pos
            for pool in self.pools:
                yield partial(
                    made.paged.paged_attention, pool, *places, *one, self.norm_rope, **chosen
                )
        elif self.case.kernel == "depth":
            chosen = {} if tile is None else {"config": tile}
            length = 0
            for new in (2, *[1] * (self.case.shape.passes - 1)):
                new_qkv = [t[:, :new] for t in self.qkv]
                for cache in self.caches:
                    yield partial(
                        made.short.depth_attention,
                        cache,
                        length,
                        *new_qkv,
                        self.norm_rope,
                        **chosen,
                    )
                length += new
        else:
            chosen = {} if tile is None else {"config": tile}
            for _ in range(1 if self.few else 24):
                yield partial(made.short.local_attention, q, k, v, self.norm_rope, 0, **chosen)

    def turned(self, x: Tensor, weight: Tensor | None, pos: Tensor) -> Tensor:
        """x [N, T, H, D] after norm and RoPE at pos [T] or [N, T], in float32."""
        x = x.float()
        if self.norm_rope.norms is not None and weight is not None:
            x = (
                x
                * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.norm_rope.norms[2])
                * weight.float()
            )
        cos, sin = self.norm_rope.cos[pos].unsqueeze(-2), self.norm_rope.sin[pos].unsqueeze(-2)
        if self.norm_rope.interleaved:
            a, b = x[..., 0::2], x[..., 1::2]
            return torch.stack((a * cos - b * sin, b * cos + a * sin), -1).flatten(-2)
        a, b = x.chunk(2, -1)
        return torch.cat((a * cos - b * sin, b * cos + a * sin), -1)

    def formula(self) -> Tensor:
        """Output of the first launch."""
        q, k, v = self.qkv
        tokens = {"paged": 1, "depth": 2, "local": self.tokens}[self.case.kernel]
        q, k, v = q[:, :tokens], k[:, :tokens], v[:, :tokens].float()
        pos = torch.arange(tokens, device=q.device)
        if self.case.kernel == "paged":
            pos = self.pos[:, None]
        q_weight, k_weight = (
            (None, None) if self.norm_rope.norms is None else self.norm_rope.norms[:2]
        )
        q, k = self.turned(q, q_weight, pos), self.turned(k, k_weight, pos)
        if self.case.kernel == "paged":
            past = [
                part[self.table[self.slot]].flatten(1, 2)[:, : self.case.context].float()
                for part in self.pools[0]
            ]
            k, v = torch.cat((past[0], k), 1), torch.cat((past[1], v), 1)
        group = q.shape[2] // k.shape[2]
        k, v = k.repeat_interleave(group, 2), v.repeat_interleave(group, 2)
        score = torch.einsum("nthd,nshd->nhts", q, k) * self.case.dim**-0.5
        if self.case.kernel == "depth":
            score = score + torch.full_like(score, float("-inf")).triu(1)
        out = torch.einsum("nhts,nshd->nthd", score.softmax(-1), v)
        return out[:, 0] if self.case.kernel == "paged" else out

    def wrong(self, tile: Any, want: Tensor) -> str | None:
        """Error of a tile's first launch."""
        launch = next(self.launches(tile))
        out = launch()
        error = float((out.float() - want).norm() / want.norm())
        if not error < 0.02:
            return f"wrong: {error:.3g}"
        if not torch.equal(out, launch()):
            return "differs from run to run"
        if self.case.kernel == "paged" and self.case.batch > 1:
            half = self.case.batch // 2
            q, k, v = (t[:half, 0] for t in self.qkv)
            slot, pos = self.slot[:half], self.pos[:half]
            alone = paged_attention.paged_attention(
                self.pools[0], self.table, slot, pos, q, k, v, self.norm_rope, tile
            )
            if not torch.equal(out[:half], alone):
                return "depends on the other rows"
        return None


def microseconds(launches: list[Launch]) -> float:
    """Microseconds of one launch, in a graph that goes through all."""
    if not torch.cuda.is_available():
        started = time.perf_counter()
        launches[0]()
        return (time.perf_counter() - started) * 1e6
    for launch in (launches[0], launches[-1]):
        launch()
    launches = launches * -(-LAUNCHES // len(launches))
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for launch in launches:
            launch()
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
    graph.replay()
    times: list[float] = []
    for _ in range(REPEATS):
        begin.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end) * 1e3 / len(launches))
    return sorted(times)[REPEATS // 2]


def measure(case: Case, device: str, before: Kernels | None) -> dict[str, Any]:
    o = Operands(case, device, few=case.tiny)
    want = o.formula()
    row: dict[str, Any] = {
        "case": case.label,
        "floor": round(case.bytes / BANDWIDTH * 1e6, 2),
        "before": None,
    }
    if before is not None:
        row["before"] = round(microseconds(list(o.launches(None, before))), 2)
    tiles: dict[str, Any] = {}
    for tile in case.tiles:
        try:
            tiles[name(tile)] = o.wrong(tile, want) or round(
                microseconds(list(o.launches(tile))), 2
            )
        except Exception as e:  # a tile that does not fit is an answer
            tiles[name(tile)] = f"failed: {e}"[:200]
    timed = sorted((v, k) for k, v in tiles.items() if isinstance(v, float))
    bad = {k: v for k, v in tiles.items() if not isinstance(v, float)}
    return row | {
        "own": tiles[name(case.own)],
        "own_tile": name(case.own),
        "ranked": timed,
        "bad": bad,
    }


def name(tile: Any) -> str:
    if isinstance(tile, PagedConfig):
        rest = f" /{tile.num_splits}" if tile.num_splits > 1 else ""
        return f"{tile.block_n}w{tile.num_warps}s{tile.num_stages}{rest}"
    return f"{tile.block_h}hw{tile.num_warps}"


def load(file: Path) -> ModuleType:
    """A module from a file."""
    name = f"before_{file.stem}"
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def earlier(folder: Path | None) -> Kernels | None:
    """An earlier version of the kernels."""
    if folder is None:
        return None
    return Kernels(load(folder / "paged_attention.py"), load(folder / "short_attention.py"))


def compile_share(share: int, before: Kernels | None) -> None:
    """Some kernels run once, so that the process that measures finds them compiled."""
    chosen = [
        (c, t) for c in cases(False) for t in (*c.tiles, *(() if before is None else (None,)))
    ]
    every = list(
        {(c.kernel, c.model, t): (c, t) for c, t in chosen}.values()
    )  # batch and context do not matter
    for case, tile in every[share::WORKERS]:
        o = Operands(case, "cuda", few=True)
        try:
            found = list(
                o.launches(tile, before if tile is None and before is not None else CURRENT)
            )
            for launch in (found[0], found[-1]):
                launch()
        except Exception as e:
            print(f"{case} {tile}: {e}"[:200], file=sys.stderr)


def table(found: list[dict[str, Any]]) -> str:
    lines = [
        f"{'case':20} {'floor':>6} {'before':>7} {'own':>7}  own tile, then the best and what they take"
    ]
    for r in found:
        best = ", ".join(f"{k}: {v:.2f}" for v, k in r["ranked"][:5])
        lines.append(
            f"{r['case']:20} {r['floor']:6} {r['before']!s:>7} {r['own']!s:>7.7}  {r['own_tile']} | {best}"
        )
        lines += [f"    {k}: {v}" for k, v in r["bad"].items()]
    return "\n".join(lines)


def mend_interpreter() -> None:
    """Triton 3.6 reads a loop bound by int() of an array of one element, which numpy 2.4 no longer allows."""
    from triton.runtime import interpreter

    patched = interpreter._patch_lang_tensor

    def with_loop_bounds(tensor: Any, scope: Any) -> None:
        patched(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.item()))

    interpreter._patch_lang_tensor = with_loop_bounds


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=Path(os.environ.get("OUT", ".")))
    parser.add_argument("--seconds", type=float, default=45)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument(
        "--before",
        type=Path,
        help="a folder with an earlier paged_attention.py and short_attention.py",
    )
    parser.add_argument("--share", type=int, help=argparse.SUPPRESS)
    args = parser.parse_args()
    started = time.monotonic()
    before = earlier(args.before)
    with torch.inference_mode():
        if args.share is not None:
            compile_share(args.share, before)
            return
        if args.tiny:
            mend_interpreter()
        else:
            given = [] if args.before is None else ["--before", str(args.before)]
            compile_ahead(
                [sys.executable, __file__, *given, "--share"], WORKERS, args.seconds * 0.55
            )
        print(f"compiled in {time.monotonic() - started:.0f} s; PDL: {USE_PDL}", flush=True)
        found = []
        for case in cases(args.tiny):
            if time.monotonic() - started > args.seconds - 3:
                print("out of time")
                break
            found.append(measure(case, args.device, before))
            args.out.mkdir(parents=True, exist_ok=True)
            (args.out / "attention.json").write_text(json.dumps(found, indent=1))
    print(table(found))


if __name__ == "__main__":
    main()
