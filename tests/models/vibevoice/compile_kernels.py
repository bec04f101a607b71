"""Compiles this family's kernels for a Hopper GPU, on any machine. test_kernels.py runs it in a process of its own."""

from __future__ import annotations

import torch

from stentor.models.vibevoice.kernels import (
    MANY_ROWS,
    active_conditions,
    add_modulated_norm,
    feed_forward,
    mix,
    solver_step,
)
from tests.helpers.compiled import Case, compile_cases, floats, integers, meta

BATCH, LATENT = 4, 64


def mixed(dtype: torch.dtype, channels: int, steps: int, streams: bool) -> None:
    x = meta(BATCH, steps, channels, dtype=dtype)
    past = meta(BATCH, 6, channels, dtype=dtype) if streams else None
    weight = meta(7, channels, 1, dtype=dtype).permute(1, 2, 0)
    bias = meta(channels, dtype=dtype)
    mix(x, past, (bias, 1e-5, True), weight, bias)


def fed_forward(dtype: torch.dtype, rows: int, channels: int) -> None:
    x = meta(1, rows, channels, dtype=dtype)
    wide = 4 * channels
    up = meta(wide, channels, dtype=dtype)
    down = meta(channels, wide, dtype=dtype)
    gain = meta(channels, dtype=dtype)
    feed_forward(x, (gain, 1e-5, True), up, meta(wide, dtype=dtype), down, gain)


def modulated(dtype: torch.dtype, adds: bool) -> None:
    x = meta(BATCH, 896, dtype=dtype)
    gate, scale, shift, _ = meta(BATCH, 4, 896, dtype=dtype).unbind(1)
    delta = x if adds else None
    weight = None if adds else meta(896, dtype=dtype)
    add_modulated_norm(x, delta, gate if adds else None, weight, scale, shift, 1e-5)


def conditions(dtype: torch.dtype) -> None:
    times = meta(21, 20, 896, dtype=dtype)
    active_conditions(meta(2 * BATCH, 896, dtype=dtype), times, integers(BATCH), 3)


def solved(dtype: torch.dtype, first: bool) -> None:
    z = floats(BATCH, LATENT)
    velocity = meta(2 * BATCH, LATENT, dtype=dtype)
    before = None if first else z
    solver_step(z, velocity, before, floats(BATCH), floats(5, 21, 20), integers(BATCH), 3)


HEAD: dict[str, Case] = {
    "norm and modulation": lambda t: modulated(t, False),
    "addition, norm and modulation": lambda t: modulated(t, True),
    "conditions": conditions,
    "first solver step": lambda t: solved(t, True),
    "solver step": lambda t: solved(t, False),
}
CODEC: dict[str, Case] = {
    "mix of many channels": lambda t: mixed(t, 2048, 1, True),
    "mix of few channels": lambda t: mixed(t, 32, 3200, True),
    "mix without a stream": lambda t: mixed(t, 32, 3200, False),
    "feed-forward of few rows": lambda t: fed_forward(t, 800, 128),
    "feed-forward of many rows": lambda t: fed_forward(t, MANY_ROWS, 128),
}
ALL = (
    (HEAD, (torch.bfloat16, torch.float32)),
    (CODEC, (torch.float16,)),
)

if __name__ == "__main__":
    for cases, dtypes in ALL:
        compile_cases(cases, dtypes)
