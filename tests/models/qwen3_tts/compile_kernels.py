"""Compiles this family's kernels for a Hopper GPU, on any machine. test_kernels.py runs it in a process of its own."""

from __future__ import annotations

import torch
from torch import Tensor

from stentor.kernels.types import MinFrames, RowRef, SampleOut, SamplingParams
from stentor.models.qwen3_tts import kernels
from tests.helpers.compiled import Case, compile_cases, floats, integers, meta

BATCH, HIDDEN, BOOKS = 16, 2048, 16


def int32(*shape: int) -> Tensor:
    return meta(*shape, dtype=torch.int32)


def embed(dtype: torch.dtype) -> None:
    table, texts = meta(3072 * BOOKS, HIDDEN, dtype=dtype), meta(9000, HIDDEN, dtype=dtype)
    text_ids = RowRef(int32(65, 2048), integers(BATCH))
    kernels.embed_codes_and_text(int32(BATCH, BOOKS), integers(BOOKS), table, integers(BATCH), text_ids, texts, 777)


def prompt(dtype: torch.dtype, speaker: bool) -> None:
    table, texts = meta(3072 * BOOKS, HIDDEN, dtype=dtype), meta(9000, HIDDEN, dtype=dtype)
    frames = (int32(50, BOOKS), integers(BOOKS), table, integers(50))
    vectors = floats(300, HIDDEN) if speaker else None
    kernels.embed_prompt((int32(300), texts), (int32(300), table), vectors, frames)


def first_codebook(dtype: torch.dtype) -> None:
    table, x = meta(3072, 1024, dtype=dtype), meta(BATCH, 2, 1024, dtype=dtype)
    out = SampleOut(int32(BATCH), table, x, meta(BATCH, 1024, dtype=dtype))
    params = SamplingParams(floats(BATCH, 16)[:, 0], floats(BATCH), integers(BATCH), floats(BATCH))
    seen, rows = RowRef(meta(65, 3072, dtype=torch.bool), integers(BATCH)), MinFrames(integers(BATCH), integers(BATCH))
    logits = meta(BATCH, 3072, dtype=dtype)
    kernels.sample_first_codebook(logits, params, out, seen, floats(BATCH), rows, 1024, 2150)


CASES: dict[str, Case] = {
    "embedding of frames and text": embed,
    "embedding of a prompt": lambda t: prompt(t, speaker=False),
    "embedding of a prompt with a speaker": lambda t: prompt(t, speaker=True),
    "first codebook": first_codebook,
}
ALL = ((CASES, (torch.bfloat16, torch.float32)),)

if __name__ == "__main__":
    for cases, dtypes in ALL:
        compile_cases(cases, dtypes)
