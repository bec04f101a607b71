"""The transformer block of the language model and of the codec. Attributes are named as in
checkpoints."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from stentor.layers.attention import Attend
from stentor.layers.linear import Linear
from stentor.layers.qk_norm_rope import NormRope, RopePositions
from stentor.layers.rope import Rope, angles
from stentor.models.calm_config import THETA, LayerConfig

EPS = 1e-5


def make_rope(c: LayerConfig, positions: int) -> Rope:
    """RoPE of neighbouring pairs."""
    return Rope(
        angles(c.head_dim, positions, THETA), torch.float32, interleaved=True, in_float32=True
    )


class SelfAttention(nn.Module):
    def __init__(self, c: LayerConfig) -> None:
        super().__init__()
        self.heads = c.heads
        self.kv_heads = c.kv_heads
        self.dim = c.head_dim
        self.in_proj = Linear(
            c.hidden,
            (c.heads + 2 * c.kv_heads) * c.head_dim,
            bias=False,
        )
        self.out_proj = Linear(
            c.heads * c.head_dim,
            c.hidden,
            bias=False,
        )

    def forward(
        self,
        x: Tensor,
        layer: int,
        attend: Attend,
        positions: RopePositions,
    ) -> Tensor:
        qkv = self.in_proj(x).unflatten(-1, (-1, self.dim))
        q, k, v = qkv.split([self.heads, self.kv_heads, self.kv_heads], dim=-2)
        out: Tensor = self.out_proj(
            attend(layer, q, k, v, NormRope(positions=positions)).flatten(-2)
        )
        return out


class LayerScale(nn.Module):
    """A learned gain per channel on a residual branch (Touvron et al., 2021)."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.empty(channels))

    def add(self, x: Tensor, branch: Tensor) -> Tensor:
        """x + scale * branch."""
        return torch.addcmul(x, branch, self.scale)


class Layer(nn.Module):
    """Pre-norm attention, then an MLP with GELU. The codec's layers scale
    both."""

    def __init__(
        self,
        c: LayerConfig,
        scaled: bool,
    ) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(c.hidden, eps=EPS)
        self.self_attn = SelfAttention(c)
        self.norm2 = nn.LayerNorm(c.hidden, eps=EPS)
        self.linear1 = Linear(c.hidden, c.ffn, bias=False)
        self.linear2 = Linear(c.ffn, c.hidden, bias=False)
        self.gelu = "none" if c.exact_gelu else "tanh"
        self.layer_scale_1 = LayerScale(c.hidden) if scaled else None
        self.layer_scale_2 = LayerScale(c.hidden) if scaled else None

    def forward(
        self,
        x: Tensor,
        layer: int,
        attend: Attend,
        positions: RopePositions,
    ) -> Tensor:
        x = _joined(
            x,
            self.self_attn(self.norm1(x), layer, attend, positions),
            self.layer_scale_1,
        )
        wide = F.gelu(
            self.linear1(self.norm2(x)),
            approximate=self.gelu,
        )
        return _joined(
            x,
            self.linear2(wide),
            self.layer_scale_2,
        )


def _joined(
    x: Tensor,
    branch: Tensor,
    scale: LayerScale | None,
) -> Tensor:
    if scale is None:
        return x + branch
    return scale.add(x, branch)


class Transformer(nn.Module):
    """Layers without a norm behind them."""

    def __init__(
        self,
        c: LayerConfig,
        scaled: bool,
    ) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Layer(c, scaled) for _ in range(c.layers))

    def forward(
        self,
        x: Tensor,
        attend: Attend,
        positions: RopePositions,
    ) -> Tensor:
        """x [..., hidden] -> [..., hidden]."""
        for i, layer in enumerate(self.layers):
            x = layer(x, i, attend, positions)
        return x
