"""Attention by kernels, against scaled dot product attention."""

from __future__ import annotations

import pytest
import torch

import tests.helpers.kernel_tests  # noqa: F401  (first: it imports the kernels interpreted where there is no GPU)
from stentor.kernels import attention
from stentor.kernels.configs import LocalConfig, PagedConfig
from stentor.kernels.types import QKNormRope
from stentor.layers.attention import DepthKV, sdpa
from stentor.layers.norm import RMSNorm
from stentor.layers.qk_norm_rope import NormRope
from stentor.layers.rope import Rope, angles
from tests.helpers.kernel_tests import DEVICE, DOTS, DTYPES, close, random

pytestmark = pytest.mark.usefixtures("kernel_test")

TURNS = [(True, True, True, False), (False, False, True, True), (True, True, False, False), (False, True, True, True)]


@pytest.mark.parametrize("dtype", DTYPES if DEVICE == "cuda" else [torch.float32])  # interpreted, tl.dot has no bf16
@pytest.mark.parametrize(("heads", "group", "dim"), [(2, 2, 128), (2, 8, 64), (1, 4, 12)])
def test_paged_attention_reads_lengths_and_tables_and_stores_the_token(dtype, heads, group, dim):
    page, pages, slots = 4, 64, 5
    pool = random(2, pages + 1, page, heads, dim, dtype=dtype)
    table = torch.full((slots + 1, 12), pages, device=DEVICE)
    table[:slots] = torch.randperm(pages, device=DEVICE)[: slots * 12].view(slots, 12)
    slot = torch.tensor([3, 0, slots, 4], device=DEVICE)
    pos = torch.tensor([0, 17, 0, 46], device=DEVICE)
    qkv = random(4, (group + 2) * heads * dim, dtype=dtype)
    q, k, v = (t.unflatten(-1, (-1, dim)) for t in qkv.split((group * heads * dim, heads * dim, heads * dim), -1))
    want_pool = pool.clone()
    want_pool[0, table[slot, pos // page], pos % page] = k
    want_pool[1, table[slot, pos // page], pos % page] = v
    rows = []
    for i in range(4):
        keys, values = (part[table[slot[i]]].flatten(0, 1)[None, : pos[i] + 1] for part in want_pool)
        rows.append(sdpa(q[i][None, None], keys, values)[0, 0])
    out = attention.paged_attention(pool, table, slot, pos, q, k, v)
    assert torch.equal(pool, want_pool)
    close(out, torch.stack(rows))
    again = attention.paged_prefill_attention(pool, table, slot, pos, q)
    assert torch.equal(pool, want_pool)
    close(again, torch.stack(rows))


@pytest.mark.parametrize("dtype", DOTS)
@pytest.mark.parametrize("config", [PagedConfig(16, 1, 3, num_splits=4), PagedConfig(32, 2, 2), PagedConfig(16, 4, 4)])
def test_however_a_history_is_split_a_row_gives_the_same_and_minds_no_other_row(dtype, config):
    heads, group, dim, page = 2, 4, 64, 16
    pool, table = random(2, 25, page, heads, dim, dtype=dtype), torch.randperm(24, device=DEVICE).view(3, 8)
    slot = torch.tensor([2, 0, 1, 1], device=DEVICE)
    pos = torch.tensor([127, 0, 15, 16], device=DEVICE)
    q, k, v = (random(4, n, dim, dtype=dtype) for n in (heads * group, heads, heads))
    qkv = (q, k, v)
    for attend, given in ((attention.paged_prefill_attention, qkv[:1]), (attention.paged_attention, qkv)):
        got = attend(pool.clone(), table, slot, pos, *given, config=config)
        close(got, attend(pool.clone(), table, slot, pos, *given))
        some = attend(pool.clone(), table, slot[1:3], pos[1:3], *(t[1:3] for t in given), config=config)
        assert torch.equal(got[1:3], some)


@pytest.mark.parametrize("dtype", DOTS)
@pytest.mark.parametrize("config", [LocalConfig(1, 1), LocalConfig(2, 2), LocalConfig(4, 4)])
def test_short_sequences_give_the_same_however_many_heads_a_program_serves(dtype, config):
    q, k, v = (random(3, 11, n, 64, dtype=dtype) for n in (8, 2, 2))
    rope = Rope(angles(64, 16, 1e4), torch.bfloat16, False, True).to(DEVICE)
    turn = QKNormRope(rope.cos, rope.sin, False, True, None)
    pos = torch.arange(11, device=DEVICE)
    want = sdpa(rope.rotate(q[:, 7:], rope.at(pos[7:])), rope.rotate(k, rope.at(pos)), v)
    close(attention.local_attention(q[:, 7:], k, v, turn, 7, config), want)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("heads", "group", "dim"), [(2, 2, 128), (1, 4, 20)])
def test_depth_attention_equals_the_scratch_cache_step_by_step(dtype, heads, group, dim):
    batch, positions = 3, 6
    plain = DepthKV(1, batch, positions, heads, dim, random(1, dtype=dtype))
    cache = torch.full_like(plain.cache[0], float("nan"))
    for new in (2, 1, 1, 2):
        qkv = random(batch, new, (group + 2) * heads * dim, dtype=dtype)
        q, k, v = (t.unflatten(-1, (-1, dim)) for t in qkv.split((group * heads * dim, heads * dim, heads * dim), -1))
        out = attention.depth_attention(cache, plain.length, q, k, v)
        close(out, plain.attend(0, q, k, v, NormRope()))
        plain.advance(new)
        assert torch.equal(cache[:, :, : plain.length], plain.cache[0][:, :, : plain.length])


@pytest.mark.parametrize("dtype", DOTS)
@pytest.mark.parametrize(("queries", "keys", "heads", "group", "dim"), [(11, 11, 2, 8, 128), (1, 5, 1, 2, 24)])
def test_local_attention_sees_every_token_and_nothing_else(dtype, queries, keys, heads, group, dim):
    q = random(3, queries, heads * group, dim, dtype=dtype)
    kv = random(3, keys, 2 * heads * dim, dtype=dtype)
    k, v = (t.unflatten(-1, (-1, dim)) for t in kv.chunk(2, -1))
    close(attention.local_attention(q, k, v), sdpa(q, k, v))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("interleaved", "in_float32", "normed", "late"), TURNS)
def test_attention_turns_queries_and_keys_as_norm_and_rope_do(dtype, interleaved, in_float32, normed, late):
    heads, group, dim = 1, 2, 24
    rope = Rope(angles(dim, 60, 1e4), torch.bfloat16, interleaved, in_float32).to(DEVICE)
    norms = [RMSNorm(dim, 1e-6, late).to(DEVICE, dtype) for _ in range(2)]
    for n in norms:
        n.weight.data = random(dim, dtype=dtype)
    given = (norms[0].weight, norms[1].weight, 1e-6, late) if normed else None
    turn = QKNormRope(rope.cos, rope.sin, interleaved, in_float32, given)
    qkv = random(2, 5, (group + 2) * heads * dim, dtype=dtype)
    q, k, v = (t.unflatten(-1, (-1, dim)) for t in qkv.split((group * heads * dim, heads * dim, heads * dim), -1))

    def placed(x, norm, pos):
        return rope.rotate(norm(x) if normed else x, rope.at(pos))

    pos = torch.arange(5, device=DEVICE)
    a, b = placed(q, norms[0], pos), placed(k, norms[1], pos)
    if dtype in DOTS:
        close(attention.local_attention(q[:, 3:], k, v, turn, 3), sdpa(a[:, 3:], b, v))
    plain = DepthKV(1, 2, 6, heads, dim, q)
    cache = torch.full_like(plain.cache[0], float("nan"))
    for part in (slice(0, 2), slice(2, 3), slice(3, 5)):
        out = attention.depth_attention(cache, part.start, q[:, part], k[:, part], v[:, part], turn)
        close(out, plain.attend(0, a[:, part], b[:, part], v[:, part], NormRope()))
        plain.advance(part.stop - part.start)
    close(cache[:, :, :5], plain.cache[0][:, :, :5])
    if dtype in DOTS:
        pool, table = random(2, 10, 4, heads, dim, dtype=dtype), torch.randperm(9, device=DEVICE).view(3, 3)
        pos, slot = torch.tensor([0, 11], device=DEVICE), torch.tensor([2, 1], device=DEVICE)
        ready = placed(q[:, 0], norms[0], pos), placed(k[:, 0], norms[1], pos), v[:, 0]
        pools = pool.clone(), pool.clone()
        raw = q[:, 0], k[:, 0], v[:, 0]
        got = attention.paged_attention(pools[0], table, slot, pos, *raw, turn)
        close(got, attention.paged_attention(pools[1], table, slot, pos, *ready))
        close(*pools)
