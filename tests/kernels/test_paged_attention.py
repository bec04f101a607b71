"""Attention over pages, against scaled dot product attention."""

from __future__ import annotations

import pytest
import torch

import tests.helpers.kernel_tests  # noqa: F401  (first: it imports the kernels interpreted where there is no GPU)
from stentor.kernels import paged_attention
from stentor.kernels.configs import PagedConfig
from stentor.kernels.types import TextWindow
from stentor.layers.attention import sdpa
from tests.helpers.kernel_tests import DEVICE, DOTS, close, random
from tests.helpers.projected_qkv import NORM_ROPES, RandomNormRope, projected

pytestmark = pytest.mark.usefixtures("kernel_test")


@pytest.mark.parametrize("dtype", DOTS)
@pytest.mark.parametrize(("heads", "group", "dim"), [(2, 2, 128), (2, 8, 64), (1, 4, 12)])
def test_paged_attention_reads_lengths_and_tables_and_stores_the_token(dtype, heads, group, dim):
    page, pages, slots = 4, 64, 5
    pool = random(2, pages + 1, page, heads, dim, dtype=dtype)
    table = torch.full((slots + 1, 12), pages, device=DEVICE)
    table[:slots] = torch.randperm(pages, device=DEVICE)[: slots * 12].view(slots, 12)
    slot = torch.tensor([3, 0, slots, 4], device=DEVICE)
    pos = torch.tensor([0, 17, 0, 46], device=DEVICE)
    q, k, v = projected(4, heads=heads, group=group, dim=dim, dtype=dtype)
    want_pool = pool.clone()
    want_pool[0, table[slot, pos // page], pos % page] = k
    want_pool[1, table[slot, pos // page], pos % page] = v
    rows = []
    for i in range(4):
        keys, values = (
            part[table[slot[i]]].flatten(0, 1)[None, : pos[i] + 1] for part in want_pool
        )
        rows.append(sdpa(q[i][None, None], keys, values)[0, 0])
    out = paged_attention.paged_attention(pool, table, slot, pos, q, k, v)
    assert torch.equal(pool, want_pool)
    close(out, torch.stack(rows))


@pytest.mark.parametrize("dtype", DOTS)
@pytest.mark.parametrize(
    "config", [PagedConfig(16, 1, 3, num_splits=4), PagedConfig(32, 2, 2), PagedConfig(16, 4, 4)]
)
def test_however_a_history_is_split_a_row_gives_the_same_and_minds_no_other_row(dtype, config):
    heads, group, dim, page = 2, 4, 64, 16
    pool, table = (
        random(2, 25, page, heads, dim, dtype=dtype),
        torch.randperm(24, device=DEVICE).view(3, 8),
    )
    slot = torch.tensor([2, 0, 1, 1], device=DEVICE)
    pos = torch.tensor([127, 0, 15, 16], device=DEVICE)
    q, k, v = (random(4, n, dim, dtype=dtype) for n in (heads * group, heads, heads))
    attend, qkv = paged_attention.paged_attention, (q, k, v)
    got = attend(pool.clone(), table, slot, pos, *qkv, config=config)
    close(got, attend(pool.clone(), table, slot, pos, *qkv))
    some = attend(pool.clone(), table, slot[1:3], pos[1:3], *(t[1:3] for t in qkv), config=config)
    assert torch.equal(got[1:3], some)


@pytest.mark.parametrize("dtype", DOTS)
@pytest.mark.parametrize("options", NORM_ROPES)
def test_paged_attention_applies_norms_and_rope_as_the_layers_do(dtype, options):
    heads, group, dim = 1, 2, 24
    norm_rope = RandomNormRope(dim, dtype, *options)
    q, k, v = projected(2, heads=heads, group=group, dim=dim, dtype=dtype)
    pool, table = (
        random(2, 10, 4, heads, dim, dtype=dtype),
        torch.randperm(9, device=DEVICE).view(3, 3),
    )
    pos, slot = torch.tensor([0, 11], device=DEVICE), torch.tensor([2, 1], device=DEVICE)
    applied = norm_rope.apply(q, k, pos)
    pools = pool.clone(), pool.clone()
    got = paged_attention.paged_attention(pools[0], table, slot, pos, q, k, v, norm_rope.args)
    close(got, paged_attention.paged_attention(pools[1], table, slot, pos, *applied, v))
    close(*pools)


@pytest.mark.parametrize("dtype", DOTS)
@pytest.mark.parametrize(
    "config", [None, PagedConfig(16, 1, 3, num_splits=4)], ids=["whole", "in splits"]
)
def test_of_its_text_a_row_sees_the_part_around_its_place_and_all_that_is_around_the_text(
    dtype, config
):
    heads, group, dim, page = 2, 2, 64, 4
    pool, table = (
        random(2, 61, page, heads, dim, dtype=dtype),
        torch.randperm(60, device=DEVICE).view(3, 20),
    )
    slot, pos = torch.tensor([2, 0, 1], device=DEVICE), torch.tensor([79, 41, 70], device=DEVICE)
    start, end, place = (
        [3, 40, 0],
        [66, 41, 70],
        [31, 0, 68],
    )  # the last one's splits see nothing but what is late
    window = TextWindow(
        (0,),
        *(torch.tensor(t, device=DEVICE) for t in (start, end)),
        torch.tensor(place, device=DEVICE).float(),
        1,
        4,
    )
    q, k, v = (random(3, n, dim, dtype=dtype) for n in (heads * group, heads, heads))
    got = paged_attention.paged_attention(
        pool, table, slot, pos, q, k, v, config=config, window=window
    )
    rows = []
    for i in range(3):
        first, last = max(start[i], start[i] + place[i] - 1), min(end[i], start[i] + place[i] + 5)
        visible = [*range(start[i]), *range(first, last), *range(end[i], int(pos[i]) + 1)]
        keys, values = (part[table[slot[i]]].flatten(0, 1)[None, visible] for part in pool)
        rows.append(sdpa(q[i][None, None], keys, values)[0, 0])
    close(got, torch.stack(rows))
