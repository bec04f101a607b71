"""Compiles this family's kernels for a Hopper GPU, on any machine. A test runs it in a process of its own."""

from __future__ import annotations

import torch

from stentor.kernels.types import SnakeParams
from stentor.models.dots_tts import codec_kernels
from tests.helpers.compiled import Case, compile_cases, floats, meta

BATCH, TAIL = 4, 50


def activation(dtype: torch.dtype, channels: int, own: bool, steps: int) -> None:
    x, past = (
        meta(BATCH, steps, channels, dtype=dtype),
        meta(BATCH, codec_kernels.PAST, channels, dtype=dtype),
    )
    snake, taps = (
        SnakeParams(floats(channels), floats(channels)),
        meta(channels if own else 1, 1, 12, dtype=dtype),
    )
    history = meta(BATCH, TAIL, channels, dtype=dtype)
    codec_kernels.activation(
        x, past, meta(BATCH, dtype=torch.bool), snake, taps, taps, history, steps // 3
    )


CASES: dict[str, Case] = {
    "activation of many channels": lambda t: activation(t, 768, False, 60),
    "activation of many columns": lambda t: activation(t, 24, False, 60_000),
    "activation with taps per channel": lambda t: activation(t, 24, True, 600),
}
ALL = ((CASES, (torch.float16, torch.bfloat16)),)

if __name__ == "__main__":
    for cases, dtypes in ALL:
        compile_cases(cases, dtypes)
