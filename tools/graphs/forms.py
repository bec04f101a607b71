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


def attention(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None) -> Tensor:
    """q [B, T, Hq, D], k and v [B, Hkv, S, D], mask [T, S] -> [B, T, Hq, D].

    Heads that share keys go in as queries of one head.
    """
    batch, tokens, heads, dim = q.shape
    shared = k.shape[1]
    group = heads // shared
    grouped = (q * dim**-0.5).reshape(batch, tokens, shared, group, dim).permute(0, 2, 3, 1, 4)
    scores = torch.matmul(grouped.reshape(batch, shared, -1, dim), k.transpose(2, 3))
    if mask is not None:
        by_query = scores.reshape(batch, shared, group, tokens, -1) + mask
        scores = by_query.reshape(batch, shared, group * tokens, -1)

    out = torch.matmul(torch.softmax(scores, -1), v)
    by_head = out.reshape(batch, shared, group, tokens, dim).permute(0, 3, 1, 2, 4)
    return by_head.reshape(batch, tokens, heads, dim)


def full(layer: int, q: Tensor, k: Tensor, v: Tensor, norm_rope: NormRope) -> Tensor:
    """Attention in which every token sees every other."""
    q, k = norm_rope.apply(q, k)
    return attention(q, k.transpose(1, 2), v.transpose(1, 2))


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
