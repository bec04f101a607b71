"""The flow head: from a hidden state and noise to a patch, with a history of its own for every
evaluation.

The history is a sequence of units, the hidden state that made a patch and the patch's latents.
Their keys and values depend on the time of the evaluation and on the branch, so each of these has
layers of its own in the page set. The unit that is being made sees all of the history and of
itself. When it is done it runs again, as history: causal, and with clean latents.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from stentor import kernels
from stentor.kernels import Kernel
from stentor.kernels.linear import Backend, problem, select
from stentor.layers.attention import Attend
from stentor.layers.linear import Linear, linear_gelu
from stentor.layers.lora import LoraLinear, project
from stentor.layers.norm import RMSNorm
from stentor.layers.qk_norm_rope import NormRope, RopePositions
from stentor.layers.rope import Rope, angles
from stentor.models.base import FrameKV
from stentor.models.dots_tts.config import (
    EPS32,
    MEANFLOW,
    MIDPOINT,
    SCM,
    DotsConfig,
    LayersConfig,
    Solver,
)

FLOW = "flow"
"""The page set of the flow head."""
LAYER_NORM_EPS = 1e-5
FREQUENCIES = 128
PARTS = 6
"""Shift, scale and gate of the attention, then of the feed-forward."""


class Modulation(nn.Sequential):
    """Scales, shifts and gates that a condition sets in a layer."""

    def __init__(self, width: int, parts: int) -> None:
        super().__init__(nn.SiLU(), Linear(width, parts * width))


class Embedder(nn.Module):
    """A time or a duration as a vector. Times from 0 to 1 are not scaled."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.mlp = nn.Sequential(Linear(2 * FREQUENCIES, width), nn.SiLU(), Linear(width, width))

    def forward(self, t: Tensor) -> Tensor:
        """t [n] float32 -> [n, width]."""
        index = torch.arange(FREQUENCIES, dtype=torch.float32, device=t.device)
        angle = t[:, None] * torch.exp(-math.log(10000.0) * index / FREQUENCIES)
        first = self.mlp[0]
        assert isinstance(first, Linear)
        out: Tensor = self.mlp(torch.cat((angle.cos(), angle.sin()), -1).to(first.weight.dtype))
        return out


class Attention(nn.Module):
    """Projections of an attention whose heads all have keys of their own."""

    def __init__(self, c: LayersConfig) -> None:
        super().__init__()
        self.heads = c.heads
        self.qkv_proj = Linear(c.hidden, 3 * c.hidden, bias=False)
        self.o_proj = Linear(c.hidden, c.hidden)

    def heads_of(self, qkv: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """q, k and v [N, heads, dim], views of the output of `qkv_proj` [..., 3 hidden]."""
        q, k, v = qkv.view(-1, 3, self.heads, qkv.shape[-1] // 3 // self.heads).unbind(1)
        return q, k, v


class FlowAttention(Attention):
    """Attention with norms of the heads."""

    def __init__(self, c: LayersConfig) -> None:
        super().__init__(c)
        self.q_norm = RMSNorm(c.head_dim, EPS32, False)
        self.k_norm = RMSNorm(c.head_dim, EPS32, False)


class FeedForward(nn.Module):
    """Two linear layers with biases."""

    def __init__(self, c: LayersConfig) -> None:
        super().__init__()
        self.fc1 = Linear(c.hidden, c.ffn)
        self.fc2 = Linear(c.ffn, c.hidden)


class FlowBlock(nn.Module):
    """One layer with adaptive layer norms."""

    def __init__(self, c: LayersConfig) -> None:
        super().__init__()
        self.attn = FlowAttention(c)
        self.ffn = FeedForward(c)
        self.adaLN_modulation = Modulation(c.hidden, PARTS)


class OutputLayer(nn.Module):
    def __init__(self, width: int, latent: int) -> None:
        super().__init__()
        self.adaLN_modulation = Modulation(width, 2)
        self.linear = Linear(width, latent)


class FlowHistory(NamedTuple):
    """Where rows of the flow stand: the attention over their page set, and their positions."""

    attend: Attend
    positions: RopePositions


Tables = Callable[[int, int], Tensor]
"""tables(evaluation, layer): modulation of a layer [rows or 1, parts, width], or of the output
behind the last one. Scales have 1 added."""

Branch = tuple[Tensor, Tensor]
"""Output of a layer's part and its gate [rows or 1, width]: the norm that follows adds it to the
residual stream."""

Velocity = Callable[[Tensor, int], Tensor]
"""velocity(noisy patches [B, patch, D], evaluation) -> [B, patch, D]."""


class FlowHead(nn.Module):
    """Velocities of noisy patches."""

    def __init__(self, c: DotsConfig) -> None:
        super().__init__()
        f = c.flow
        self.width = f.hidden
        self.patch = c.patch
        self.unit = c.patch + 1
        self.duration = c.duration
        self.input_layer = Linear(f.hidden, f.hidden)
        self.time_embedder = Embedder(f.hidden)
        if c.duration:
            self.duration_embedder = Embedder(f.hidden)
        self.blocks = nn.ModuleList(FlowBlock(f) for _ in range(f.layers))
        self.output_layer = OutputLayer(f.hidden, c.latent)

    @property
    def layers(self) -> list[FlowBlock]:
        return [block for block in self.blocks if isinstance(block, FlowBlock)]

    @property
    def parts(self) -> list[int]:
        """Rows [n, width] that each layer, and then the output, has in a table of modulations."""
        return [PARTS] * len(self.blocks) + [2]

    def times(self, solver: Solver) -> Tensor:
        """Conditions [evaluations, width] of the times of a solver."""
        where = self.input_layer.weight.device
        t, dt = torch.tensor(solver.times, dtype=torch.float32, device=where).T
        c: Tensor = self.time_embedder(t)
        if solver.method == MEANFLOW and self.duration:
            c = c + self.duration_embedder(dt)
        return c

    def modulation(self, layer: int, condition: Tensor) -> Tensor:
        """Modulation [..., parts, width] of a layer, or of the output behind the last one, by
        conditions."""
        last = layer == len(self.blocks)
        module: FlowBlock | OutputLayer = self.output_layer if last else self.layers[layer]
        out: Tensor = module.adaLN_modulation(condition)
        parts = out.view(*out.shape[:-1], -1, self.width)
        parts[..., 1::3, :] += 1  # the scales
        return parts

    def table(self, condition: Tensor) -> Tensor:
        """The modulations of all layers and of the output, one below the other [..., sum of parts,
        width]."""
        return torch.cat(
            [self.modulation(i, condition) for i in range(len(self.blocks) + 1)], dim=-2
        )

    def of_table(self, table: Tensor) -> Tables:
        """Tables that read what `table` gave [rows, evaluations, sum of parts, width]."""
        layers = [torch.split(part, self.parts, dim=1) for part in table.unbind(1)]
        return lambda evaluation, layer: layers[evaluation][layer]

    def of_condition(self, times: Tensor, voice: Tensor) -> Tables:
        """Tables that are computed when they are read, of rows with these voices [rows, width]."""
        return lambda evaluation, layer: self.modulation(layer, times[evaluation] + voice)

    def remember(
        self, rows: list[Tensor], tables: list[Tables], evaluations: int, place: FlowHistory
    ) -> None:
        """Store keys and values of finished units: rows [M, n, width] and tables of each branch."""
        for evaluation in range(evaluations):
            for branch, (branch_rows, table) in enumerate(zip(rows, tables, strict=True)):
                x = self.input_layer(branch_rows)
                added = None
                for i, block in enumerate(self.layers):
                    numbers = table(evaluation, i)
                    layer = self._layer(evaluation, len(rows), branch, i)
                    x, h = add_norm(x, added, numbers[:, 0], numbers[:, 1])
                    attended = place.attend(
                        layer,
                        *block.attn.heads_of(project(block.attn.qkv_proj, h)),
                        self._norm_rope(block, place),
                    )
                    # of the last layer only keys and values are of use
                    if i + 1 < len(self.blocks):
                        x, added = self._after(block, x, attended.view(*x.shape), numbers)

    def velocity(
        self, rows: Tensor, branches: int, evaluation: int, tables: list[Tables], place: FlowHistory
    ) -> Tensor:
        """Velocities [branches * B, patch, D] of rows [branches * B, n, width], of which the last
        are noisy."""
        x = self.input_layer(rows)
        added = None
        for i, block in enumerate(self.layers):
            numbers = self._joined(
                [table(evaluation, i) for table in tables], len(rows) // branches
            )
            x, h = add_norm(x, added, numbers[:, 0], numbers[:, 1])
            norm_rope = self._norm_rope(block, place)
            q, k, v = block.attn.heads_of(project(block.attn.qkv_proj, h))
            parts = [
                place.attend(self._layer(evaluation, branches, branch, i), *qkv, norm_rope)
                for branch, qkv in enumerate(
                    zip(q.chunk(branches), k.chunk(branches), v.chunk(branches), strict=True)
                )
            ]
            attended = (torch.cat(parts) if branches > 1 else parts[0]).view(*x.shape)
            if i + 1 == len(self.blocks):  # what follows reads the noisy rows only
                x = x[:, -self.patch :]
                attended = attended[:, -self.patch :]
            x, added = self._after(block, x, attended, numbers)
        shift, scale = self._joined(
            [t(evaluation, len(self.blocks)) for t in tables], len(rows) // branches
        ).unbind(1)
        out: Tensor = self.output_layer.linear(add_norm(x, added, shift, scale)[1])
        return out

    def _layer(self, evaluation: int, branches: int, branch: int, layer: int) -> int:
        return (evaluation * branches + branch) * len(self.blocks) + layer

    def _joined(self, numbers: list[Tensor], rows: int) -> Tensor:
        if len(numbers) > 1:
            return torch.cat([t.expand(rows, -1, -1) for t in numbers])
        return numbers[0]

    def _norm_rope(self, block: FlowBlock, place: FlowHistory) -> NormRope:
        return NormRope(block.attn.q_norm, block.attn.k_norm, place.positions)

    def _after(
        self, block: FlowBlock, x: Tensor, attention: Tensor, numbers: Tensor
    ) -> tuple[Tensor, Branch]:
        """The layer from what its attention saw on: x after the attention, and the feed-forward to
        be added."""
        attended = project(block.attn.o_proj, attention), numbers[:, 2]
        x, h = add_norm(x, attended, numbers[:, 3], numbers[:, 4])
        return x, (project(block.ffn.fc2, _gelu(block.ffn.fc1, h)), numbers[:, 5])


def add_norm(
    x: Tensor, branch: Branch | None, shift: Tensor, scale: Tensor
) -> tuple[Tensor, Tensor]:
    """x [rows, n, width] with the gated branch added, and its layer norm without weights, scaled
    and shifted by [rows or 1, width] each in float32."""
    if kernels.enabled(Kernel.NORM, x):
        delta, gate = (None, shift) if branch is None else branch
        return kernels.norm_rope.add_modulated_norm(x, delta, gate, scale, shift, LAYER_NORM_EPS)
    if branch is not None:
        x = x + branch[1][:, None] * branch[0]
    y = F.layer_norm(
        x.to(torch.promote_types(x.dtype, torch.float32)), x.shape[-1:], eps=LAYER_NORM_EPS
    )
    return x, (y * scale[:, None] + shift[:, None]).to(x.dtype)


def _gelu(layer: nn.Linear, x: Tensor) -> Tensor:
    """GELU of a layer's output, by the library in one kernel where that is to compute the
    product."""
    if (
        not isinstance(layer, LoraLinear)
        and select(problem(x, layer.weight))[0].backend is Backend.LIBRARY
    ):
        return linear_gelu(layer, x)
    return F.gelu(project(layer, x), approximate="tanh")


def flow_rope(c: DotsConfig, patches: int) -> Rope:
    table = angles(c.flow.head_dim, patches * (c.patch + 1), c.flow.theta)
    return Rope(table, torch.float32, interleaved=False, in_float32=True)


def flow_place(
    frames: FrameKV, rope: Rope, pos: Tensor, visible: Tensor | None, stored: Tensor | None
) -> FlowHistory:
    """The place of rows at pos [N, n] of the page set."""
    return FlowHistory(
        frames.view(FLOW, pos, visible, stored), RopePositions(rope, pos.flatten().clamp_min(0))
    )


def solve(solver: Solver, velocity: Velocity, noise: Tensor) -> Tensor:
    """The patches [B, patch, D] that noise [B, noises, patch, D] becomes."""
    z = noise[:, 0]
    n = solver.steps
    if solver.method == SCM:
        t = solver.renoise
        z = t * (z + velocity(z, 0)) + (1 - t) * noise[:, 1]
        return z + (1 - t) * velocity(z, 1)
    if solver.method == MIDPOINT:
        for i in range(n):
            middle = z + velocity(z, 2 * i) / (2 * n)
            z = z + velocity(middle, 2 * i + 1) / n
        return z
    for i in range(n):
        z = z + velocity(z, i) / n
    return z
