"""Top-k and top-p sampling in one kernel, which may also write the embedding of the next token."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from stentor.kernels.pdl import pdl_wait
from stentor.kernels.sampling_device import (
    checked,
    key_bits,
    launch_args,
    load_logits,
    load_params,
    sample_top_k_top_p,
    store_sample,
)
from stentor.kernels.types import SampleOut, SamplingParams


@triton.jit(do_not_specialize=["stride_u", "stride_prefix"])
def _sample_kernel(
    logits_ptr, u_ptr, temperature_ptr, top_k_ptr, top_p_ptr, code_ptr, table_ptr, x_ptr, prefix_ptr, stride_logits,
    stride_u, stride_x, stride_prefix, vocab, hidden,
    MIN_TEMPERATURE: tl.constexpr, KEY_BITS: tl.constexpr, BLOCK: tl.constexpr, HAS_X: tl.constexpr,
    HAS_PREFIX: tl.constexpr, BLOCK_H: tl.constexpr, USE_PDL: tl.constexpr,
):  # fmt: skip
    pdl_wait(USE_PDL)
    row = tl.program_id(0).to(tl.int64)
    _, mask, logits = load_logits(logits_ptr, row, stride_logits, vocab, BLOCK)
    temperature, top_k, top_p = load_params(row, temperature_ptr, top_k_ptr, top_p_ptr)
    token = sample_top_k_top_p(
        logits, mask, vocab, temperature, top_k, top_p, tl.load(u_ptr + row * stride_u), MIN_TEMPERATURE, KEY_BITS
    )
    token = checked(token, logits)
    store_sample(
        token, row, code_ptr, table_ptr, x_ptr, prefix_ptr, stride_x, stride_prefix, hidden, HAS_X, HAS_PREFIX, BLOCK_H
    )


def sample_into(logits: Tensor, params: SamplingParams, out: SampleOut) -> None:
    """Sample an id per row of logits [B, V] in any floating dtype: by temperature, top-k and top-p, where temperature 0
    takes the largest logit. Writes the ids, and the token that follows from them, to `out`."""
    given, constants = launch_args(logits, params, out)
    _sample_kernel[(len(logits),)](*given, KEY_BITS=key_bits(logits), **constants)


def sample(logits: Tensor, u: Tensor, temperature: Tensor, top_k: Tensor, top_p: Tensor) -> Tensor:
    """`sample_into`, with ids [B] int64 as the result."""
    out = SampleOut(torch.empty(len(logits), dtype=torch.int64, device=logits.device))
    sample_into(logits, SamplingParams(u, temperature, top_k, top_p), out)
    return out.code
