"""Cases for samplers in kernels: parameters that switch each filter on and off, and where a sampler may write."""

from __future__ import annotations

from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor

from stentor.kernels.buffers import empty_aligned
from stentor.kernels.types import SampleOut, SamplingParams
from tests.helpers.kernel_tests import DEVICE, random

HIDDEN = 40


def sampling_params(batch: int, size: int) -> SamplingParams:
    """Parameters that switch each filter on and off."""
    temperature = torch.tensor([0.0, 0.7, 1.0, 1.3], device=DEVICE).repeat(batch)[:batch]
    top_k = torch.tensor([0, 5, size + 3, 1, 30], device=DEVICE).repeat(batch)[:batch]
    top_p = torch.tensor([1.0, 0.8, 0.3], device=DEVICE).repeat(batch)[:batch]
    return SamplingParams(torch.rand(batch, 3, device=DEVICE)[:, 1], temperature, top_k, top_p)


def check_sample(out: SampleOut, want: Tensor, most_differ: float = 0.0) -> None:
    """Codes, but for draws on a boundary; and the tokens that follow from them."""
    got = out.code.long()
    assert (got != want).float().mean() <= most_differ, (got, want)
    if out.x is not None:
        assert torch.equal(out.x[:, -1], F.embedding(got, out.table))
        if out.prefix is not None:
            assert torch.equal(out.x[:, 0], out.prefix)


def sample_outs(
    batch: int, size: int, dtype: torch.dtype, codes: torch.dtype
) -> Iterator[SampleOut]:
    """Where draws may go: codes alone, one token, two tokens."""
    table = random(2 * size, HIDDEN, dtype=dtype)[size:]
    code = empty_aligned(3, batch, codes, torch.device(DEVICE))
    yield SampleOut(code[0])
    yield SampleOut(
        code[1], table, torch.full((batch, 1, HIDDEN), float("nan"), device=DEVICE, dtype=dtype)
    )
    front = random(batch, 3, HIDDEN, dtype=dtype)[:, 2]
    yield SampleOut(
        code[2],
        table,
        torch.full((batch, 2, HIDDEN), float("nan"), device=DEVICE, dtype=dtype),
        front,
    )


def sampling_cases(batch: int, size: int) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Logits with ties, and parameters that switch each filter on and off."""
    logits = (random(batch, size) * 3).to(torch.bfloat16).float()
    temperature = torch.tensor([0.0, 0.7, 1.0, 1.3], device=DEVICE).repeat(batch // 4)
    top_k = torch.tensor([0, 5, size + 3, 1, 30], device=DEVICE).repeat(batch)[:batch]
    top_p = torch.tensor([1.0, 0.8, 0.3], device=DEVICE).repeat(batch)[:batch]
    return logits, torch.rand(batch, device=DEVICE), temperature, top_k, top_p


def agree(got: Tensor, want: Tensor, logits: Tensor) -> None:
    """Check that ids are equal, except for draws on a boundary between two tokens."""
    assert got.dtype == torch.int64
    assert ((got >= 0) & (got < logits.shape[1])).all()
    assert (got == want).float().mean() >= 0.96, (got, want)
