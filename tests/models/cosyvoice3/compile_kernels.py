"""Compiles this family's kernels for a Hopper GPU, on any machine. test_kernels.py runs it in a process of its own."""

from __future__ import annotations

import torch

from stentor.models.cosyvoice3 import attention_kernels, kernels
from tests.helpers.compiled import Case, compile_cases, floats, integers, meta

BATCH, FRAMES, HEADS, WIDTH, TAPS = 16, 50, 16, 64, 31
DIM = HEADS * WIDTH


def attention(dtype: torch.dtype, batch: int, frames: int, pages: int) -> None:
    pool = meta(65, 10, 22, 2, 2, frames, DIM, dtype=dtype)
    tables = floats(batch, frames, WIDTH // 2), floats(batch, frames, WIDTH // 2)
    given = attention_kernels.Pages(pool, integers(batch, pages), integers(batch))
    qkv = meta(batch, 2, frames, 3 * DIM, dtype=dtype)
    attention_kernels.flow_attention(qkv, *tables, integers(batch), HEADS, given, 7)


def norm(dtype: torch.dtype, adds: bool) -> None:
    x, row = meta(BATCH, 2, FRAMES, DIM, dtype=dtype), meta(DIM, dtype=dtype)
    kernels.add_norm(x, x if adds else None, row, row, row, 1e-6)


def convolution(dtype: torch.dtype, adds: bool) -> None:
    x = meta(BATCH, 2, FRAMES, DIM, dtype=dtype)
    weight = meta(TAPS, WIDTH, DIM, dtype=dtype).permute(2, 1, 0)
    past = meta(BATCH, 10, 2, TAPS - 1, DIM, dtype=dtype)[:, 3]
    kernels.position_conv(x, past, weight, meta(DIM, dtype=dtype), x if adds else None)


def sampling(dtype: torch.dtype) -> None:
    recent = integers(BATCH, 10), meta(BATCH, 10, dtype=torch.bool)
    kernels.sample_ras(
        floats(BATCH, 6761), floats(BATCH, 2), floats(BATCH), floats(BATCH), integers(BATCH), recent, 1.0
    )


CASES: dict[str, Case] = {
    "attention of a cell": lambda t: attention(t, BATCH, FRAMES, pages=20),
    "attention of a cell in splits": lambda t: attention(t, 1, FRAMES, pages=20),
    "attention of a whole": lambda t: attention(t, 1, 700, pages=1),
    "norm": lambda t: norm(t, adds=False),
    "sum and norm": lambda t: norm(t, adds=True),
    "convolution": lambda t: convolution(t, adds=False),
    "sampling": sampling,
    "convolution and sum": lambda t: convolution(t, adds=True),
}

if __name__ == "__main__":
    compile_cases(CASES, (torch.bfloat16, torch.float32))
