"""The fastest tiles of cluster_gemm.cu on an H200, where it takes less time than what served before."""

from __future__ import annotations

from stentor.kernels.cuda_cpp.cluster import ClusterTile
from stentor.kernels.cuda_cpp.product import WeightType

Ranges = tuple[tuple[int, int, ClusterTile], ...]

MEASURED: dict[tuple[int, int], Ranges] = {
    (896, 896): (
        (9, 16, ClusterTile(16, 1, 1, 11)),
        (25, 32, ClusterTile(32, 1, 2, 7)),
        (49, 64, ClusterTile(32, 2, 2, 7)),
    ),
    (896, 1152): (
        (25, 32, ClusterTile(32, 1, 2, 7)),
        (49, 64, ClusterTile(32, 2, 2, 7)),
    ),
    (896, 9728): (
        (9, 16, ClusterTile(16, 1, 2, 7)),
        (25, 32, ClusterTile(32, 2, 2, 5)),
        (49, 64, ClusterTile(64, 2, 2, 4)),
    ),
    (1024, 2560): (
        (33, 48, ClusterTile(24, 2, 2, 8)),
        (49, 88, ClusterTile(32, 2, 2, 5, ahead=True)),
    ),
    (1024, 4096): ((49, 64, ClusterTile(64, 1, 2, 8)),),
    (1024, 6144): ((49, 64, ClusterTile(64, 2, 2, 8)),),
    (1024, 8192): (
        (33, 48, ClusterTile(48, 1, 2, 7)),
        (49, 88, ClusterTile(88, 1, 2, 5, ahead=True)),
    ),
    (2048, 1024): (
        (9, 16, ClusterTile(16, 1, 4, 8)),
        (33, 48, ClusterTile(48, 1, 4, 7, ahead=True)),
        (49, 64, ClusterTile(64, 1, 4, 8)),
        (65, 88, ClusterTile(48, 1, 2, 16)),
    ),
    (3072, 1024): (
        (9, 16, ClusterTile(16, 1, 4, 12)),
        (49, 64, ClusterTile(64, 1, 4, 12)),
    ),
    (4096, 1024): (
        (33, 48, ClusterTile(48, 1, 4, 16)),
        (49, 88, ClusterTile(48, 1, 4, 7)),
    ),
    (4096, 2560): ((9, 16, ClusterTile(16, 1, 4, 11)),),
    (4864, 896): (
        (9, 16, ClusterTile(16, 1, 4, 16, ahead=True)),
        (25, 32, ClusterTile(32, 1, 4, 16, ahead=True)),
        (49, 64, ClusterTile(32, 1, 4, 16, ahead=True)),
    ),
    (9728, 2560): ((9, 16, ClusterTile(16, 2, 8, 6)),),
}
"""K and weight rows -> from how many rows to how many, and the tile for them. Others are as fast elsewhere."""

MEASURED_INT8: dict[tuple[int, int], Ranges] = {
    (1024, 4096): (
        (17, 32, ClusterTile(32, 2, 4, 4)),
        (33, 64, ClusterTile(64, 4, 4, 4)),
    ),
    (1024, 6144): (
        (17, 32, ClusterTile(32, 2, 2, 5)),
        (33, 64, ClusterTile(64, 2, 2, 8)),
    ),
    (2048, 1024): (
        (17, 32, ClusterTile(32, 2, 4, 8)),
        (33, 64, ClusterTile(64, 1, 8, 4)),
    ),
    (2048, 2048): (
        (17, 32, ClusterTile(32, 1, 4, 8)),
        (33, 64, ClusterTile(64, 1, 4, 7)),
        (65, 128, ClusterTile(128, 2, 4, 7)),
        (129, 256, ClusterTile(256, 2, 4, 4)),
    ),
    (2048, 2560): (
        (17, 32, ClusterTile(32, 2, 4, 8)),
        (33, 64, ClusterTile(64, 1, 4, 7, ahead=True)),
    ),
    (2048, 4096): (
        (17, 32, ClusterTile(32, 4, 4, 6)),
        (33, 64, ClusterTile(64, 4, 4, 5)),
        (65, 128, ClusterTile(128, 4, 4, 3)),
        (129, 256, ClusterTile(128, 2, 2, 7)),
    ),
    (2048, 12288): (
        (17, 32, ClusterTile(32, 2, 2, 5)),
        (33, 64, ClusterTile(64, 4, 2, 5)),
        (65, 128, ClusterTile(128, 4, 2, 3, ahead=True)),
        (129, 256, ClusterTile(256, 2, 2, 4)),
    ),
    (2560, 6144): (
        (17, 32, ClusterTile(32, 2, 4, 5)),
        (33, 64, ClusterTile(64, 2, 4, 3)),
        (65, 128, ClusterTile(128, 4, 4, 3, ahead=True)),
        (129, 256, ClusterTile(128, 4, 2, 3)),
    ),
    (2560, 19456): (
        (33, 64, ClusterTile(64, 4, 2, 5)),
        (65, 128, ClusterTile(128, 4, 4, 3)),
        (129, 256, ClusterTile(128, 4, 2, 3)),
    ),
    (3072, 1024): (
        (17, 32, ClusterTile(32, 1, 8, 6)),
        (33, 64, ClusterTile(64, 1, 8, 6)),
    ),
    (4096, 2560): (
        (17, 32, ClusterTile(32, 1, 4, 10, ahead=True)),
        (33, 64, ClusterTile(64, 1, 4, 7, ahead=True)),
        (65, 128, ClusterTile(128, 2, 4, 7)),
        (129, 256, ClusterTile(88, 4, 4, 4)),
    ),
    (6144, 2048): (
        (17, 32, ClusterTile(32, 2, 8, 5)),
        (33, 64, ClusterTile(64, 4, 8, 5)),
        (65, 128, ClusterTile(128, 2, 8, 7)),
        (129, 256, ClusterTile(256, 2, 4, 4)),
    ),
    (9728, 2560): (
        (17, 32, ClusterTile(32, 2, 8, 5)),
        (33, 64, ClusterTile(64, 4, 8, 5)),
        (65, 128, ClusterTile(128, 4, 8, 3, ahead=True)),
        (129, 256, ClusterTile(256, 2, 8, 4)),
    ),
}
"""Fastest tiles for weights in int8, on an H100."""


def tile(k: int, weight_rows: int, rows: int, weight: WeightType = "same") -> ClusterTile | None:
    """The tile for so many rows. None where nothing was measured, or another kernel is as fast."""
    found = (t for least, most, t in _ranges(k, weight_rows, weight) if least <= rows <= most)
    return next(found, None)


def tiles(k: int, weight_rows: int, weight: WeightType = "same") -> list[ClusterTile]:
    """The tiles for all numbers of rows."""
    return [t for _, _, t in _ranges(k, weight_rows, weight)]


def _ranges(k: int, weight_rows: int, weight: WeightType) -> Ranges:
    return (MEASURED if weight == "same" else MEASURED_INT8).get((k, weight_rows), ())
