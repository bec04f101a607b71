"""Linear layers of a few or many rows on Hopper GPUs, with the same sums in the same order for any number of rows.

Norm, gate, bias and residual addition are part of the product, as in `kernels.gemv`. A row of the result is the same
bit for bit whatever other rows are computed with it. The sources are CUDA C++ (skinny_gemm.cu says how they work),
compiled by NVRTC.

This is a candidate for `stentor.kernels`. It is proved in an emulator on a CPU (tests/kernels/test_skinny_gemm.py), and
no engine uses it before `measure.py` has shown on a GPU that it wins.
"""

from __future__ import annotations

import torch
from torch import Tensor

from benchmarks.kernels.skinny_gemm import nvrtc
from benchmarks.kernels.skinny_gemm.launch import Arguments, LoadedKernel, load, pointer
from benchmarks.kernels.skinny_gemm.tiles import (
    GROUP,
    MAX_ROWS,
    TILED_SHARED_BYTES,
    ElementType,
    Product,
    norm_macros,
    tile,
    tiled_grid,
    tiled_macros,
)  # fmt: skip

DTYPES: dict[torch.dtype, ElementType] = {torch.bfloat16: "bf16", torch.float16: "f16"}

__all__ = ["fused_linear", "supported", "supports"]


def supported(device: torch.device, dtype: torch.dtype) -> bool:
    """Whether a device has what these kernels need."""
    return (
        device.type == "cuda"
        and dtype in DTYPES
        and nvrtc.available()
        and torch.cuda.get_device_capability(device)[0] == 9
    )


def supports(weight: Tensor) -> bool:
    """Whether the kernels take products with `weight` [N, K], with a gate or without."""
    n, k = weight.shape
    return n % 16 == 0 and k % GROUP == 0


def fused_linear(
    x: Tensor,
    weight: Tensor,
    norm: tuple[Tensor, float] | None = None,
    residual: Tensor | None = None,
    gate: bool = False,
    bias: Tensor | None = None,
) -> Tensor:
    """norm(x) @ weight.T (+ bias) (+ residual) for x [..., K], weight [N, K]: see `kernels.gemv.fused_linear`."""
    k = x.shape[-1]
    n = len(weight) // 2 if gate else len(weight)
    p = Product(k, n, DTYPES[x.dtype], norm is not None, gate, bias is not None, residual is not None)
    rows = _aligned(x.reshape(-1, k))
    added = None if residual is None else residual.reshape(-1, n)
    out = torch.empty(len(rows), n, dtype=x.dtype, device=x.device)
    if len(rows) <= MAX_ROWS:
        _skinny(p, rows, weight, norm, bias, added, out)
    else:
        _tiled(p, rows, weight, norm, bias, added, out)
    return out.view(*x.shape[:-1], n)


def _aligned(rows: Tensor) -> Tensor:
    """Rows that begin at multiples of 16 bytes, as the kernels read them."""
    return rows if rows.stride(1) == 1 and rows.stride(0) % 8 == 0 and rows.data_ptr() % 16 == 0 else rows.contiguous()


def _arguments(
    rows: Tensor,
    out: Tensor,
    weight: Tensor | None = None,
    norm: tuple[Tensor, float] | None = None,
    scale: Tensor | None = None,
    bias: Tensor | None = None,
    residual: Tensor | None = None,
) -> Arguments:
    norm_weight, eps = (None, 0.0) if norm is None else norm
    stride_residual = 0 if residual is None else residual.stride(0)
    pointers = (rows, weight, norm_weight, scale, bias, residual, out)
    return Arguments(*map(pointer, pointers), rows.stride(0), stride_residual, len(rows), eps)


def _skinny(
    p: Product,
    rows: Tensor,
    weight: Tensor,
    norm: tuple[Tensor, float] | None,
    bias: Tensor | None,
    residual: Tensor | None,
    out: Tensor,
) -> None:
    t = tile(p, len(rows))
    kernel = load("skinny_gemm", t.macros(p), p.splits * 32, t.shared_bytes(p), rows.device.index)
    kernel((t.ctas(p), -(-len(rows) // (8 * t.row_tiles))), _arguments(rows, out, weight, norm, None, bias, residual))


def _tiled(
    p: Product,
    rows: Tensor,
    weight: Tensor,
    norm: tuple[Tensor, float] | None,
    bias: Tensor | None,
    residual: Tensor | None,
    out: Tensor,
) -> None:
    scale: Tensor | None = None
    if norm is not None:
        scale = torch.empty(len(rows), dtype=torch.float32, device=rows.device)
        weighted = torch.empty(len(rows), p.k, dtype=rows.dtype, device=rows.device)
        _norm_kernel(p, rows.device.index)((-(-len(rows) // 8), 1), _arguments(rows, weighted, None, norm, scale))
        rows = weighted
    kernel = load("tiled_gemm", tiled_macros(p), 256, TILED_SHARED_BYTES, rows.device.index)
    kernel(tiled_grid(p, len(rows)), _arguments(rows, out, weight, None, scale, bias, residual))


def _norm_kernel(p: Product, device: int) -> LoadedKernel:
    return load("norm_rows", norm_macros(p), p.splits * 32, p.splits * 32, device)
