"""Compiles this family's kernels for a Hopper GPU, on any machine. test_kernels.py runs it in a process of its own."""

from __future__ import annotations

import torch

from stentor.models.voxcpm2 import kernels
from stentor.models.voxcpm2.schedule import EulerSchedule
from tests.helpers.compiled import Case, compile_cases, floats, integers, meta

BATCH, PATCH, FEAT, HIDDEN = 16, 4, 64, 1024


def patch_tokens(dtype: torch.dtype, given: torch.dtype) -> None:
    weight, bias = meta(HIDDEN, FEAT, dtype=dtype), meta(HIDDEN, dtype=dtype)
    kernels.patch_tokens(
        meta(BATCH, PATCH, FEAT, dtype=given), weight, bias, meta(1, 1, 1, HIDDEN, dtype=dtype)
    )


def dit_input(dtype: torch.dtype, given: torch.dtype, work: int) -> None:
    mu = (meta(BATCH, HIDDEN, dtype=dtype), meta(BATCH, HIDDEN, dtype=dtype))
    weight, bias = meta(HIDDEN, FEAT, dtype=dtype), meta(HIDDEN, dtype=dtype)
    schedule = EulerSchedule(
        meta(101, 100, dtype=dtype), integers(101, 100), meta(4800, HIDDEN, dtype=dtype)
    )
    last, z = meta(BATCH, PATCH, FEAT, dtype=given), meta(BATCH, PATCH, FEAT, dtype=dtype)
    kernels.dit_input_tokens(
        mu, last, z, (weight, bias, weight, bias), integers(BATCH), schedule, work
    )


def euler_step(dtype: torch.dtype, last: bool) -> None:
    both, x = meta(2 * BATCH, PATCH, FEAT, dtype=dtype), meta(BATCH, PATCH, FEAT, dtype=dtype)
    tokens, times = meta(2 * BATCH, 11, HIDDEN, dtype=dtype), meta(4800, HIDDEN, dtype=dtype)
    feed = (
        integers(BATCH, 16)[:, 1],
        times,
        meta(HIDDEN, FEAT, dtype=dtype),
        meta(HIDDEN, dtype=dtype),
    )
    dt = meta(BATCH, 16, dtype=dtype)[:, 0]
    kernels.cfg_euler_step(both, x, floats(BATCH), dt, 1e-8, tokens, None if last else feed, 2)


def select(dtype: torch.dtype) -> None:
    h, rounded, feat = (meta(BATCH, 2048, dtype=dtype) for _ in range(3))
    kernels.select_and_concat(h, rounded, feat, meta(1, dtype=torch.bool).expand(BATCH))


CASES: dict[str, Case] = {
    "patch": lambda t: patch_tokens(t, torch.float32),
    "patch in its dtype": lambda t: patch_tokens(t, t),
    "input of the flow": lambda t: dit_input(t, torch.float32, 9),
    "input of the flow of one step": lambda t: dit_input(t, t, 1),
    "Euler step": lambda t: euler_step(t, last=False),
    "last Euler step": lambda t: euler_step(t, last=True),
    "FSQ": lambda t: kernels.fsq_round(meta(BATCH, 512, dtype=t), 9),
    "select and concat": select,
    "stop head": lambda t: kernels.stop_head(meta(BATCH, 2048, dtype=t), meta(2, 2048, dtype=t)),
}
ALL = ((CASES, (torch.bfloat16, torch.float32)),)

if __name__ == "__main__":
    for cases, dtypes in ALL:
        compile_cases(cases, dtypes)
