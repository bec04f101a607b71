"""The flow's diffusion transformer (DiT): velocities of mel frames, for both branches of guidance at once."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from stentor.layers.linear_gelu import linear_gelu
from stentor.layers.rope import Rope, angles
from stentor.layers.types import Column, State
from stentor.models.cosyvoice3.codec_keys import Keys, Turns
from stentor.models.cosyvoice3.codec_noise import FLOW_FRAMES
from stentor.models.cosyvoice3.config import MELS, TAIL, FlowConfig
from stentor.models.cosyvoice3.ops import add_norm, position_conv, tail_of

STEPS, GROUPS, SINUSOIDS = 10, 16, 256

Left = tuple[Tensor | None, Tensor]
"""Residual that a block leaves to be added, and its gate."""
Added = tuple[Tensor, Left]


class StepTimes(NamedTuple):
    """float32 [10] each: the time of every Euler step, and its length."""

    time: Tensor
    length: Tensor


def step_times() -> StepTimes:
    """A cosine schedule. Times accumulate in float32, and each length is measured from the accumulated time."""
    span = 1 - torch.cos(torch.linspace(0, 1, STEPS + 1) * 0.5 * torch.pi)
    time, length = [span[0]], [span[1] - span[0]]
    for n in range(2, STEPS + 1):
        time.append(time[-1] + length[-1])
        length.append(span[n] - time[-1])
    return StepTimes(torch.stack(time), torch.stack(length))


class Block(nn.Module):
    """Attention and a GELU layer on x [B, 2, T, C], each normalised and modulated.

    The second layer's output is left to the norm that follows, which adds it.
    """

    def __init__(self, c: FlowConfig) -> None:
        super().__init__()
        self.modulation = nn.Linear(c.dim, 6 * c.dim)
        self.qkv_proj = nn.Linear(c.dim, 3 * c.dim)
        self.o_proj = nn.Linear(c.dim, c.dim)
        self.up = nn.Linear(c.dim, c.ff)
        self.down = nn.Linear(c.ff, c.dim)

    def forward(self, x: Tensor, left: Left, modulation: Tensor, at: tuple[int, int], keys: Keys, rope: Turns) -> Added:
        """modulation [6, C]: shift, scale and gate of each branch, the scales with 1 added. at: step and block."""
        shift, scale, gate, shift2, scale2, gate2 = modulation
        x, y = add_norm(x, *left, scale, shift)
        x, y = add_norm(x, self.o_proj(keys.attend(*at, self.qkv_proj(y), rope)), gate, scale2, shift2)
        return x, (self.down(linear_gelu(self.up, y)), gate2)


class DiT(nn.Module):
    """Parameters start on the meta device. `columns` hold the inputs that the convolutions see again."""

    modulations: Tensor
    last: Tensor

    def __init__(self, c: FlowConfig) -> None:
        super().__init__()
        self.config = c
        self.time_in, self.time_out = nn.Linear(SINUSOIDS, c.dim), nn.Linear(c.dim, c.dim)
        self.input = nn.Linear(4 * MELS, c.dim)
        self.positions = nn.ModuleList(nn.Conv1d(c.dim, c.dim, TAIL + 1, groups=GROUPS) for _ in range(2))
        self.blocks = nn.ModuleList(Block(c) for _ in range(c.depth))
        self.last_modulation = nn.Linear(c.dim, 2 * c.dim)
        self.output = nn.Linear(c.dim, MELS)
        self.rope: Rope | None = None

    def columns(self, dtype: torch.dtype) -> dict[str, Column]:
        """The last inputs of both convolutions in every step, for both branches."""
        shape = (STEPS, 2, TAIL, self.config.dim)
        return {f"dit.{i}": Column(shape, dtype) for i in range(2)}

    @torch.no_grad()
    def process_weights_after_loading(self, dtype: torch.dtype) -> None:
        """Nothing but the time enters the modulations: they become a table of the ten steps, and their weights go."""
        time = 1000 * step_times().time.to(self.time_in.weight.device)
        half = SINUSOIDS // 2
        rates = torch.exp(torch.arange(half, device=time.device).float() * -(math.log(10000) / (half - 1)))
        phase = time[:, None] * rates
        h = F.silu(self.time_out(F.silu(self.time_in(torch.cat((phase.sin(), phase.cos()), dim=1)))))
        table = torch.stack([self._modulation(i)(h).view(STEPS, 6, -1) for i in range(self.config.depth)], dim=1)
        table[:, :, [1, 4]] += 1
        scale, shift = self.last_modulation(h).chunk(2, dim=-1)
        for block in self.blocks:
            del block.modulation
        del self.time_in, self.time_out, self.last_modulation
        self.to(dtype)
        for conv in self._convolutions():  # inputs and outputs of a tap lie side by side, as the kernel reads them
            conv.weight.data = conv.weight.data.permute(2, 1, 0).contiguous().permute(2, 1, 0)
        self.register_buffer("modulations", table.to(dtype), persistent=False)
        self.register_buffer("last", torch.stack((scale + 1, shift), dim=1).to(dtype), persistent=False)
        rotations = angles(self.config.head_dim, FLOW_FRAMES, 1e4)
        self.rope = Rope(rotations, torch.float32, interleaved=True, in_float32=True).to(table.device)

    def _convolutions(self) -> list[nn.Conv1d]:
        return [conv for conv in self.positions if isinstance(conv, nn.Conv1d)]

    def _modulation(self, block: int) -> nn.Module:
        return self.blocks[block].get_submodule("modulation")

    def rope_at(self, where: Tensor) -> Turns:
        """For frames at where [B, T], counted from the first frame of the prompt."""
        assert self.rope is not None
        return Turns(self.rope.cos[where], self.rope.sin[where])

    def conditions(self, cond: Tensor, mu: Tensor, speaker: Tensor) -> Tensor:
        """The input projection's share of what stays during all steps: cond, mu [B, T, 80], speaker [B, 80].

        [B, 2, T, C]. The second branch is unconditional: it has zeros in their place.
        """
        weight, bias = self.input.weight, self.input.bias
        given = torch.cat((cond, mu, speaker[:, None].expand_as(mu)), dim=-1).to(weight.dtype)
        first = F.linear(given, weight[:, MELS:], bias)
        return torch.stack((first, bias.expand_as(first)), dim=1)

    def forward(
        self, x: Tensor, fixed: Tensor, step: int, keys: Keys, rope: Turns, state: State
    ) -> tuple[Tensor, list[Tensor]]:
        """x [B, T, 80] -> velocities [B, 2, T, 80], and the tails [B, 2, 30, C] of both convolutions."""
        h = fixed + F.linear(x.to(fixed.dtype), self.input.weight[:, :MELS])[:, None]
        first, second = self._convolutions()
        y = position_conv(first, h, state["dit.0"][:, step])
        tails = [tail_of(h), tail_of(y)]
        h = position_conv(second, y, state["dit.1"][:, step], residual=h)
        left: Left = (None, self.last[step, 0])
        for i, block in enumerate(self.blocks):
            h, left = block(h, left, self.modulations[step, i], (step, i), keys, rope)
        out: Tensor = self.output(add_norm(h, *left, *self.last[step])[1])
        return out.float(), tails
