"""The pre-norm decoder block that every family uses: RMSNorm, grouped-query attention, SwiGLU.

Projections are fused (QKV, gate-up) when the weights are loaded, before anything is captured.
Where keys and values live is the caller's business: `attend` is an argument.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch.nn.functional as F
from torch import Tensor, nn

from stentor.layers.norm import RMSNorm
from stentor.layers.rope import CosSin, Rope
from stentor.models.base import Attend


@dataclass(frozen=True)
class StackConfig:
    """Shape of one transformer stack. `layer_scale`: learned per-channel gains on both residual branches."""

    hidden: int
    ffn: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    eps: float
    qk_norm: bool = False
    qk_late_weight: bool = True  # rounding order of the q/k norms, see RMSNorm


class Attention(nn.Module):
    """Fused-QKV attention on x [..., hidden]; the last dimension of q, k, v splits into heads."""

    def __init__(self, c: StackConfig) -> None:
        super().__init__()
        self.widths = (c.heads * c.head_dim, c.kv_heads * c.head_dim, c.kv_heads * c.head_dim)
        self.head_dim = c.head_dim
        self.qkv_proj = nn.Linear(c.hidden, sum(self.widths), bias=False)
        self.o_proj = nn.Linear(c.heads * c.head_dim, c.hidden, bias=False)
        self.q_norm = RMSNorm(c.head_dim, c.eps, c.qk_late_weight) if c.qk_norm else nn.Identity()
        self.k_norm = RMSNorm(c.head_dim, c.eps, c.qk_late_weight) if c.qk_norm else nn.Identity()

    def forward(self, x: Tensor, layer: int, attend: Attend, rope: Rope | None, cos_sin: CosSin | None) -> Tensor:
        q, k, v = (t.unflatten(-1, (-1, self.head_dim)) for t in self.qkv_proj(x).split(self.widths, dim=-1))
        q, k = self.q_norm(q), self.k_norm(k)
        if rope is not None and cos_sin is not None:
            q, k = rope.rotate(q, cos_sin), rope.rotate(k, cos_sin)
        out: Tensor = self.o_proj(attend(layer, q, k, v).flatten(-2))
        return out


class SwiGLU(nn.Module):
    """down(silu(gate(x)) * up(x)), gate and up fused in that order."""

    def __init__(self, hidden: int, ffn: int) -> None:
        super().__init__()
        self.gate_up_proj = nn.Linear(hidden, 2 * ffn, bias=False)
        self.down_proj = nn.Linear(ffn, hidden, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        gate, up = self.gate_up_proj(x).chunk(2, dim=-1)
        out: Tensor = self.down_proj(F.silu(gate) * up)
        return out


class Block(nn.Module):
    def __init__(self, c: StackConfig) -> None:
        super().__init__()
        self.input_layernorm = RMSNorm(c.hidden, c.eps)
        self.self_attn = Attention(c)
        self.post_attention_layernorm = RMSNorm(c.hidden, c.eps)
        self.mlp = SwiGLU(c.hidden, c.ffn)

    def forward(self, x: Tensor, layer: int, attend: Attend, rope: Rope | None, cos_sin: CosSin | None) -> Tensor:
        x = x + self.self_attn(self.input_layernorm(x), layer, attend, rope, cos_sin)
        out: Tensor = x + self.mlp(self.post_attention_layernorm(x))
        return out


class Stack(nn.Module):
    """Blocks and the final norm. `first_layer` is the stack's offset in a key-value pool shared by several stacks."""

    def __init__(self, c: StackConfig, first_layer: int = 0) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Block(c) for _ in range(c.layers))
        self.norm = RMSNorm(c.hidden, c.eps)
        self.first_layer = first_layer

    def forward(self, x: Tensor, attend: Attend, rope: Rope | None = None, pos: Tensor | None = None) -> Tensor:
        """x [..., hidden] -> [..., hidden] after the final norm. `pos` [...] indexes `rope`; None: no positions."""
        cos_sin = rope.at(pos) if rope is not None and pos is not None else None
        for i, block in enumerate(self.layers):
            x = block(x, self.first_layer + i, attend, rope, cos_sin)
        out: Tensor = self.norm(x)
        return out
