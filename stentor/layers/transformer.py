"""The pre-norm decoder block that every family uses: RMSNorm, grouped-query attention, SwiGLU or
experts.

Projections are fused (QKV, gate-up) when the weights are loaded, before anything is captured. Keys
and values belong to the caller: `attend` is an argument.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from stentor import kernels
from stentor.layers.attention import Attend
from stentor.layers.configs import StackConfig
from stentor.layers.experts import Experts
from stentor.layers.linear import Linear, activation_dtype, linear, product, scale_of, swiglu
from stentor.layers.lora import LoraLinear
from stentor.layers.norm import RMSNorm
from stentor.layers.qk_norm_rope import NormRope, RopePositions
from stentor.layers.rope import Rope


class Attention(nn.Module):
    """Fused-QKV attention on x [..., hidden]. The last dimension of q, k and v splits into
    heads."""

    def __init__(self, c: StackConfig) -> None:
        super().__init__()
        width = c.heads * c.head_dim
        kv_width = c.kv_heads * c.head_dim
        self.widths = (width, kv_width, kv_width)
        self.head_dim = c.head_dim
        self.qkv_proj = Linear(c.hidden, sum(self.widths), bias=c.qkv_bias)
        self.o_proj = Linear(width, c.hidden, bias=False)
        self.q_norm: RMSNorm | None = None
        self.k_norm: RMSNorm | None = None
        if c.qk_norm:
            self.q_norm = RMSNorm(c.head_dim, c.eps, c.qk_weight_after_cast)
            self.k_norm = RMSNorm(c.head_dim, c.eps, c.qk_weight_after_cast)

    def forward(
        self,
        x: Tensor,
        layer: int,
        attend: Attend,
        positions: RopePositions | None,
    ) -> Tensor:
        """x [..., hidden] -> [..., hidden]. `positions` None: no RoPE."""
        qkv = self.qkv_proj(x)
        attended = self.attend(qkv, layer, attend, positions)
        out: Tensor = self.o_proj(attended)
        return out

    def attend(
        self,
        qkv: Tensor,
        layer: int,
        attend: Attend,
        positions: RopePositions | None,
    ) -> Tensor:
        """From the output of `qkv_proj` to the input of `o_proj`."""
        q, k, v = self.heads(qkv)
        attended = attend(layer, q, k, v, self.norm_rope(positions))
        return attended.flatten(-2)

    def heads(self, qkv: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """q, k and v [..., heads of each, head_dim], views of the output of `qkv_proj`."""
        q, k, v = torch.split(qkv, list(self.widths), dim=-1)
        return self._by_head(q), self._by_head(k), self._by_head(v)

    def _by_head(self, x: Tensor) -> Tensor:
        # a piece of a prompt may have no token for a stack: a view by -1 would be ambiguous
        return x.view(*x.shape[:-1], x.shape[-1] // self.head_dim, self.head_dim)

    def norm_rope(self, positions: RopePositions | None, first_query: int = 0) -> NormRope:
        """The head norms of this layer, with the RoPE of the tokens."""
        return NormRope(self.q_norm, self.k_norm, positions, first_query)


class SwiGLU(nn.Module):
    """down(silu(gate(x)) * up(x)), gate and up fused in that order."""

    def __init__(self, hidden: int, ffn: int) -> None:
        super().__init__()
        self.gate_up_proj = Linear(hidden, 2 * ffn, bias=False)
        self.down_proj = Linear(ffn, hidden, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        hidden = swiglu(self.gate_up_proj(x))
        out: Tensor = self.down_proj(hidden)
        return out

    @property
    def linear_layers(self) -> tuple[nn.Linear, ...]:
        return self.gate_up_proj, self.down_proj

    def fuses(self, x: Tensor) -> bool:
        """Whether gate and addition of x [..., hidden] are fused into the products."""
        if x.dtype != activation_dtype(self.gate_up_proj):
            return False
        return fuses_layers(x, *self.linear_layers)

    def fused(
        self,
        x: Tensor,
        residual: Tensor,
        norm: tuple[Tensor, float, bool] | None = None,
    ) -> Tensor:
        """residual + self(norm(x)) for x [..., hidden] that `fuses`."""
        hidden = fused_layer(x, self.gate_up_proj, norm, gate=True)
        return fused_layer(hidden, self.down_proj, residual=residual)

    def alone(self, x: Tensor) -> Tensor:
        """self(x) for x [..., hidden] to which no residual is added, by fused products where they
        take it."""
        if not self.fuses(x):
            out: Tensor = self(x)
            return out
        hidden = fused_layer(x, self.gate_up_proj, gate=True)
        return fused_layer(hidden, self.down_proj)


class Block(nn.Module):
    """One layer. A residual addition is left to the norm that follows it, because one kernel does
    both."""

    def __init__(self, c: StackConfig) -> None:
        super().__init__()
        self.input_layernorm = RMSNorm(c.hidden, c.eps)
        self.self_attn = Attention(c)
        self.post_attention_layernorm = RMSNorm(c.hidden, c.eps)
        self.mlp: SwiGLU | Experts
        if c.experts is None:
            self.mlp = SwiGLU(c.hidden, c.ffn)
        else:
            shared = SwiGLU(c.hidden, c.experts.shared)
            self.mlp = Experts(c.hidden, c.experts, shared)

    def forward(
        self,
        x: Tensor,
        delta: Tensor | None,
        layer: int,
        attend: Attend,
        positions: RopePositions | None,
    ) -> tuple[Tensor, Tensor | None]:
        """(x, delta) stand for x + delta, or for x if delta is None. Returns the same for the
        output of this layer."""
        if delta is None and self.fuses(x):
            # Its last product adds the residual, so there is no delta for the next block.
            qkv = self.fused_qkv(x)
            attended = self.self_attn.attend(qkv, layer, attend, positions)
            return self.fused_after(x, attended), None
        x, h = self.input_layernorm.add_norm(x, delta)
        attended = self.self_attn(h, layer, attend, positions)
        x, h = self.post_attention_layernorm.add_norm(x, attended)
        return x, self.mlp(h)

    def fuses(self, x: Tensor) -> bool:
        """Whether norms, gate and additions of x [..., hidden] are fused into the products."""
        if x.dtype != self.input_layernorm.weight.dtype:
            return False
        return fuses_layers(x, *self.linear_layers)

    @property
    def linear_layers(self) -> tuple[nn.Linear, ...]:
        return self.self_attn.qkv_proj, self.self_attn.o_proj, *self.mlp.linear_layers

    def fused_qkv(self, x: Tensor) -> Tensor:
        """x [..., hidden] that `fuses` is true of -> the output of `qkv_proj`, norm included."""
        return fused_layer(x, self.self_attn.qkv_proj, norm=self.input_layernorm.kernel_args)

    def fused_after(self, x: Tensor, attended: Tensor) -> Tensor:
        """The rest of the layer, from x [..., hidden] and the input of `o_proj`."""
        x = fused_layer(attended, self.self_attn.o_proj, residual=x)
        return self.mlp.fused(x, x, self.post_attention_layernorm.kernel_args)


def fuses_layers(x: Tensor, *layers: nn.Linear) -> bool:
    """Whether `fused_layer` takes x [..., K] and what follows from it through these layers. None
    may have adapters."""
    weights = ((layer.weight, scale_of(layer)) for layer in layers)
    if not kernels.linear.fuses(x, weights):
        return False
    return not any(isinstance(layer, LoraLinear) for layer in layers)


def fused_layer(
    x: Tensor,
    layer: nn.Linear,
    norm: tuple[Tensor, float, bool] | None = None,
    residual: Tensor | None = None,
    gate: bool = False,
) -> Tensor:
    """A product of x [..., K] for which `fuses_layers`."""
    scale = scale_of(layer)
    return linear(x, layer.weight, layer.bias, scale, residual, norm, gate, must_fuse=True)


class Stack(nn.Module):
    """Blocks and the final norm. `first_layer` is the stack's offset in a key-value pool shared by
    several stacks."""

    def __init__(self, c: StackConfig, first_layer: int = 0) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Block(c) for _ in range(c.layers))
        self.norm = RMSNorm(c.hidden, c.eps)
        self.first_layer = first_layer

    def forward(
        self,
        x: Tensor,
        attend: Attend,
        rope: Rope | None = None,
        pos: Tensor | None = None,
    ) -> Tensor:
        """x [..., hidden] -> [..., hidden] after the final norm.

        `pos` [...] are the tokens' positions for `rope`. None: 0, 1, 2, ... of each sequence.
        `rope` None: no RoPE.
        """
        if rope is None:
            positions = None
        else:
            positions = RopePositions(rope, pos)
        x, delta = self.blocks(x, attend, positions)
        _, out = self.norm.add_norm(x, delta)
        return out

    def head(
        self,
        x: Tensor,
        attend: Attend,
        rope: Rope,
        pos: Tensor,
        weight: Tensor,
    ) -> Tensor:
        """The last token of `forward` for x [B, T, hidden], times weight [V, hidden]: [B, V]."""
        x, delta = self.blocks(x, attend, RopePositions(rope, pos))
        if delta is None and self.fuses(x, weight):
            return linear(x[:, -1], weight, norm=self.norm.kernel_args, must_fuse=True)
        _, h = self.norm.add_norm(x, delta)
        return product(h[:, -1], weight)

    def fuses(self, x: Tensor, weight: Tensor) -> bool:
        """Whether the final norm of x [..., hidden] is fused into the product with `weight` [V,
        hidden] after it."""
        if x.dtype != self.norm.weight.dtype:
            return False
        return kernels.linear.fuses(x[:, -1], [(weight, None)])

    def blocks(
        self,
        x: Tensor,
        attend: Attend,
        positions: RopePositions | None,
        count: int | None = None,
    ) -> tuple[Tensor, Tensor | None]:
        """The first `count` blocks (None: all) on x [..., hidden]. Returns what `Block.forward`
        returns."""
        delta: Tensor | None = None
        for i, block in enumerate(self.layers[:count]):
            x, delta = block(x, delta, self.first_layer + i, attend, positions)
        return x, delta
