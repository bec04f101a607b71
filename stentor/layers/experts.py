"""Mixture of experts: each token goes through a few of many SwiGLUs, and through one that all
tokens share.

Shapes are fixed and no choice is read on the host, so a step with experts can be captured. A
token's products are added in ascending order of its experts: the sum does not depend on the other
tokens.
"""

from __future__ import annotations

from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from stentor import kernels
from stentor.kernels import Kernel
from stentor.layers.configs import ExpertsConfig
from stentor.layers.linear import Linear, activation_dtype, product, scale_of
from stentor.layers.norm import rms_norm
from stentor.layers.quantized import dequantize

ROWS = 64
"""Rows whose experts are gathered at a time, where no kernel reads each expert once."""


class SharedExpert(Protocol):
    """The SwiGLU that all tokens take."""

    @property
    def linear_layers(self) -> tuple[nn.Linear, ...]: ...
    def alone(self, x: Tensor) -> Tensor: ...


class Gate(nn.Module):
    """A product that decides: it stays in the model's precision where linear layers have 8 bits."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(outputs, inputs))

    def forward(self, x: Tensor) -> Tensor:
        """x [..., inputs] -> [..., outputs]."""
        return product(x, self.weight)


class ExpertWeights(nn.Module):
    """The experts' matrices under one another: gates of all, then their up-projections [2 count
    ffn, hidden], and down-projections [count hidden, ffn]. So they are quantised as any linear
    layer is."""

    def __init__(self, hidden: int, c: ExpertsConfig) -> None:
        super().__init__()
        self.gate_up_proj = Linear(hidden, 2 * c.count * c.ffn, bias=False)
        self.down_proj = Linear(c.ffn, c.count * hidden, bias=False)


class Experts(nn.Module):
    """Sum of w_e expert_e(x) over a token's experts e, plus sigmoid(x . s) shared_expert(x)."""

    def __init__(self, hidden: int, c: ExpertsConfig, shared: SharedExpert) -> None:
        """shared: a module with `c.shared` inner features."""
        super().__init__()
        self.config = c
        self.gate = Gate(hidden, c.count)
        self.experts = ExpertWeights(hidden, c)
        self.shared_expert = shared
        self.shared_expert_gate = Gate(hidden, 1)

    def forward(self, x: Tensor) -> Tensor:
        """x [..., hidden] after its norm -> [..., hidden]."""
        return self._run(x, None, None)

    def fused(
        self,
        x: Tensor,
        residual: Tensor,
        norm: tuple[Tensor, float, bool] | None = None,
    ) -> Tensor:
        """residual + self(norm(x)) for x [..., hidden]."""
        return self._run(x, residual, norm)

    @property
    def linear_layers(self) -> tuple[nn.Linear, ...]:
        """Layers that every token takes."""
        return self.shared_expert.linear_layers

    def _run(
        self, x: Tensor, residual: Tensor | None, norm: tuple[Tensor, float, bool] | None
    ) -> Tensor:
        rows = x.reshape(-1, x.shape[-1])
        if residual is not None:
            residual = residual.reshape(-1, x.shape[-1])
        if self._has_kernels(x, norm):
            return self._by_kernels(rows, residual, norm).view(x.shape)
        if norm is not None:
            rows = rms_norm(rows, *norm)
        logits = self.gate(rows)
        ids, weights = route(logits, self.config.chosen, self.config.normalised)
        out = grouped_swiglu(rows, ids, weights, self.experts.gate_up_proj, self.experts.down_proj)
        share = torch.sigmoid(self.shared_expert_gate(rows))
        out = out + share * self.shared_expert.alone(rows)
        if residual is not None:
            out = residual + out
        return out.view(x.shape)

    def _has_kernels(self, x: Tensor, norm: tuple[Tensor, float, bool] | None) -> bool:
        if not kernels.enabled(Kernel.EXPERTS, x) or x.dtype != self.gate.weight.dtype:
            return False
        return norm is None or norm[2]

    def _by_kernels(
        self,
        rows: Tensor,
        residual: Tensor | None,
        norm: tuple[Tensor, float, bool] | None,
    ) -> Tensor:
        c = self.config
        gates = (self.gate.weight, self.shared_expert_gate.weight)
        if norm is None:
            weight_and_eps = None
        else:
            weight_and_eps = norm[:2]
        routing = kernels.experts.route(rows, weight_and_eps, *gates, c.chosen, c.normalised)
        gate_up = _expert_weight(self.experts.gate_up_proj)
        down = _expert_weight(self.experts.down_proj)
        routed = kernels.experts.grouped_swiglu(routing, gate_up, down, c.count)
        shared = self.shared_expert.alone(routing.x)
        return kernels.experts.combine(routed, routing, shared, residual)


def _expert_weight(layer: nn.Linear) -> kernels.experts.ExpertWeight:
    return kernels.experts.ExpertWeight(layer.weight, scale_of(layer))


def route(logits: Tensor, chosen: int, normalised: bool) -> tuple[Tensor, Tensor]:
    """logits [N, count] -> each row's experts [N, chosen] int64 in ascending order, and their
    weights in its dtype.

    Probabilities are of all experts, in float32 at least.
    """
    wide = torch.promote_types(logits.dtype, torch.float32)
    probabilities = logits.to(wide).softmax(-1)
    top, ids = probabilities.topk(chosen, dim=-1)
    if normalised:
        top = top / top.sum(-1, keepdim=True)
    ids, order = ids.sort(-1)
    weights = top.gather(-1, order)
    return ids, weights.to(logits.dtype)


def grouped_swiglu(
    x: Tensor,
    ids: Tensor,
    weights: Tensor,
    gate_up: nn.Linear,
    down: nn.Linear,
) -> Tensor:
    """x [N, H] through the experts ids [N, k] of each row, times weights [N, k], added in their
    order: [N, H].

    gate_up: [2 E I, H]. down: [E H, I]. An expert is read as often as it was chosen.
    """
    parts = []
    for start in range(0, len(x), ROWS):
        rows = slice(start, start + ROWS)
        parts.append(_grouped_swiglu(x[rows], ids[rows], weights[rows], gate_up, down))
    return torch.cat(parts)


def _grouped_swiglu(
    x: Tensor,
    ids: Tensor,
    weights: Tensor,
    gate_up: nn.Linear,
    down: nn.Linear,
) -> Tensor:
    count = down.out_features // x.shape[1]
    columns = x[:, :, None]
    out = torch.zeros_like(x)
    for expert, weight in zip(ids.unbind(1), weights.unbind(1), strict=True):
        gate = _of(gate_up, 2 * count, expert) @ columns
        up = _of(gate_up, 2 * count, expert + count) @ columns
        hidden = F.silu(gate) * up
        products = _of(down, count, expert) @ hidden
        out = out + products[..., 0] * weight[:, None]
    return out


def _of(layer: nn.Linear, blocks: int, which: Tensor) -> Tensor:
    """Take blocks `which` [n] of a layer's weight, which has `blocks` of equal size: [n, outputs,
    inputs]."""
    weight = layer.weight.view(blocks, -1, layer.in_features)[which]
    scale = scale_of(layer)
    if scale is None:
        return weight
    scales = scale.view(blocks, -1, scale.shape[1])[which]
    dtype = activation_dtype(layer)
    wide = dequantize(weight.flatten(0, 1), scales.flatten(0, 1), dtype)
    return wide.view(weight.shape)
