"""Paged attention, the depth cache and the block against plain dense computations."""

import torch
import torch.nn.functional as F

from stentor.engine.kv_cache import PagedKV
from stentor.layers.attention import DepthKV, causal
from stentor.layers.norm import RMSNorm
from stentor.layers.qk_norm_rope import NormRope
from stentor.layers.rope import Rope, angles
from stentor.layers.transformer import Stack, StackConfig
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
    step = kv.decode_view(slots, torch.tensor(lengths), max_pages=3).attend(0, q[n:], k[n:], v[n:], PLAIN)
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
    kv.decode_view(idx, pos, 1).attend(0, *(torch.randn(2, 1, 2, dtype=F64) for _ in range(3)), PLAIN)
    assert torch.equal(kv.pool[:, :, :3], before)


def test_the_depth_cache_equals_causal_attention_over_the_whole():
    q, k, v = (torch.randn(3, 6, h, 4, dtype=F64) for h in (4, 2, 2))
    whole = causal(0, q, k, v, PLAIN)
    cache = DepthKV(1, 3, 6, 2, 4, q)
    out = []
    for part in (slice(0, 2), slice(2, 3), slice(3, 6)):
        out.append(cache.attend(0, q[:, part], k[:, part], v[:, part], PLAIN))
        cache.advance(out[-1].shape[1])
    torch.testing.assert_close(torch.cat(out, 1), whole)


def test_rope_turns_pairs_by_their_angle_in_both_layouts():
    table = angles(4, 10, 100.0)
    x = torch.randn(3, 2, 4, dtype=F64)
    pos = torch.tensor([0, 4, 9])
    for interleaved, pairs in ((True, [(0, 1), (2, 3)]), (False, [(0, 2), (1, 3)])):
        rope = Rope(table, torch.float32, interleaved, in_float32=False)
        y = rope.rotate(x, rope.at(pos))
        for j, (a, b) in enumerate(pairs):
            angle = table[pos, j].double()[:, None]
            turned = torch.complex(x[..., a], x[..., b]) * torch.polar(torch.ones_like(angle), angle)
            torch.testing.assert_close(torch.complex(y[..., a], y[..., b]), turned, rtol=1e-6, atol=1e-6)


def test_rms_norm_rounds_where_it_says():
    x = torch.randn(64, dtype=torch.bfloat16)
    for late in (True, False):
        norm = RMSNorm(64, 1e-5, late)
        norm.weight.data = torch.rand(64).bfloat16()
        y = x.float() * torch.rsqrt(x.float().pow(2).mean() + 1e-5)
        expected = y.bfloat16() * norm.weight if late else (y * norm.weight.float()).bfloat16()
        assert torch.equal(norm(x), expected)


def test_a_stack_equals_its_plain_formula():
    c = StackConfig(hidden=8, ffn=12, layers=1, heads=2, kv_heads=1, head_dim=4, eps=1e-6, qk_norm=True)
    stack = Stack(c).double()
    for p in stack.parameters():
        p.data = torch.randn(p.shape, dtype=F64)
    rope = Rope(angles(4, 16, 1e4), torch.float32, interleaved=False, in_float32=False)
    x, pos = torch.randn(1, 5, 8, dtype=F64), torch.arange(5)

    def rms(t: torch.Tensor, n: RMSNorm) -> torch.Tensor:
        return F.rms_norm(t.float(), t.shape[-1:], eps=1e-6).double() * n.weight

    b = stack.layers[0]
    h = rms(x, b.input_layernorm) @ b.self_attn.qkv_proj.weight.T
    q, k, v = h[..., :8].unflatten(-1, (2, 4)), h[..., 8:12].unflatten(-1, (1, 4)), h[..., 12:].unflatten(-1, (1, 4))
    q, k = (rope.rotate(rms(t, n), rope.at(pos)) for t, n in ((q, b.self_attn.q_norm), (k, b.self_attn.k_norm)))
    y = x + causal(0, q, k, v, PLAIN).flatten(-2) @ b.self_attn.o_proj.weight.T
    gate, up = (rms(y, b.post_attention_layernorm) @ b.mlp.gate_up_proj.weight.T).chunk(2, -1)
    y = y + (F.silu(gate) * up) @ b.mlp.down_proj.weight.T
    torch.testing.assert_close(stack(x, causal, rope, pos), rms(y, stack.norm), rtol=1e-5, atol=1e-5)
