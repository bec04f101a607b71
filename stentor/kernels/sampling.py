"""Top-k and top-p sampling in one kernel, which may also write the embedding of the next token."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from stentor.kernels.pdl import pdl_wait
from stentor.kernels.sampling_device import (
    key_bits,
    launch_args,
    load_logits,
    load_params,
    sample_top_k_top_p,
    store_sample,
)
from stentor.kernels.types import SampleOut, SamplingParams


@triton.jit(do_not_specialize=["u_row", "prefix_row"])
def _sample_kernel(
    logits, uniforms, temperatures, top_ks, top_ps, codes, table, x, prefix, row_stride, u_row, x_row, prefix_row, size,
    hidden, LEAST: tl.constexpr, BITS: tl.constexpr, BLOCK: tl.constexpr, PUT: tl.constexpr, PREFIX: tl.constexpr,
    WIDTH: tl.constexpr, USE_PDL: tl.constexpr,
):  # fmt: skip
    pdl_wait(USE_PDL)
    row = tl.program_id(0).to(tl.int64)
    _, inside, raw = load_logits(logits, row, row_stride, size, BLOCK)
    temperature, k, p = load_params(row, temperatures, top_ks, top_ps)
    chosen = sample_top_k_top_p(raw, inside, size, temperature, k, p, tl.load(uniforms + row * u_row), LEAST, BITS)
    store_sample(chosen, row, codes, table, x, prefix, x_row, prefix_row, hidden, PUT, PREFIX, WIDTH)


def sample_into(logits: Tensor, params: SamplingParams, out: SampleOut) -> None:
    """Sample an id per row of logits [B, V] in any floating dtype: by temperature, top-k and top-p, where temperature 0
    takes the largest logit. Writes the ids, and the token that follows from them, to `out`."""
    given, constants = launch_args(logits, params, out)
    _sample_kernel[(len(logits),)](*given, BITS=key_bits(logits), **constants)


def sample(logits: Tensor, u: Tensor, temperature: Tensor, top_k: Tensor, top_p: Tensor) -> Tensor:
    """`sample_into`, with ids [B] int64 as the result."""
    out = SampleOut(torch.empty(len(logits), dtype=torch.int64, device=logits.device))
    sample_into(logits, SamplingParams(u, temperature, top_k, top_p), out)
    return out.code
