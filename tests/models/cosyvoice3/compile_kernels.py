"""Compiles this family's kernels for a Hopper GPU, on any machine. test_kernels.py runs it in a process of its own."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from stentor.kernels.types import RowRef
from stentor.models.cosyvoice3 import attention_kernels, kernels, live_text_kernels
from stentor.models.cosyvoice3.config import LanguageConfig, RasConfig
from tests.helpers.compiled import Case, compile_cases, floats, integers, meta

BATCH, FRAMES, HEADS, WIDTH, TAPS = 16, 50, 16, 64, 31
DIM = HEADS * WIDTH


def attention(dtype: torch.dtype, batch: int, frames: int) -> None:
    *qkv, count = projected(dtype, batch, frames)
    rows = (count, meta(batch, dtype=torch.bool), 2 * FRAMES)
    turned = meta(batch, 2, 2, frames, DIM, dtype=dtype)
    attention_kernels.row_attention(*qkv, rows, HEADS, turned)


def projected(dtype: torch.dtype, batch: int, frames: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    tables = floats(batch, frames, WIDTH // 2), floats(batch, frames, WIDTH // 2)
    return meta(batch, 2, frames, 3 * DIM, dtype=dtype), *tables, integers(batch)


def convolution(dtype: torch.dtype, adds: bool) -> None:
    x = meta(BATCH, 2, FRAMES, DIM, dtype=dtype)
    weight = meta(TAPS, WIDTH, DIM, dtype=dtype).permute(2, 1, 0)
    kernels.position_conv(x, weight, meta(DIM, dtype=dtype), x if adds else None)


def sampling(dtype: torch.dtype) -> None:
    recent = integers(BATCH, 10), meta(BATCH, 10, dtype=torch.bool)
    kernels.sample_ras(
        floats(BATCH, 6761),
        floats(BATCH, 2),
        floats(BATCH),
        floats(BATCH),
        integers(BATCH),
        recent,
        1.0,
    )


def live_text(dtype: torch.dtype) -> None:
    """Numbers of a row are all int64."""
    del dtype
    names = (
        "prev",
        "step",
        "asks",
        "taken",
        "made_count",
        "next_fill",
        "silent",
        "min_frames",
        "start_from",
    )
    rows: Any = MetaRows({name: integers(BATCH) for name in names})
    history = rows.history()
    live_text_kernels.fed_rows(rows["prev"], rows["step"], rows.column("feed"), history, 151_936)
    language = LanguageConfig(
        stack=None, theta=1e6, text_vocab=151_936, codes=6561, ras=RasConfig()
    )
    step = live_text_kernels.FusedStep(rows, integers(11), language)
    step.masked(floats(BATCH, 6761))
    step.emitted(integers(BATCH))


class MetaRows(dict[str, Tensor]):
    def column(self, name: str) -> RowRef:
        return RowRef(integers(65, {"feed": 4096, "made": 10}[name]), integers(BATCH))

    def history(self) -> RowRef:
        return RowRef(integers(65, 4096, 1), integers(BATCH))


CASES: dict[str, Case] = {
    "attention of many rows": lambda t: attention(t, BATCH, 700),
    "attention of a row in splits": lambda t: attention(t, 1, 150),
    "convolution": lambda t: convolution(t, adds=False),
    "sampling": sampling,
    "live text": live_text,
    "convolution and sum": lambda t: convolution(t, adds=True),
}

ALL = ((CASES, (torch.bfloat16, torch.float32)),)

if __name__ == "__main__":
    for cases, dtypes in ALL:
        compile_cases(cases, dtypes)
