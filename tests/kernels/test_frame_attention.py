"""Attention of a decode step over page sets by frame, against scaled dot product attention of each row."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import tests.helpers.kernel_tests  # noqa: F401  (first: it imports the kernels interpreted where there is no GPU)
from stentor.kernels.configs import PagedConfig
from stentor.kernels.frame_attention import frame_attention
from stentor.kernels.types import QKNormRope
from stentor.layers.attention import sdpa
from stentor.layers.norm import RMSNorm
from stentor.layers.qk_norm_rope import NormRope, RopePositions
from stentor.layers.rope import Rope, angles
from tests.helpers.kernel_tests import DEVICE, DOTS, close, integers, random

pytestmark = pytest.mark.usefixtures("kernel_test")

UNIT, PAGES = 5, 9
CONFIG = PagedConfig(16, 4, 2)


class Step:
    """Two units of each request, as the flow head has them: the one before, which each row sees up to itself, and the
    one that is made. Places that nobody has stored are NaN."""

    def __init__(
        self,
        numbers: list[int],
        kept: list[bool],
        heads: int,
        group: int,
        dim: int,
        dtype: torch.dtype,
    ):
        """numbers: of the unit that is made. kept: whether the one before is stored, or is in the pages already."""
        count = len(numbers)
        self.pool = torch.full(
            (2, count * PAGES + 1, UNIT, heads, dim), float("nan"), device=DEVICE, dtype=dtype
        )
        self.table = torch.randperm(count * PAGES, device=DEVICE).view(count, PAGES)
        at = torch.arange(2 * UNIT, device=DEVICE)
        pos = (integers(*numbers)[:, None] - 1) * UNIT + at
        seen = torch.where(at < UNIT, pos, pos[:, -1:])
        self.kept = ((at >= UNIT) | torch.tensor(kept, device=DEVICE)[:, None]).flatten()
        self.pos, self.seen = pos.clamp_min(0).flatten(), seen.clamp_min(0).flatten()
        self.slot = torch.arange(count, device=DEVICE).flip(0)
        for slot, number, new in zip(self.slot, numbers, kept, strict=True):
            for page in range(number - new):
                self.pool[:, self.table[slot, page]] = random(2, UNIT, heads, dim, dtype=dtype)
        qkv = random(count * 2 * UNIT, (group + 2) * heads, dim, dtype=dtype)
        self.q, self.k, self.v = qkv.split((group * heads, heads, heads), dim=1)

    def run(self, pool: Tensor, norm_rope: NormRope) -> Tensor:
        left, positions, norm = None, norm_rope.positions, norm_rope.q_norm
        if positions is not None and norm is not None and norm_rope.k_norm is not None:
            norms = norm.weight, norm_rope.k_norm.weight, norm.eps, norm.weight_after_cast
            left = QKNormRope(positions.rope.cos, positions.rope.sin, False, True, norms)
        given = (self.table, self.slot, self.pos, self.seen, self.kept, self.q, self.k, self.v)
        return frame_attention(pool, *given, left, CONFIG)

    def expected(self, pool: Tensor, norm_rope: NormRope) -> Tensor:
        """Attention of each row over what is stored, after all rows that are kept have been."""
        q, k = norm_rope.apply(self.q, self.k)
        slot = self.slot.repeat_interleave(2 * UNIT)
        page, offset = self.table[slot, self.pos // UNIT], self.pos % UNIT
        for i in self.kept.nonzero().flatten():
            pool[0, page[i], offset[i]], pool[1, page[i], offset[i]] = k[i], self.v[i]
        rows = []
        for i in range(len(q)):
            keys, values = (
                part[self.table[slot[i]]].flatten(0, 1)[None, : self.seen[i] + 1] for part in pool
            )
            rows.append(sdpa(q[i][None, None], keys, values)[0, 0])
        return torch.stack(rows)


def norm_rope(dim: int, pos: Tensor, dtype: torch.dtype) -> NormRope:
    norms = [RMSNorm(dim, 1e-6, False).to(DEVICE, dtype) for _ in range(2)]
    for norm in norms:
        norm.weight.data = random(dim, dtype=dtype)
    rope = Rope(
        angles(dim, 2 * UNIT * PAGES, 1e4), torch.float32, interleaved=False, in_float32=True
    ).to(DEVICE)
    return NormRope(*norms, RopePositions(rope, pos))


def check(step: Step, positions: NormRope) -> None:
    stored, pool = step.pool.clone(), step.pool.clone()
    want, got = step.expected(stored, positions), step.run(pool, positions)
    close(got[step.kept], want[step.kept])
    is_free = stored.isnan()
    assert torch.equal(pool.isnan(), is_free), (
        "a place is written that is not kept, or one is not written"
    )
    close(pool[~is_free], stored[~is_free])


@pytest.mark.parametrize("dtype", DOTS)
@pytest.mark.parametrize(("heads", "group", "dim"), [(2, 1, 64), (1, 2, 16), (1, 1, 24)])
def test_rows_see_the_pages_and_each_other(dtype, heads, group, dim):
    step = Step([1, 8, 4, 3], [True, True, False, True], heads, group, dim, dtype)
    check(step, NormRope())
    check(step, norm_rope(dim, step.pos, dtype))


@pytest.mark.parametrize("count", [1, 16, 64])
def test_a_request_gets_the_same_bits_in_any_batch(count):
    numbers = [3 + i % 5 for i in range(count)]
    step = Step(numbers, [True] * count, 1, 1, 16, torch.float32)
    whole, last = step.run(step.pool, NormRope()), slice(-2 * UNIT, None)
    step.slot, step.pos, step.seen, step.kept = (
        step.slot[-1:],
        step.pos[last],
        step.seen[last],
        step.kept[last],
    )
    step.q, step.k, step.v = step.q[last], step.k[last], step.v[last]
    assert torch.equal(step.run(step.pool, NormRope()), whole[last])


def test_the_first_unit_sees_itself_alone():
    """Its request has nothing before it: the rows of the unit before stand nowhere."""
    step = Step([0, 2], [False, True], 1, 1, 16, torch.float32)
    check(step, norm_rope(16, step.pos, torch.float32))


def test_a_token_without_a_frame_stores_nothing_and_breaks_nobody():
    step = Step([4, 4], [True, True], 1, 1, 16, torch.float32)
    step.kept[: 2 * UNIT], step.pos[: 2 * UNIT], step.seen[: 2 * UNIT] = False, 0, 0
    step.q[: 2 * UNIT], step.k[: 2 * UNIT], step.v[: 2 * UNIT] = (float("nan"),) * 3
    check(step, NormRope())


def test_all_rows_are_kept_where_nothing_is_said_of_it():
    step = Step([2, 5], [True, True], 1, 1, 16, torch.float32)
    pool, other = step.pool.clone(), step.pool.clone()
    given = (step.table, step.slot, step.pos, step.seen)
    want = frame_attention(pool, *given, step.kept, step.q, step.k, step.v)
    assert torch.equal(frame_attention(other, *given, None, step.q, step.k, step.v), want)
    assert torch.equal(other.nan_to_num(), pool.nan_to_num())
