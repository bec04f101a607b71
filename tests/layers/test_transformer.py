"""The transformer stack against its plain formula."""

import torch
import torch.nn.functional as F

from stentor.layers.attention import causal
from stentor.layers.configs import StackConfig
from stentor.layers.norm import RMSNorm
from stentor.layers.qk_norm_rope import NormRope
from stentor.layers.rope import Rope, angles
from stentor.layers.transformer import Stack

F64 = torch.float64
PLAIN = NormRope()


def test_a_stack_equals_its_plain_formula():
    c = StackConfig(
        hidden=8, ffn=12, layers=1, heads=2, kv_heads=1, head_dim=4, eps=1e-6, qk_norm=True
    )
    stack = Stack(c).double()
    for p in stack.parameters():
        p.data = torch.randn(p.shape, dtype=F64)
    rope = Rope(angles(4, 16, 1e4), torch.float32, interleaved=False, in_float32=False)
    x, pos = torch.randn(1, 5, 8, dtype=F64), torch.arange(5)

    def rms(t: torch.Tensor, n: RMSNorm) -> torch.Tensor:
        return F.rms_norm(t.float(), t.shape[-1:], eps=1e-6).double() * n.weight

    b = stack.layers[0]
    h = rms(x, b.input_layernorm) @ b.self_attn.qkv_proj.weight.T
    q, k, v = (
        h[..., :8].unflatten(-1, (2, 4)),
        h[..., 8:12].unflatten(-1, (1, 4)),
        h[..., 12:].unflatten(-1, (1, 4)),
    )
    q, k = (
        rope.rotate(rms(t, n), rope.at(pos))
        for t, n in ((q, b.self_attn.q_norm), (k, b.self_attn.k_norm))
    )
    y = x + causal(0, q, k, v, PLAIN).flatten(-2) @ b.self_attn.o_proj.weight.T
    gate, up = (rms(y, b.post_attention_layernorm) @ b.mlp.gate_up_proj.weight.T).chunk(2, -1)
    y = y + (F.silu(gate) * up) @ b.mlp.down_proj.weight.T
    torch.testing.assert_close(
        stack(x, causal, rope, pos), rms(y, stack.norm), rtol=1e-5, atol=1e-5
    )


def test_without_positions_a_sequence_starts_at_0():
    stack = Stack(
        StackConfig(hidden=8, ffn=12, layers=2, heads=2, kv_heads=1, head_dim=4, eps=1e-6)
    )
    rope = Rope(angles(4, 16, 1e4), torch.float32, interleaved=False, in_float32=False)
    x = torch.randn(2, 5, 8)
    torch.testing.assert_close(stack(x, causal, rope), stack(x, causal, rope, torch.arange(5)))


def test_no_tokens_have_no_states():
    stack = Stack(
        StackConfig(hidden=8, ffn=12, layers=2, heads=2, kv_heads=1, head_dim=4, eps=1e-6)
    )

    def attend(layer, q, k, v, norm_rope):
        assert q.shape == (0, 2, 4)
        assert k.shape == v.shape == (0, 1, 4)
        return q

    assert stack(torch.randn(0, 8), attend).shape == (0, 8)
