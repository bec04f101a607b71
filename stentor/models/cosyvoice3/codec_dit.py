"""The flow's diffusion transformer (DiT): velocities of mel frames, for both branches of guidance at once."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from stentor.layers.rope import CosSin, Rope, angles
from stentor.layers.types import Column, State
from stentor.models.cosyvoice3.codec_keys import Keys
from stentor.models.cosyvoice3.codec_noise import FLOW_FRAMES
from stentor.models.cosyvoice3.config import MELS, FlowConfig

STEPS, GROUPS, TAPS, SINUSOIDS, EPS = 10, 16, 31, 256, 1e-6
TAIL = TAPS - 1


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
    """Attention and a GELU layer, each normalised and modulated, on x [B, 2, T, C]."""

    def __init__(self, c: FlowConfig) -> None:
        super().__init__()
        self.heads = (c.heads, c.head_dim)
        self.modulation = nn.Linear(c.dim, 6 * c.dim)
        self.qkv_proj = nn.Linear(c.dim, 3 * c.dim)
        self.o_proj = nn.Linear(c.dim, c.dim)
        self.up = nn.Linear(c.dim, c.ff)
        self.down = nn.Linear(c.ff, c.dim)

    def forward(self, x: Tensor, modulation: Tensor, at: tuple[int, int], keys: Keys, rope: FirstHeadRope) -> Tensor:
        """modulation [6, C]: shift, scale and gate of each branch, the scales with 1 added. at: step and block."""
        shift, scale, gate, shift2, scale2, gate2 = modulation
        y = F.layer_norm(x, x.shape[-1:], scale, shift, EPS)
        q, k, v = (t.unflatten(-1, self.heads) for t in self.qkv_proj(y).chunk(3, dim=-1))
        heads = keys.attend(*at, rope(q), rope(k), v)
        x = torch.addcmul(x, gate, self.o_proj(heads.flatten(-2)))
        y = F.layer_norm(x, x.shape[-1:], scale2, shift2, EPS)
        return torch.addcmul(x, gate2, self.down(F.gelu(self.up(y), approximate="tanh")))


class FirstHeadRope:
    """RoPE of the first head alone. The other heads have no position, as in the original."""

    def __init__(self, rope: Rope, where: Tensor) -> None:
        """where [B, T]: the position of each frame, from the first frame of the prompt."""
        self._rope = rope
        cos, sin = rope.at(where)
        self._tables: CosSin = (cos[:, None], sin[:, None])

    def __call__(self, x: Tensor) -> Tensor:
        """x [B, 2, T, H, D]."""
        return torch.cat((self._rope.rotate(x[..., :1, :], self._tables), x[..., 1:, :]), dim=-2)


class DiT(nn.Module):
    """Parameters start on the meta device. `columns` hold the inputs that the convolutions see again."""

    modulations: Tensor
    last: Tensor

    def __init__(self, c: FlowConfig) -> None:
        super().__init__()
        self.config = c
        self.time_in, self.time_out = nn.Linear(SINUSOIDS, c.dim), nn.Linear(c.dim, c.dim)
        self.input = nn.Linear(4 * MELS, c.dim)
        self.positions = nn.ModuleList(nn.Conv1d(c.dim, c.dim, TAPS, groups=GROUPS) for _ in range(2))
        self.blocks = nn.ModuleList(Block(c) for _ in range(c.depth))
        self.last_modulation = nn.Linear(c.dim, 2 * c.dim)
        self.output = nn.Linear(c.dim, MELS)
        self.rope: Rope | None = None

    def columns(self, dtype: torch.dtype) -> dict[str, Column]:
        """The last inputs of both convolutions in every step, for both branches."""
        shape = (STEPS, 2, self.config.dim, TAIL)
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
        self.register_buffer("modulations", table.to(dtype), persistent=False)
        self.register_buffer("last", torch.stack((scale + 1, shift), dim=1).to(dtype), persistent=False)
        rotations = angles(self.config.head_dim, FLOW_FRAMES, 1e4)
        self.rope = Rope(rotations, torch.float32, interleaved=True, in_float32=True).to(table.device)

    def _modulation(self, block: int) -> nn.Module:
        return self.blocks[block].get_submodule("modulation")

    def rope_at(self, where: Tensor) -> FirstHeadRope:
        """For frames at where [B, T]."""
        assert self.rope is not None
        return FirstHeadRope(self.rope, where)

    def conditions(self, cond: Tensor, mu: Tensor, speaker: Tensor) -> Tensor:
        """The input projection's share of what stays during all steps: cond, mu [B, T, 80], speaker [B, 80].

        [B, 2, T, C]. The second branch is unconditional: it has zeros in their place.
        """
        weight, bias = self.input.weight, self.input.bias
        given = torch.cat((cond, mu, speaker[:, None].expand_as(mu)), dim=-1).to(weight.dtype)
        first = F.linear(given, weight[:, MELS:], bias)
        return torch.stack((first, bias.expand_as(first)), dim=1)

    def forward(
        self, x: Tensor, fixed: Tensor, step: int, keys: Keys, rope: FirstHeadRope, state: State
    ) -> tuple[Tensor, Tensor]:
        """x [B, T, 80] -> velocities [B, 2, T, 80], and the tails [2, B, 2, C, 30] of the convolutions."""
        h = fixed + F.linear(x.to(fixed.dtype), self.input.weight[:, :MELS])[:, None]
        y, tails = h.flatten(0, 1).transpose(1, 2), []
        for i, conv in enumerate(self.positions):
            y = torch.cat((state[f"dit.{i}"][:, step].flatten(0, 1).to(y.dtype), y), dim=2)
            tails.append(y[..., -TAIL:].reshape(len(h), 2, -1, TAIL))
            y = F.mish(conv(y))
        h = h + y.transpose(1, 2).reshape(h.shape)
        for i, block in enumerate(self.blocks):
            h = block(h, self.modulations[step, i], (step, i), keys, rope)
        scale, shift = self.last[step]
        out: Tensor = self.output(F.layer_norm(h, h.shape[-1:], scale, shift, EPS))
        return out.float(), torch.stack(tails)
