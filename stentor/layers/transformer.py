"""The pre-norm decoder block that every family uses: RMSNorm, grouped-query attention, SwiGLU.

Projections are fused (QKV, gate-up) when the weights are loaded, before anything is captured.
Where keys and values live is the caller's business: `attend` is an argument.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from stentor import kernels
from stentor.kernels import Kernel
from stentor.kernels.types import QKNormRope
from stentor.layers.attention import Turning
from stentor.layers.norm import RMSNorm
from stentor.layers.rope import CosSin, Rope
from stentor.layers.types import Attend


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
        out: Tensor = self.o_proj(self.mixed(self.qkv_proj(x), layer, attend, rope, cos_sin))
        return out

    def mixed(self, qkv: Tensor, layer: int, attend: Attend, rope: Rope | None, cos_sin: CosSin | None) -> Tensor:
        """What the output projection takes, from what the fused projection gives."""
        parts = torch.split(qkv, list(self.widths), dim=-1)
        q, k, v = (t.view(*t.shape[:-1], -1, self.head_dim) for t in parts)
        if rope is not None and isinstance(attend, Turning) and attend.turns(qkv):
            return attend.turned(layer, q, k, v, self.turn(rope)).flatten(-2)
        q, k = self._place(q, k, rope, cos_sin)
        return attend(layer, q, k, v).flatten(-2)

    def turn(self, rope: Rope) -> QKNormRope:
        """Head norms and positions as attention kernels do them."""
        a, b = self.q_norm, self.k_norm
        norms = None
        if isinstance(a, RMSNorm) and isinstance(b, RMSNorm):
            norms = (a.weight, b.weight, a.eps, a.late_weight)
        return QKNormRope(rope.cos, rope.sin, rope.interleaved, rope.in_float32, norms)

    def _place(self, q: Tensor, k: Tensor, rope: Rope | None, cos_sin: CosSin | None) -> tuple[Tensor, Tensor]:
        """Head norms, then positions."""
        if rope is None or cos_sin is None:
            return self.q_norm(q), self.k_norm(k)
        if kernels.enabled(Kernel.ROPE, q):
            a, b = self.q_norm, self.k_norm
            rotation = rope.as_kernels_take_it(cos_sin)
            if isinstance(a, RMSNorm) and isinstance(b, RMSNorm):
                return kernels.norm_rope.qk_norm_rope(q, k, a.weight, b.weight, a.eps, a.late_weight, rotation)
            return kernels.norm_rope.qk_norm_rope(q, k, None, None, 0.0, False, rotation)
        return rope.rotate(self.q_norm(q), cos_sin), rope.rotate(self.k_norm(k), cos_sin)


class SwiGLU(nn.Module):
    """down(silu(gate(x)) * up(x)), gate and up fused in that order."""

    def __init__(self, hidden: int, ffn: int) -> None:
        super().__init__()
        self.gate_up_proj = nn.Linear(hidden, 2 * ffn, bias=False)
        self.down_proj = nn.Linear(ffn, hidden, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        gate_up = self.gate_up_proj(x)
        if kernels.enabled(Kernel.SILU, gate_up):
            act = kernels.norm_rope.silu_and_mul(gate_up)
        else:
            gate, up = gate_up.chunk(2, dim=-1)
            act = F.silu(gate) * up
        out: Tensor = self.down_proj(act)
        return out


class Block(nn.Module):
    """One layer, run by its stack: a residual addition is done together with the norm that follows it."""

    def __init__(self, c: StackConfig) -> None:
        super().__init__()
        self.input_layernorm = RMSNorm(c.hidden, c.eps)
        self.self_attn = Attention(c)
        self.post_attention_layernorm = RMSNorm(c.hidden, c.eps)
        self.mlp = SwiGLU(c.hidden, c.ffn)

    def branches(
        self, x: Tensor, normed: Tensor, layer: int, attend: Attend, rope: Rope | None, cos_sin: CosSin | None
    ) -> tuple[Tensor, Tensor]:
        """From x and its input norm: x after attention, and what the MLP adds (joined by the norm that follows)."""
        x, h = self.post_attention_layernorm.after(x, self.self_attn(normed, layer, attend, rope, cos_sin))
        return x, self.mlp(h)

    def narrow(self, x: Tensor, layer: int, attend: Attend, rope: Rope | None, cos_sin: CosSin | None) -> Tensor:
        """The block for one or two rows: norms, gate and residual additions within the products."""
        attention = self.self_attn
        qkv: Tensor = kernels.gemv.fused_linear(x, attention.qkv_proj.weight, norm=self.input_layernorm.terms)
        out = attention.mixed(qkv, layer, attend, rope, cos_sin)
        x = kernels.gemv.fused_linear(out, attention.o_proj.weight, residual=x)
        gated = kernels.gemv.fused_linear(
            x, self.mlp.gate_up_proj.weight, norm=self.post_attention_layernorm.terms, gate=True
        )
        return kernels.gemv.fused_linear(gated, self.mlp.down_proj.weight, residual=x)


class Stack(nn.Module):
    """Blocks and the final norm. `first_layer` is the stack's offset in a key-value pool shared by several stacks."""

    def __init__(self, c: StackConfig, first_layer: int = 0) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Block(c) for _ in range(c.layers))
        self.norm = RMSNorm(c.hidden, c.eps)
        self.first_layer = first_layer

    def forward(self, x: Tensor, attend: Attend, rope: Rope | None = None, pos: Tensor | None = None) -> Tensor:
        """x [..., hidden] -> [..., hidden] after the final norm. `pos` [...] indexes `rope`; None: no positions."""
        if self.is_narrow(x):
            out: Tensor = self.norm(self.narrow(x, attend, rope, pos))
            return out
        cos_sin = tables(x, attend, rope, pos)
        norms = self.following_norms()
        h: Tensor = norms[0](x)
        for i, block in enumerate(self.layers):
            assert isinstance(block, Block)
            x, delta = block.branches(x, h, self.first_layer + i, attend, rope, cos_sin)
            x, h = norms[i + 1].after(x, delta)
        return h

    def head(self, x: Tensor, attend: Attend, rope: Rope, pos: Tensor, weight: Tensor) -> Tensor:
        """The last token of `forward` for x [B, T, hidden], times weight [V, hidden]: [B, V]."""
        if self.is_narrow(x):
            x = self.narrow(x, attend, rope, pos)
            return kernels.gemv.fused_linear(x[:, -1], weight, norm=self.norm.terms)
        return F.linear(self(x, attend, rope, pos)[:, -1], weight)

    def is_narrow(self, x: Tensor) -> bool:
        """Whether x [..., hidden] is for `narrow`."""
        return kernels.is_gemv(x) and x.dtype == self.norm.weight.dtype

    def narrow(self, x: Tensor, attend: Attend, rope: Rope | None, pos: Tensor | None) -> Tensor:
        """The blocks for one or two rows, without the final norm."""
        cos_sin = tables(x, attend, rope, pos)
        for i, block in enumerate(self.layers):
            assert isinstance(block, Block)
            x = block.narrow(x, self.first_layer + i, attend, rope, cos_sin)
        return x

    def following_norms(self) -> list[RMSNorm]:
        """The norm in front of each block, and the last one."""
        return [*(block.input_layernorm for block in self.layers if isinstance(block, Block)), self.norm]


def tables(x: Tensor, attend: Attend, rope: Rope | None, pos: Tensor | None) -> CosSin | None:
    """The rows of `rope` at positions pos [...] of the tokens x, where attention does not look them up itself."""
    if rope is None or pos is None or (isinstance(attend, Turning) and attend.turns(x)):
        return None
    return rope.at(pos)
