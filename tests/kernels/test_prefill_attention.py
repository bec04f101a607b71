"""Attention of packed prompts over pages, against scaled dot product attention of each token over its history."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import tests.helpers.kernel_tests  # noqa: F401  (first: it imports the kernels interpreted where there is no GPU)
from stentor.kernels.configs import PrefillConfig
from stentor.kernels.prefill_attention import prefill_attention
from stentor.kernels.types import TextWindow
from stentor.layers.attention import sdpa
from tests.helpers.kernel_tests import DEVICE, DOTS, close, integers, random

pytestmark = pytest.mark.usefixtures("kernel_test")

CONFIG = PrefillConfig(16, 16, 4, 2)
PROMPTS = ((3, 0, 21), (0, 30, 9), (4, 0, 1), (1, 15, 2), (5, 0, 0), (5, 0, 0))
"""Slot, first position and last position - first of the packed prompts. Slot 5 is padding."""


def packed(prompts: tuple[tuple[int, int, int], ...]) -> tuple[Tensor, Tensor]:
    """Slot and position of each token."""
    tokens = [
        (slot, pos) for slot, first, more in prompts for pos in range(first, first + more + 1)
    ]
    return integers(*(s for s, _ in tokens)), integers(*(p for _, p in tokens))


class Pages:
    """A pool whose pages are dealt out at random, and what attention over it should give."""

    def __init__(self, heads: int, dim: int, dtype: torch.dtype, page: int = 4) -> None:
        self.pool = random(2, 61, page, heads, dim, dtype=dtype)
        self.table = torch.randperm(60, device=DEVICE).view(6, 10)

    def reference(self, slot: Tensor, pos: Tensor, q: Tensor) -> Tensor:
        rows = []
        for i in range(len(q)):
            keys, values = (
                part[self.table[slot[i]]].flatten(0, 1)[None, : pos[i] + 1] for part in self.pool
            )
            rows.append(sdpa(q[i][None, None], keys, values)[0, 0])
        return torch.stack(rows)


@pytest.mark.parametrize("dtype", DOTS)
@pytest.mark.parametrize(("heads", "group", "dim"), [(2, 2, 128), (1, 8, 64), (1, 3, 12)])
def test_every_token_sees_its_own_history_up_to_its_own_position(dtype, heads, group, dim):
    slot, pos = packed(PROMPTS)
    pages, q = Pages(heads, dim, dtype), random(len(slot), heads * group, dim, dtype=dtype)
    close(
        prefill_attention(pages.pool, pages.table, slot, pos, q, CONFIG),
        pages.reference(slot, pos, q),
    )
    close(prefill_attention(pages.pool, pages.table, slot, pos, q), pages.reference(slot, pos, q))


@pytest.mark.parametrize("dtype", DOTS)
def test_a_prompt_gives_the_same_bits_alone_and_in_pieces_and_beside_others(dtype):
    slot, pos = packed(PROMPTS)
    pages, q = Pages(2, 64, dtype), random(len(slot), 4, 64, dtype=dtype)
    together = prefill_attention(pages.pool, pages.table, slot, pos, q, CONFIG)
    for first, end in ((0, 22), (0, 13), (13, 22), (22, 32), (31, 37)):
        part = slice(first, end)
        alone = prefill_attention(pages.pool, pages.table, slot[part], pos[part], q[part], CONFIG)
        # Interpreted, a row's sums depend on where numpy's GEMM finds it in a block. On a GPU they do not.
        atol = 0.0 if DEVICE == "cuda" else 2e-6
        torch.testing.assert_close(together[part], alone, rtol=0.0, atol=atol)


def test_values_that_are_not_numbers_reach_no_other_request():
    slot, pos = packed(PROMPTS)
    pages, q = Pages(1, 16, torch.float32), random(len(slot), 2, 16)
    want = prefill_attention(pages.pool, pages.table, slot, pos, q, CONFIG)
    pages.pool[1, pages.table[0]] = float("nan")
    got = prefill_attention(pages.pool, pages.table, slot, pos, q, CONFIG)
    assert got[slot == 0].isnan().all()
    assert torch.equal(got[slot != 0], want[slot != 0])


@pytest.mark.parametrize("dtype", DOTS)
@pytest.mark.parametrize("alone", [False, True])
def test_a_frame_sees_of_its_text_what_is_around_its_own_place(dtype, alone):
    slot, pos = packed(((3, 21, 6), (0, 30, 2), (4, 17, 0)))
    pages, q = Pages(1, 64, dtype), random(len(slot), 2, 64, dtype=dtype)
    start, end = integers(*[2] * 7, *[0] * 3, 5), integers(*[20] * 7, *[30] * 3, 17)
    place = integers(0, 0, 1, 5, 9, 13, 17, 3, 29, 29, 8)
    window = TextWindow((0,), start, end, place.float(), 1, 4)
    got = prefill_attention(pages.pool, pages.table, slot, pos, q, CONFIG, alone, window)
    for i in range(len(slot)):
        at = torch.arange(int(pos[i]) + 1, device=DEVICE)
        near = (at >= start[i] + place[i] - 1) & (at <= start[i] + place[i] + 4)
        visible = at[near | (at < start[i]) | (at >= end[i])]
        keys, values = (
            part[pages.table[slot[i]]].flatten(0, 1)[None, visible] for part in pages.pool
        )
        close(got[i], sdpa(q[i][None, None], keys, values)[0, 0])
