"""Tables of the fastest tiles of each GPU, as data: `sm_90.json` for the H100 and H200.

benchmarks/kernels/tile_search.py writes them. It needs neither torch nor a GPU.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

from stentor.kernels.cuda_cpp.product import ClusterTile, Product, Tile, WeightType

Ranges = tuple[tuple[int, int, ClusterTile], ...]
"""From how many rows to how many, and the tile for them."""


class FewRows(NamedTuple):
    """Tiles of skinny_gemm.cu or skinny_int8_gemm.cu for 1, 2, 3, ... tiles of rows, without and
    with a norm.

    microseconds: times of launches. Those that were not measured are estimated.
    """

    microseconds: tuple[float, ...]
    plain: tuple[Tile, ...]
    norm: tuple[Tile, ...]


class TileTables(NamedTuple):
    """Tiles of one GPU.

    clusters: by k, rows of the weight, and its type. few_rows: by k, outputs, whether there is a
    gate, and the weight's type. one_order: as clusters, for any number of rows, with tiles that
    split K alike, so a row's sums have one order. The library's GEMM of up to 64 rows, with the
    kernels for what ours fuse, takes launch + bytes / bandwidth.
    """

    clusters: dict[tuple[int, int, WeightType], Ranges]
    few_rows: dict[tuple[int, int, bool, WeightType], FewRows]
    one_order: dict[tuple[int, int, WeightType], Ranges]
    library_launch: float
    """Microseconds."""
    library_bandwidth: float
    """Bytes in a microsecond, of weights in 16 bits."""

    def cluster_tile(self, p: Product, rows: int) -> ClusterTile | None:
        """The tile for so many rows. None: nothing was measured, or another kernel is as fast."""
        return _tile_for(self.clusters.get((p.k, p.weight_rows, p.weight), ()), rows)

    def one_order_tile(self, p: Product, rows: int) -> ClusterTile | None:
        """The tile for so many rows, which get the same bits from the tiles for others. None: no
        cluster can do it."""
        return _tile_for(self.one_order.get((p.k, p.weight_rows, p.weight), ()), rows)

    def few_rows_tile(self, p: Product, rows: int) -> Tile | None:
        """The tile for so many rows. None: the table ends before, or does not have the product."""
        tiles = self._few_rows(p)
        row_tiles = -(-rows // p.row_tile)
        if 0 < row_tiles <= len(tiles):
            return tiles[row_tiles - 1]
        return None

    def microseconds(self, p: Product, rows: int) -> float:
        """Time of a product that has a tile for few rows."""
        return self.few_rows[p.k, p.n, p.gate, p.weight].microseconds[-(-rows // p.row_tile) - 1]

    def library_microseconds(self, p: Product) -> float:
        """Time of the library's GEMM, or of Triton's where weights have 8 bits."""
        return self.library_launch + p.weight_rows * p.k * 2 / self.library_bandwidth

    def tiles(self, p: Product, one_order: bool = False) -> Iterator[Tile | ClusterTile]:
        """The tiles of a product for all numbers of rows."""
        if not one_order:
            yield from self._few_rows(p)
        if one_order:
            ranges = self.one_order
        else:
            ranges = self.clusters
        yield from (t for _, _, t in ranges.get((p.k, p.weight_rows, p.weight), ()))

    def _few_rows(self, p: Product) -> tuple[Tile, ...]:
        ranges = self.few_rows.get((p.k, p.n, p.gate, p.weight))
        if ranges is None:
            return ()
        if p.norm:
            return ranges.norm
        return ranges.plain


def _tile_for(ranges: Ranges, rows: int) -> ClusterTile | None:
    return next((t for least, last, t in ranges if least <= rows <= last), None)


def file(arch: int) -> Path:
    """The table of a GPU of this compute capability, 90 for sm_90."""
    return Path(__file__).with_name(f"sm_{arch}.json")


@cache
def of(arch: int) -> TileTables | None:
    """Read the tables of a GPU of this compute capability. None: there are none."""
    if not file(arch).exists():
        return None
    table = json.loads(file(arch).read_text(encoding="utf-8"))
    clusters, one_order = (
        {
            (r["k"], r["weight_rows"], r["weight"]): tuple(
                (a, b, ClusterTile(*t)) for a, b, t in r["tiles"]
            )
            for r in table[name]
        }
        for name in ("clusters", "one_order")
    )
    few_rows = {
        (f["k"], f["n"], f["gate"], f["weight"]): FewRows(
            tuple(f["microseconds"]),
            *(tuple(Tile(*t) for t in f.get(kind, f["plain"])) for kind in ("plain", "norm")),
        )
        for f in table["few_rows"]
    }
    return TileTables(
        clusters, few_rows, one_order, table["library"]["launch"], table["library"]["bandwidth"]
    )
