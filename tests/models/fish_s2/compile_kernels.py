"""Compiles this family's kernels for a Hopper GPU, on any machine. test_kernels.py runs it in a process of its own."""

from __future__ import annotations

import torch

from stentor.kernels.types import MinFrames, RowRef, SampleOut, SamplingParams
from stentor.models.fish_s2 import kernels
from tests.helpers.compiled import Case, compile_cases, floats, integers, meta

BATCH, HIDDEN = 16, 2560


def out(dtype: torch.dtype, tokens: int) -> SampleOut:
    code = integers(BATCH)
    if not tokens:
        return SampleOut(code)
    prefix = meta(BATCH, HIDDEN, dtype=dtype) if tokens == 2 else None
    return SampleOut(
        code, meta(4096, HIDDEN, dtype=dtype), meta(BATCH, tokens, HIDDEN, dtype=dtype), prefix
    )


def params(u: torch.Tensor) -> SamplingParams:
    return SamplingParams(u, floats(BATCH), integers(BATCH), floats(BATCH))


def ranked(dtype: torch.dtype, tokens: int) -> None:
    kernels.sample_ranked_into(
        meta(BATCH, 4096, dtype=dtype), params(floats(BATCH, 11)[:, 1]), out(dtype, tokens)
    )


def first_code(dtype: torch.dtype) -> None:
    past, rows = (
        RowRef(integers(65, 100, 10), integers(BATCH)),
        MinFrames(integers(BATCH), integers(BATCH)),
    )
    given = params(floats(BATCH, 11)[:, :2])
    kernels.sample_first_code(
        meta(BATCH, 4097, dtype=dtype), given, (1.0, 0.9), out(dtype, 2), past, 10, rows
    )


def embed(dtype: torch.dtype) -> None:
    table, tokens = meta(40960, HIDDEN, dtype=dtype), meta(9000, HIDDEN, dtype=dtype)
    kernels.embed_codes(integers(BATCH, 10), integers(10), table, tokens, 777, 11**0.5)


CASES: dict[str, Case] = {
    "embedding of frames": embed,
    "ranked sample": lambda t: ranked(t, 1),
    "ranked sample of the last code": lambda t: ranked(t, 0),
    "first code": first_code,
}
ALL = ((CASES, (torch.bfloat16, torch.float32)),)

if __name__ == "__main__":
    for cases, dtypes in ALL:
        compile_cases(cases, dtypes)
