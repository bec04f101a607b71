"""Paged attention against plain dense computations."""

import torch

from stentor.engine.running.kv_cache import PagedKV
from stentor.layers.attention import causal
from stentor.layers.qk_norm_rope import NormRope
from stentor.models.base import KVSpec

F64 = torch.float64
CPU = torch.device("cpu")
PLAIN = NormRope()


def test_paged_prefill_and_decode_equal_dense_attention():
    """Three sequences of other lengths, packed, over shuffled pages; then one decode step each."""
    lengths, page = [5, 9, 2], 4
    kv = PagedKV(KVSpec(1, 2, 8, F64), slots=4, pages=12, page=page, max_pages=4, device=CPU)
    order = torch.randperm(12, generator=torch.Generator().manual_seed(0))
    slots = torch.tensor([3, 0, 2])
    for i, slot in enumerate(slots):
        kv.table[slot] = order[i * 4 : i * 4 + 4]
    q, k, v = (torch.randn(sum(lengths) + 3, h, 8, dtype=F64) for h in (4, 2, 2))
    row = torch.repeat_interleave(torch.arange(3), torch.tensor(lengths))
    pos = torch.cat([torch.arange(n) for n in lengths])
    view = kv.prefill_view(slots, row, slots[row], pos, max_pages=3, max_seqlen=max(lengths))
    n = sum(lengths)
    got = view.attend(0, q[:n], k[:n], v[:n], PLAIN)
    step = kv.decode_view(slots, torch.tensor(lengths), max_pages=3).attend(
        0, q[n:], k[n:], v[n:], PLAIN
    )
    start = 0
    for i, length in enumerate(lengths):
        part = list(range(start, start + length))
        whole = causal(0, *(t[[*part, n + i]][None] for t in (q, k, v)), PLAIN)[0]
        torch.testing.assert_close(got[part], whole[:-1])
        torch.testing.assert_close(step[i], whole[-1])
        start += length


def test_padding_rows_write_only_into_the_padding_page():
    kv = PagedKV(KVSpec(1, 1, 2, F64), slots=2, pages=3, page=2, max_pages=2, device=CPU)
    kv.table[0] = torch.tensor([1, 2])
    before = kv.pool[:, :, :3].clone()
    idx, pos = torch.tensor([2, 2]), torch.tensor([0, 1])
    kv.decode_view(idx, pos, 1).attend(
        0, *(torch.randn(2, 1, 2, dtype=F64) for _ in range(3)), PLAIN
    )
    assert torch.equal(kv.pool[:, :, :3], before)
