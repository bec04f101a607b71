"""Output buffers and views of inputs that suit kernels. This module does not import Triton."""

from __future__ import annotations

import torch
from torch import Tensor


def empty_aligned(rows: int, columns: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Uninitialised [rows, columns] of elements of 4 or 8 bytes, in which every row starts at a
    multiple of 16 bytes: Triton then compiles the kernels that take a row for one alignment
    only."""
    return torch.empty(rows, -(-columns // 4) * 4, dtype=dtype, device=device)[:, :columns]


def rows_of(x: Tensor, size: int) -> Tensor:
    """x [..., size] as [N, size], whose rows are contiguous. A plain `reshape` of one sequence is a
    view whatever its layout, such as channels by time."""
    rows = x.reshape(-1, size)
    if rows.stride(1) == 1 or size == 1:
        return rows
    return rows.contiguous()
