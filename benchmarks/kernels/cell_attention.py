"""Time the attention of a cell of CosyVoice3's flow: its kernels in CUDA C++ and Triton with every tile, and another
version of the latter's file.

Run: python benchmarks/kernels/cell_attention.py [--other FILE.py] [--cells 16x1 64x1 32x2] [--kept 9] [--brief]
         [--out FILE.json]
Needs: a GPU with 90 MB for each kept page of a row, and nothing but stentor.

Microseconds are of one launch of the 220 of a codec call, which are captured together, so that keys come from memory.
The floor is that of reading all kept keys and values at 4.3 TB/s. 32x2: 32 rows with two cells each.
"""

from __future__ import annotations

import argparse
import importlib.util
import itertools
import json
import sys
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest import mock

import torch
from torch import Tensor

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # this tree, also where none is installed
from benchmarks.timing import milliseconds
from stentor.models.cosyvoice3 import attention_kernels, hopper_attention
from stentor.models.cosyvoice3.codec_keys import Turns
from stentor.models.cosyvoice3.hopper_attention import Pages, Tile

STEPS, BLOCKS, HEADS, FRAMES, WIDTH = 10, 22, 16, 50, 64
CUDA_TILES = {
    1: ((64, 2, 4), (64, 3, 3), (80, 2, 4), (112, 2, 3)),
    2: ((112, 2, 2), (112, 3, 2), (128, 2, 2)),
}
"""By cells: keys of a block, blocks, CTAs of an SM of the kernel in CUDA C++."""
TILES = {"num_warps": (4, 8), "num_stages": (2, 3, 4), "maxnreg": (None, 128, 168)}


def read(file: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location("other_attention", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["other_attention"] = module
    spec.loader.exec_module(module)
    return module


def with_tile(module: ModuleType, tile: dict[str, Any]) -> AbstractContextManager[object]:
    """Inside, launches of the module take this tile."""
    plain = module.Splits

    class Tiled(plain):  # type: ignore[misc, valid-type]
        def __init__(self, *given: Any) -> None:
            super().__init__(*given)
            self.launch: dict[str, Any] = {**self.launch, **tile}

    return mock.patch.object(module, "Splits", Tiled)


def with_cuda_tile(cells: int, tile: Tile | None) -> AbstractContextManager[object]:
    """Inside, calls of so many cells take this tile of the kernel in CUDA C++, or Triton's kernel."""
    return mock.patch.dict(hopper_attention.TILES, {} if tile is None else {cells: tile}, clear=tile is None)


class Case:
    """Inputs of `rows` with some cells each and `kept` pages before them."""

    def __init__(self, rows: int, cells: int, kept: int) -> None:
        self.rows, self.cells, self.kept = rows, cells, kept
        frames, own = cells * FRAMES, kept + cells
        shape = (STEPS, BLOCKS, 2, 2, HEADS, FRAMES, WIDTH)
        self.pool = torch.empty(rows * own, *shape, dtype=torch.bfloat16, device="cuda")
        for page in self.pool:
            page.normal_()
        table = torch.arange(rows * own, device="cuda").view(rows, own)
        self.pages = Pages(self.pool, table, torch.full((rows,), kept, device="cuda"))
        self.qkv = torch.randn(rows, 2, frames, 3 * HEADS * WIDTH, dtype=torch.bfloat16, device="cuda")
        self.rope = Turns(*(torch.randn(rows, frames, WIDTH // 2, device="cuda") for _ in range(2)))
        self.count = torch.full((rows,), frames, device="cuda")

    def once(self, module: ModuleType, at: int) -> Tensor:
        out: Tensor = module.cell_attention(self.qkv, *self.rope, self.count, HEADS, self.pages, self.cells, at)
        return out

    def exact(self, at: int) -> Tensor:
        """In float32, without kernels."""
        q, k, v = self.rope.heads(self.qkv.float())
        kept = self.pool.view(self.rows, self.kept + self.cells, -1, *self.pool.shape[3:])
        pages = kept[:, : self.kept, at].float()  # [B, n, keys or values, branch, H, T, D]
        before = pages.permute(2, 0, 3, 4, 1, 5, 6).flatten(4, 5)
        own = [t.bfloat16().float().transpose(2, 3) for t in (k, v)]
        keys, values = (torch.cat((a, b), dim=3) for a, b in zip(before, own, strict=True))
        cell = torch.arange(-self.kept, self.cells, device="cuda").repeat_interleave(FRAMES)
        seen = cell <= cell[self.kept * FRAMES :, None]
        out = torch.nn.functional.scaled_dot_product_attention(q.transpose(2, 3), keys, values, attn_mask=seen)
        return out.transpose(2, 3).flatten(-2)

    def microseconds(self, module: ModuleType) -> float:
        self.once(module, 0)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for at in range(STEPS * BLOCKS):
                self.once(module, at)
        return round(1e3 * milliseconds(graph.replay) / (STEPS * BLOCKS), 2)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--other", type=Path)
    parser.add_argument("--cells", nargs="+", default=["16x1", "64x1", "32x2"], help="rows x cells of each")
    parser.add_argument("--kept", type=int, default=9)
    parser.add_argument("--brief", action="store_true", help="only the tile that serves")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    modules = {"this": attention_kernels} | ({"other": read(args.other)} if args.other else {})
    found: list[dict[str, Any]] = []
    tiles = [{}] if args.brief else [dict(zip(TILES, v, strict=True)) for v in itertools.product(*TILES.values())]
    for shape in args.cells:
        rows, cells = map(int, shape.split("x"))
        case = Case(rows, cells, args.kept)
        exact = case.exact(7)
        floor = rows * args.kept * FRAMES * HEADS * WIDTH * 2 * 2 * 2 / 4.3e12
        print(f"{rows} rows of {cells} cells, floor {1e6 * floor:.1f} us", flush=True)
        serves = hopper_attention.TILES[cells]
        cuda = [serves] if args.brief else [Tile(*t) for t in CUDA_TILES[cells]]
        cases: list[tuple[str, ModuleType, Any, AbstractContextManager[object]]]
        cases = [("CUDA C++", attention_kernels, t, nullcontext()) for t in cuda]
        cases += [(name, module, t, with_tile(module, t)) for name, module in modules.items() for t in tiles]
        for name, module, tile, patched in cases:
            us: float | str
            try:
                with with_cuda_tile(cells, tile if isinstance(tile, Tile) else None), patched:
                    error = float((case.once(module, 7).float() - exact).norm() / exact.norm())
                    us = case.microseconds(module)
            except Exception as e:
                error, us = float("nan"), repr(e)[:90]
            shown = asdict(tile) if isinstance(tile, Tile) else tile
            found.append({"rows": rows, "cells": cells, "version": name, **shown, "error": error, "us": us})
            print(f"  {name:8} {shown} error {error:.5f}: {us}", flush=True)
            if args.out:
                args.out.write_text(json.dumps(found, indent=1))
        del case
        torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
