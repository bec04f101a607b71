"""The head: from a vector of the backbone and noise to the latent of a frame, by an MLP that is
modulated by both."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from stentor.layers.linear import Linear
from stentor.models.calm_config import LSD, MAX_STEPS, HeadConfig

EPS = 1e-6
TIME_EPS = 1e-5
WAVES = 128
"""Frequencies of a time embedding."""


class Alpha(nn.Module):
    """h * alpha / standard deviation of h, which is taken about the mean although h is not
    centred."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.alpha = nn.Parameter(torch.empty(size))

    def forward(self, h: Tensor) -> Tensor:
        return h * self.alpha * torch.rsqrt(h.var(-1, keepdim=True) + TIME_EPS)  # of n - 1


class RootMeanSquare(Alpha):
    """h * alpha / root mean square of h."""

    def forward(self, h: Tensor) -> Tensor:
        mean_square = h.square().mean(-1, keepdim=True)
        return h * self.alpha * torch.rsqrt(mean_square + TIME_EPS)


class TimeEmbedding(nn.Module):
    """Times [...] from 0 to 1 -> [..., size]."""

    def __init__(self, size: int, rms: bool) -> None:
        super().__init__()
        norm = RootMeanSquare(size) if rms else Alpha(size)
        self.freqs = nn.Parameter(torch.empty(WAVES))
        self.mlp = nn.Sequential(
            nn.Linear(2 * WAVES, size),
            nn.SiLU(),
            nn.Linear(size, size),
            norm,
        )

    def forward(self, t: Tensor) -> Tensor:
        angle = t[..., None] * self.freqs
        out: Tensor = self.mlp(torch.cat((angle.cos(), angle.sin()), dim=-1))
        return out


class ResidualBlock(nn.Module):
    def __init__(self, size: int) -> None:
        super().__init__()
        self.in_ln = nn.LayerNorm(size, eps=EPS)
        self.mlp = nn.Sequential(
            Linear(size, size),
            nn.SiLU(),
            Linear(size, size),
        )
        self.adaLN_modulation = nn.Sequential(
            nn.SiLU(),
            nn.Linear(size, 3 * size),
        )

    def forward(
        self,
        h: Tensor,
        shift: Tensor,
        scale: Tensor,
        gate: Tensor,
    ) -> Tensor:
        return torch.addcmul(
            h,
            gate,
            self.mlp(torch.addcmul(shift, self.in_ln(h), scale)),
        )


class FinalLayer(nn.Module):
    def __init__(self, size: int, latent: int) -> None:
        super().__init__()
        self.linear = Linear(size, latent)
        self.adaLN_modulation = nn.Sequential(
            nn.SiLU(),
            nn.Linear(size, 2 * size),
        )

    def forward(
        self,
        h: Tensor,
        shift: Tensor,
        scale: Tensor,
    ) -> Tensor:
        normed = F.layer_norm(h, h.shape[-1:], eps=EPS)
        out: Tensor = self.linear(torch.addcmul(shift, normed, scale))
        return out


class FlowHead(nn.Module):
    """Named as in checkpoints. `process_weights_after_loading` must follow the loading."""

    times: Tensor
    step_sizes: Tensor

    def __init__(self, c: HeadConfig) -> None:
        super().__init__()
        size = c.width
        self.kind = c.flow
        self.cond_embed = Linear(c.condition, size)
        self.input_proj = Linear(c.latent, size)
        self.time_embed = nn.ModuleList(
            TimeEmbedding(size, c.rms_times) for _ in range(2 if c.flow == LSD else 0)
        )
        self.res_blocks = nn.ModuleList(ResidualBlock(size) for _ in range(c.depth))
        self.final_layer = FinalLayer(size, c.latent)

    def process_weights_after_loading(self) -> None:
        """Make one layer of all modulations, whose scales include the 1 that is added to them, and
        the tables of times, which are the same for all frames."""
        parts = [block.adaLN_modulation[1] for block in (*self.res_blocks, self.final_layer)]
        size = self.input_proj.out_features
        weight = torch.cat([p.weight for p in parts])
        bias = torch.cat([p.bias for p in parts])
        bias.view(-1, size)[1::3] += 1  # of shift, scale and gate, in each block
        self.modulation = Linear(
            size,
            len(weight),
            device="meta",
        )
        self.modulation.weight = nn.Parameter(weight)
        self.modulation.bias = nn.Parameter(bias)
        for block in (*self.res_blocks, self.final_layer):
            del block.adaLN_modulation
        dtype = weight.dtype
        if self.kind == LSD:
            times, sizes = self._tables()
            self.register_buffer(
                "times",
                times.to(dtype),
                persistent=False,
            )
            self.register_buffer(
                "step_sizes",
                sizes,
                persistent=False,
            )
        del self.time_embed

    def _tables(self) -> tuple[Tensor, Tensor]:
        """For each number of steps, what each step adds to the condition [MAX_STEPS + 1, MAX_STEPS,
        size], and its size [MAX_STEPS + 1, MAX_STEPS, 1], 0 behind the last step."""
        where = self.input_proj.weight.device
        steps = torch.arange(MAX_STEPS + 1, dtype=torch.float32, device=where).clamp_min(1)[:, None]
        at = torch.arange(
            MAX_STEPS,
            dtype=torch.float32,
            device=where,
        )
        begin, end = self.time_embed
        with torch.no_grad():
            times = (begin.float()(at / steps) + end.float()((at + 1) / steps)) / 2
        return times, torch.where(at < steps, 1 / steps, 0.0)[..., None]

    def forward(
        self,
        c: Tensor,
        noise: Tensor,
        steps: Tensor,
        num_evals: int,
    ) -> Tensor:
        """c [B, condition], noise [B, latent] float32, steps [B] of LSD -> latents [B, latent]
        float32.

        num_evals: of the row that has most steps. The other kinds have one evaluation and no times.
        """
        condition = self.cond_embed(c)
        if self.kind == "drifting":
            return self._evaluate(condition, noise)
        if self.kind == "pointwise":
            return noise + self._evaluate(condition, noise)
        x = noise
        sizes = self.step_sizes[steps]
        times = self.times[steps]
        for i in range(num_evals):
            x = torch.addcmul(
                x,
                self._evaluate(condition + times[:, i], x),
                sizes[:, i],
            )
        return x

    def _evaluate(self, y: Tensor, x: Tensor) -> Tensor:
        size = y.shape[-1]
        modulation = self.modulation(F.silu(y)).unflatten(-1, (-1, size)).unbind(-2)
        h = self.input_proj(x.to(y.dtype))
        for i, block in enumerate(self.res_blocks):
            h = block(h, *modulation[3 * i : 3 * i + 3])
        out: Tensor = self.final_layer(h, *modulation[-2:])
        return out.float()
