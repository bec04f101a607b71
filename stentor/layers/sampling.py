"""Sampling of ids inside the step. Parameters are tensors with one value per row, a sample takes
one uniform, and nothing is read on the host.

The order of the filters follows Hugging Face's processors: penalty, temperature, top-k, top-p.
"""

from __future__ import annotations

import torch
from torch import Tensor

from stentor import kernels
from stentor.kernels import Kernel
from stentor.kernels.constants import MIN_TEMPERATURE, NO_ID
from stentor.kernels.types import SampleOut, SamplingParams


def penalize_seen(logits: Tensor, seen: Tensor, penalty: Tensor) -> Tensor:
    """Repetition penalty (Keskar et al., 2019). logits [B, V], seen [B, V] bool, penalty [B]."""
    p = penalty[:, None]
    # Division would make a negative logit larger.
    penalized = torch.where(logits > 0, logits / p, logits * p)
    return torch.where(seen, penalized, logits)


def keep_top_k(logits: Tensor, k: Tensor) -> Tensor:
    """-inf outside the k [B] largest of each row. k <= 0 keeps all. Ties with the k-th value are
    kept."""
    vocab = logits.shape[-1]
    count = torch.where(k > 0, k, vocab).clamp(1, vocab)
    last = (count - 1)[:, None].long()
    # k differs between rows and stays on the device. torch.topk would need it on the host.
    ranked = logits.sort(dim=-1, descending=True).values
    kth = ranked.gather(-1, last)
    return logits.masked_fill(logits < kth, float("-inf"))


def keep_top_p(logits: Tensor, p: Tensor) -> Tensor:
    """Nucleus (Holtzman et al., 2020): the smallest set whose probability reaches p [B], with the
    crossing token."""
    ranked, order = logits.sort(dim=-1, descending=True)
    probabilities = ranked.softmax(-1)
    before = probabilities.cumsum(-1) - probabilities
    limited = (p < 1)[:, None]
    drop = (before >= p[:, None]) & limited
    # The most likely id stays, also for a p of 0.
    drop[:, 0] = False
    dropped_ids = torch.zeros_like(drop).scatter(-1, order, drop)
    return logits.masked_fill(dropped_ids, float("-inf"))


def sample_inverse_cdf(logits: Tensor, u: Tensor) -> Tensor:
    """One index per row [B] from softmax(logits [B, V]) by inverse CDF on u [B] in (0, 1)."""
    cdf = logits.softmax(-1).cumsum(-1)
    # Scaling by the last entry keeps a rounding deficit of the sum from selecting past the end.
    threshold = u[:, None] * cdf[:, -1:]
    return (cdf < threshold).sum(-1)


def drawable(logits: Tensor) -> Tensor:
    """[B] bool, the rows of logits [B, V] that can be drawn from: none is NaN or inf, and not all
    are -inf."""
    return logits.amax(-1).isfinite()  # a NaN is the largest


def sample(
    logits: Tensor,
    u: Tensor,
    temperature: Tensor,
    top_k: Tensor,
    top_p: Tensor,
) -> Tensor:
    """One index per row [B] of logits [B, V] in any floating dtype. Rows with temperature 0 take
    the argmax. All parameters are [B] tensors."""
    if kernels.enabled(Kernel.SAMPLE, logits):
        return kernels.sampling.sample(logits, u, temperature, top_k, top_p)
    logits = logits.float()
    divisor = temperature.clamp_min(MIN_TEMPERATURE)[:, None]
    filtered = keep_top_k(logits / divisor, top_k)
    filtered = keep_top_p(filtered, top_p)
    # Every row is sampled, also those that take the argmax: a branch would wait for the device.
    sampled = sample_inverse_cdf(filtered, u)
    token = torch.where(temperature > 0, sampled, logits.argmax(-1))
    return torch.where(drawable(logits), token, NO_ID)


def sample_into(logits: Tensor, params: SamplingParams, out: SampleOut) -> None:
    """`sample` from logits [B, V]. Writes the ids, and the embeddings of the next token, to
    `out`."""
    if kernels.enabled(Kernel.FUSED_SAMPLING, logits):
        kernels.sampling.sample_into(logits, params, out)
    else:
        store_sample(sample(logits, *params), out)


def store_sample(code: Tensor, out: SampleOut) -> None:
    """Write ids [B] and their embeddings as the fused samplers do, see `SampleOut`."""
    out.code.copy_(code)
    if out.table is None or out.x is None:
        return
    rows = code.clamp_min(0)
    torch.index_select(out.table, 0, rows, out=out.x[:, -1])
    if out.prefix is not None:
        out.x[:, -2] = out.prefix
