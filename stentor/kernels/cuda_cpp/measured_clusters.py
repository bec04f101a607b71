"""The fastest tiles of cluster_gemm.cu on an H200, where it takes less time than what served before."""

from __future__ import annotations

from stentor.kernels.cuda_cpp.cluster import ClusterTile

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


def tile(k: int, weight_rows: int, rows: int) -> ClusterTile | None:
    """The tile for so many rows. None where nothing was measured, or another kernel is as fast."""
    found = (t for least, most, t in MEASURED.get((k, weight_rows), ()) if least <= rows <= most)
    return next(found, None)


def tiles(k: int, weight_rows: int) -> list[ClusterTile]:
    """The tiles for all numbers of rows."""
    return [t for _, _, t in MEASURED.get((k, weight_rows), ())]
