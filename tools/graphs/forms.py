"""Forms of the shared layers that export to few nodes, in place of those that torch runs well.

The network stays the project's own: only products, RMSNorm and dense attention are written
differently, with equal results. `plain_forms` swaps them in while a graph is traced.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from unittest import mock

import torch
from torch import Tensor, nn

from stentor.layers import norm
from stentor.layers.packed import PackedLinear
from stentor.layers.qk_norm_rope import NormRope
from stentor.models.voxcpm2 import builder, flow, modules


class Product(PackedLinear):
    """x W + b with W [in, out], as MatMul takes it. A PackedLinear, so that its outputs are not
    computed in parts."""

    def __init__(self, base: nn.Linear) -> None:
        nn.Module.__init__(self)
        self.in_features = base.in_features
        self.out_features = base.out_features
        self.weight = nn.Parameter(base.weight.detach().t().contiguous(), requires_grad=False)
        self.bias = base.bias

    def forward(self, x: Tensor) -> Tensor:
        y = torch.matmul(x, self.weight)
        if self.bias is None:
            return y
        return y + self.bias


def use_products(module: nn.Module) -> None:
    """Replace every linear layer of `module` by a Product."""
    layers = [(n, m) for n, m in module.named_modules() if isinstance(m, nn.Linear)]
    for name, layer in layers:
        parent, _, attribute = name.rpartition(".")
        setattr(module.get_submodule(parent), attribute, Product(layer))


def rms_norm(x: Tensor, weight: Tensor, eps: float, weight_after_cast: bool) -> Tensor:
    """RMSNorm in the form that onnxruntime fuses into one node."""
    return x / torch.sqrt(x.pow(2).mean(-1, keepdim=True) + eps) * weight


def rotated(x: Tensor, norm_rope: NormRope, first: int = 0) -> Tensor:
    """x [B, T, H, D] after RoPE, as [B, T, H * D]: one node. first: position of its first token."""
    assert norm_rope.q_norm is None
    assert norm_rope.k_norm is None
    if norm_rope.positions is None:
        return x.flatten(-2)
    batch, tokens, heads, _ = x.shape
    rope = norm_rope.positions.rope
    cos, sin = (
        table.squeeze(-2)[..., first : first + tokens, :].expand(batch, -1, -1)
        for table in norm_rope.positions.cos_sin(first + tokens)
    )
    turned: Tensor = torch.onnx.ops.rotary_embedding(
        x.flatten(-2), cos, sin, interleaved=rope.interleaved, num_heads=heads
    )
    return turned


def full(layer: int, q: Tensor, k: Tensor, v: Tensor, norm_rope: NormRope) -> Tensor:
    """Attention in which every token sees every other, in one node. q [B, T, Hq, D], k and v
    [B, S, Hkv, D] -> [B, T, Hq, D]."""
    out, *_ = torch.onnx.ops.attention(
        rotated(q, norm_rope, norm_rope.first_query),
        rotated(k, norm_rope),
        v.flatten(-2),
        q_num_heads=q.shape[2],
        kv_num_heads=k.shape[2],
    )
    return out.unflatten(-1, q.shape[2:])


def project(layer: nn.Module, x: Tensor) -> Tensor:
    """The layer's output, without adapters."""
    y: Tensor = layer(x)
    return y


def never(device: torch.device, dtype: torch.dtype) -> bool:
    """Whether weights are laid out for one CPU's kernels."""
    return False


@contextmanager
def plain_forms() -> Iterator[None]:
    """Inside, the network is made of the forms of this file."""
    with ExitStack() as stack:
        for target, name, form in (
            (builder, "packs", never),
            (flow, "full", full),
            (flow, "project", project),
            (modules, "project", project),
            (norm, "rms_norm", rms_norm),
        ):
            stack.enter_context(mock.patch.object(target, name, form))
        yield
