"""Gated addition, layer norm and modulation by one kernel, against the formula."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import tests.helpers.kernel_tests  # noqa: F401  (first: it imports the kernels interpreted where there is no GPU)
from stentor.kernels.norm_rope import add_modulated_norm
from tests.helpers.kernel_tests import DTYPES, close, random

pytestmark = pytest.mark.usefixtures("kernel_test")

TOKENS, EPS = 3, 1e-5


def formula(
    x: Tensor, delta: Tensor | None, gate: Tensor, scale: Tensor, shift: Tensor
) -> tuple[Tensor, Tensor]:
    """Numbers [S or 1, C] of each sequence of x [S, T, C]."""
    total = x if delta is None else (x.float() + gate[:, None].float() * delta.float()).to(x.dtype)
    normed = F.layer_norm(total.float(), total.shape[-1:], eps=EPS)
    return total, (normed * scale[:, None].float() + shift[:, None].float()).to(x.dtype)


def check(x: Tensor, delta: Tensor | None, *numbers: Tensor) -> None:
    for got, want in zip(
        add_modulated_norm(x, delta, *numbers, EPS), formula(x, delta, *numbers), strict=True
    ):
        close(got, want)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("adds", [True, False])
@pytest.mark.parametrize("sequences", [1, 2, 16, 64])
def test_each_sequence_has_numbers_of_its_own(dtype, adds, sequences):
    x, table = random(sequences, TOKENS, 80, dtype=dtype), random(sequences, 6, 80, dtype=dtype)
    delta = random(sequences, TOKENS, 80, dtype=dtype) if adds else None
    check(x, delta, table[:, 2], table[:, 4], table[:, 3])


@pytest.mark.parametrize("dtype", DTYPES)
def test_all_sequences_may_share_their_numbers_or_some_of_them(dtype):
    x, delta = random(5, TOKENS, 80, dtype=dtype), random(5, TOKENS, 80, dtype=dtype)
    shared, own = random(1, 2, 80, dtype=dtype), random(5, 2, 80, dtype=dtype)
    check(x, delta, shared[:, 0], own[:, 0], own[:, 1])
    check(x, delta, own[:, 0], shared[:, 0], shared[:, 1])


@pytest.mark.parametrize("adds", [True, False])
def test_the_last_tokens_of_each_sequence_are_read_where_they_lie(adds):
    x, numbers = random(4, 7, 48)[:, -TOKENS:], random(4, 3, 48)
    check(x, random(4, 7, 48)[:, -TOKENS:] if adds else None, *numbers.unbind(1))


def test_what_lies_behind_a_row_is_not_read():
    """A width that fills no block, in a buffer that is otherwise NaN."""
    room = torch.full((2, TOKENS, 64), float("nan"), device=random(1).device)
    x, table = room[..., :40], torch.full_like(room, float("nan"))[..., :40]
    x.copy_(random(2, TOKENS, 40))
    table.copy_(random(2, TOKENS, 40))
    check(x, random(2, TOKENS, 40), *table.unbind(1))
