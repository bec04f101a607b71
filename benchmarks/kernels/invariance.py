"""Which launch configs of a kernel give the same bits, and which rows of a GEMM do: what batch invariance can build on.

Run: python benchmarks/kernels/invariance.py [--out DIR]       on a GPU
Needs: a GPU, Triton and nothing but stentor.

For each kernel the first row's result is hashed for every config, or for every number of rows. A line names how many
different results there are, and which configs gave each.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # this tree, also where none is installed
from benchmarks.kernels.conv1d import SHAPES, Operands, candidates
from stentor import kernels
from stentor.kernels.configs import ConvConfig, DepthConfig, LocalConfig, PagedConfig

ROWS = (1, 2, 3, 4, 7, 8, 16, 22, 32, 64, 128, 256, 1024)


def digest(row: Tensor) -> str:
    return hashlib.md5(row.contiguous().view(torch.int16).cpu().numpy().tobytes()).hexdigest()[:6]


def classes(run: Callable[[Any], Tensor], configs: list[Any]) -> dict[str, list[str]]:
    """The configs of each different first row. Those that do not launch are under their error."""
    found: dict[str, list[str]] = {}
    for config in configs:
        try:
            key = digest(run(config)[0])
        except Exception as error:
            key = type(error).__name__
        found.setdefault(key, []).append(str(tuple(config) if isinstance(config, tuple) else config))
    return found


def gemms(device: torch.device) -> dict[str, dict[str, list[str]]]:
    """The library's GEMM by rows."""
    found = {}
    for k, n in ((1024, 4096), (2048, 1024), (2048, 4096), (6144, 2048), (2560, 9728)):
        x = torch.randn(max(ROWS), k, device=device, dtype=torch.bfloat16)
        w = torch.randn(n, k, device=device, dtype=torch.bfloat16)
        found[f"library {k} -> {n}"] = classes(lambda rows, x=x, w=w: F.linear(x[:rows], w), list(ROWS))
    return found


def convolutions(device: torch.device) -> dict[str, dict[str, list[str]]]:
    """Convolutions by config, those of few rows too."""
    few = [ConvConfig(16, 16, 0, 128, 4, 5), ConvConfig(16, 32, 0, 64, 4), ConvConfig(64, 32, 0, 64, 4)]
    found = {}
    for name, s in SHAPES.items():
        short = s._replace(steps=min(s.steps, 256))
        found[f"conv {name}"] = classes(Operands(short, device).ours, [*candidates(short), *few])
    return found


def attention(device: torch.device) -> dict[str, dict[str, list[str]]]:
    heads, kv_heads, dim, page, length, rows = 16, 8, 128, 16, 300, 4
    made: dict[str, Any] = {"device": device, "dtype": torch.bfloat16}
    pool = torch.randn(2, 256, page, kv_heads, dim, **made)
    table = torch.arange(256, device=device, dtype=torch.int32).reshape(rows, -1)
    slot = torch.arange(rows, device=device)
    pos = torch.full((rows,), length, device=device)
    q, k, v = (torch.randn(rows, h, dim, **made) for h in (heads, kv_heads, kv_heads))
    cache = torch.randn(2, rows, 16, kv_heads, dim, **made)
    paged = [PagedConfig(n, w, s, splits) for n in (16, 32, 64) for w in (2, 4, 8) for s in (2, 3) for splits in (1, 4)]
    depth = [DepthConfig(h, w) for h in (1, 2) for w in (1, 2, 4)]
    local = [LocalConfig(h, w) for h in (1, 2) for w in (1, 2, 4)]
    t = torch.randn(rows, 11, heads + 2 * kv_heads, dim, **made)
    return {
        "paged": classes(
            lambda c: kernels.paged_attention.paged_attention(pool, table, slot, pos, q, k, v, config=c), paged
        ),
        "depth": classes(
            lambda c: kernels.short_attention.depth_attention(cache, 7, q[:, None], k[:, None], v[:, None], config=c),
            depth,
        ),
        "local": classes(
            lambda c: kernels.short_attention.local_attention(
                t[:, :, :heads], t[:, :, heads : heads + kv_heads], t[:, :, heads + kv_heads :], config=c
            ),
            local,
        ),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path())
    args = parser.parse_args()
    torch.manual_seed(0)
    device = torch.device("cuda", 0)
    found: dict[str, dict[str, list[str]]] = {}
    with torch.inference_mode():
        for part in (gemms, attention, convolutions):
            found |= part(device)
    for name, by_digest in found.items():
        print(f"{name}: {len(by_digest)} results: {'; '.join(', '.join(c) for c in by_digest.values())}")
    (args.out / "invariance.json").write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
