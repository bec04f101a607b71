"""Compiles this family's kernels for a Hopper GPU, on any machine. test_kernels.py runs it in a process of its own."""

from __future__ import annotations

import torch

from stentor.kernels import conv1d
from stentor.kernels.types import SnakeParams
from stentor.models.kokoro.kernels import (
    Norm,
    Pool,
    Steps,
    convolution_input,
    statistics,
)
from stentor.models.kokoro.lstm_kernels import Recurrence, lstm
from tests.helpers.compiled import Case, compile_cases, floats, integers, meta

BATCH, STEPS = 4, 3000


def styled(dtype: torch.dtype, rows: int, channels: int, snake: bool, pool: bool) -> None:
    x = meta(rows, STEPS, channels, dtype=dtype)
    steps = Steps(integers(rows), 60)
    norm = Norm(statistics(x, steps), floats(rows, 2 * channels))
    wave = SnakeParams(floats(channels), floats(channels)) if snake else None
    doubling = Pool(floats(3, channels), floats(channels)) if pool else None
    convolution_input(x, steps, 5, norm, wave, slope=0.2, pool=doubling)


def plain(dtype: torch.dtype) -> None:
    x = meta(BATCH, STEPS, 512, dtype=dtype)[:, 1:]
    convolution_input(x, Steps(integers(BATCH), 60, 1), 1, slope=0.1)


def post(dtype: torch.dtype) -> None:
    x = meta(BATCH, STEPS + 6, 128, dtype=dtype)
    weight = meta(7, 22, 128, dtype=dtype).permute(1, 2, 0)
    conv1d.conv1d(x, weight, floats(22), 1, None, None, torch.float32)


def recurrence(dtype: torch.dtype) -> None:
    weight = Recurrence(meta(2, 2, 4, 256, 256, dtype=torch.float16))
    lstm(meta(40, 300, 2, 1024, dtype=dtype), weight, integers(40))


CASES: dict[str, Case] = {
    "norm and leaky ReLU": lambda t: styled(t, BATCH, 1152, False, False),
    "norm and Snake": lambda t: styled(t, BATCH, 128, True, False),
    "norm and Snake of one row": lambda t: styled(t, 1, 128, True, False),
    "norm and pool": lambda t: styled(t, BATCH, 1152, False, True),
    "leaky ReLU": plain,
}
HALF: dict[str, Case] = {"sums in float32": post}
WIDE: dict[str, Case] = {"LSTM": recurrence}
ALL = (
    (CASES, (torch.float16, torch.float32)),
    (HALF, (torch.float16,)),
    (WIDE, (torch.float32,)),
)

if __name__ == "__main__":
    for cases, dtypes in ALL:
        compile_cases(cases, dtypes)
