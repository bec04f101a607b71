"""Attention of cells on Hopper GPUs, in calls of many rows. cell_attention.cu, CUDA C++, says how
it works."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from torch import Tensor

from stentor.kernels.cuda_cpp.launch import available_on, load
from stentor.kernels.cuda_cpp.product import product_macros
from stentor.kernels.hopper_gemm import DTYPES

SOURCE = Path(__file__).with_name("cell_attention.cu")
HEAD_DIM = 64
QUERIES = 64  # of a cell. Queries: at most
THREADS = 128


class Pages(NamedTuple):
    """Where keys and values lie: pool [pages, steps, blocks, 2, 2, H, T, D], a page for T frames of
    a row. A CTA reads a head: its frames lie side by side.

    A page has keys, then values, of both branches. table [B, n] int64: each row's pages in order.
    filled [B] int64 of them hold earlier frames, and the next take those of the call, a cell each.
    """

    pool: Tensor
    table: Tensor
    filled: Tensor


@dataclass(frozen=True)
class Tile:
    """Keys of a block, blocks in shared memory, and CTAs of an SM."""

    keys: int
    stages: int
    ctas: int

    def shared_bytes(self, cells: int, pages: int) -> int:
        return cells * QUERIES * 128 + self.stages * self.keys * 256 + pages * 8


TILES = {1: Tile(80, 2, 4), 2: Tile(112, 2, 2)}
"""The fastest on an H200, by cells of a row."""


class Arguments(ctypes.Structure):
    """`Arguments` of cell_attention.cu."""

    _fields_ = [
        *(
            (name, ctypes.c_void_p)
            for name in ("qkv", "cos", "sin", "count", "out", "pool", "table", "filled")
        ),
        ("stride_page", ctypes.c_longlong),
        ("scale", ctypes.c_float),
    ]


def fits(qkv: Tensor, pages: Pages, heads: int, cells: int) -> bool:
    """Whether the kernel attends for qkv [B, 2, T, 3 C]."""
    if (
        qkv.device.type != "cuda"
        or qkv.dtype not in DTYPES
        or pages.pool.dtype != qkv.dtype
        or cells not in TILES
    ):
        return False
    shape = qkv.shape[3] == 3 * heads * HEAD_DIM and qkv.shape[2] <= min(
        TILES[cells].keys, cells * QUERIES
    )
    shape = shape and pages.table.shape[1] <= THREADS * cells
    return shape and available_on(qkv.device.index)


def macros(
    frames: int, cells: int, heads: int, pages: int, dtype: str, tile: Tile
) -> dict[str, int | str]:
    """Macros of the source. frames: of a cell. pages: of a row of the table."""
    sizes: dict[str, int | str] = {"FRAMES": frames, "CELLS": cells, "HEADS": heads, "PAGES": pages}
    cut = {"COLUMNS": tile.keys, "STAGES": tile.stages, "MIN_CTAS": tile.ctas}
    return {**sizes, "DTYPE": f'"{dtype}"', **cut, **product_macros(tile.keys)}


def arguments(
    qkv: Tensor,
    turns: tuple[Tensor, Tensor],
    count: Tensor,
    out: Tensor,
    pages: Pages,
    first: int,
    scale: float,
) -> Arguments:
    """first: element of a page at which the layer begins. scale: of scores, times log2(e)."""
    pool, table, filled = pages
    layer = pool.data_ptr() + first * pool.element_size()
    given = (qkv, *turns, count, out)
    pointers = (*(t.data_ptr() for t in given), layer, table.data_ptr(), filled.data_ptr())
    return Arguments(*pointers, pool.stride(0), scale)


def cell_attention(
    qkv: Tensor,
    turns: tuple[Tensor, Tensor],
    count: Tensor,
    out: Tensor,
    pages: Pages,
    heads: int,
    cells: int,
    first: int,
    scale: float,
) -> None:
    """Compute `attention_kernels.cell_attention` into out [B, 2, T, C], for what `fits`."""
    tile = TILES[cells]
    width = pages.table.shape[1]
    wanted = macros(qkv.shape[2] // cells, cells, heads, width, DTYPES[qkv.dtype], tile)
    kernel = load(
        SOURCE, wanted, cells * THREADS, tile.shared_bytes(cells, width), qkv.device.index
    )
    kernel((2 * len(qkv) * heads, 1), arguments(qkv, turns, count, out, pages, first, scale))
