"""The diffusion head: a velocity from a noisy latent, a timestep and a hidden state."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from stentor import kernels
from stentor.layers.linear import Linear
from stentor.layers.norm import RMSNorm, rms_norm
from stentor.layers.transformer import SwiGLU
from stentor.models.vibevoice.config import HeadConfig

WAVES = 128
PERIOD = 10_000.0
"""Frequencies of a timestep's embedding, and the longest period."""
PARTS = 3
"""Shift, scale and gate of a layer. The output has the first two."""


class TimestepEmbedder(nn.Module):
    """A timestep as a vector."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.mlp = nn.Sequential(
            Linear(2 * WAVES, width, bias=False),
            nn.SiLU(),
            Linear(width, width, bias=False),
        )

    def forward(self, t: Tensor) -> Tensor:
        """t [n] -> [n, width]. Timesteps are rounded to the weights' dtype first, as the original
        does: 949 is 948 in bfloat16."""
        first = self.mlp[0]
        assert isinstance(first, Linear)
        dtype = first.weight.dtype
        wave = torch.arange(
            WAVES,
            dtype=torch.float32,
            device=t.device,
        )
        frequency = torch.exp(-math.log(PERIOD) * wave / WAVES)
        rounded = t.to(dtype).float()
        angle = rounded[:, None] * frequency
        waves = torch.cat((angle.cos(), angle.sin()), -1)
        out: Tensor = self.mlp(waves.to(dtype))
        return out


class Modulation(nn.Sequential):
    """Shifts, scales and gates that a condition sets in a layer."""

    def __init__(self, width: int, parts: int) -> None:
        linear = Linear(width, parts * width, bias=False)
        super().__init__(nn.SiLU(), linear)

    @property
    def weight(self) -> Tensor:
        """The weight of its product."""
        linear = self[1]
        assert isinstance(linear, Linear)
        return linear.weight


class HeadLayer(nn.Module):
    def __init__(self, c: HeadConfig) -> None:
        super().__init__()
        self.norm = RMSNorm(c.hidden, c.eps)
        self.ffn = SwiGLU(c.hidden, c.ffn)
        self.adaLN_modulation = Modulation(c.hidden, PARTS)


class OutputLayer(nn.Module):
    def __init__(self, c: HeadConfig) -> None:
        super().__init__()
        self.linear = Linear(c.hidden, c.latent, bias=False)
        self.adaLN_modulation = Modulation(c.hidden, PARTS - 1)


def modulation_weight(part: HeadLayer | OutputLayer) -> Tensor:
    """The weight of the product that makes a part's shifts, scales and gates."""
    modulation = part.adaLN_modulation
    assert isinstance(modulation, Modulation)
    return modulation.weight


class DiffusionHead(nn.Module):
    """Modules are named as in the checkpoint. `process_weights_after_loading` must follow the
    loading."""

    times: Tensor

    def __init__(self, c: HeadConfig) -> None:
        super().__init__()
        self.config = c
        self.noisy_images_proj = Linear(c.latent, c.hidden, bias=False)
        self.cond_proj = Linear(c.hidden, c.hidden, bias=False)
        self.t_embedder = TimestepEmbedder(c.hidden)
        self.layers = nn.ModuleList(HeadLayer(c) for _ in range(c.layers))
        self.final_layer = OutputLayer(c)

    @property
    def blocks(self) -> list[HeadLayer]:
        """Its layers, as they are typed."""
        return [layer for layer in self.layers if isinstance(layer, HeadLayer)]

    def process_weights_after_loading(self, times: Tensor) -> None:
        """Make one layer of all modulations, and embed the timesteps `times` [numbers of steps,
        steps]."""
        parts: list[HeadLayer | OutputLayer] = [*self.blocks, self.final_layer]
        weight = torch.cat([modulation_weight(part) for part in parts])
        self.modulation = Linear(
            self.config.hidden,
            len(weight),
            bias=False,
            device="meta",
        )
        self.modulation.weight = nn.Parameter(weight, requires_grad=False)
        for part in parts:
            del part.adaLN_modulation
        flat = times.to(weight.device).flatten()
        embedded: Tensor = self.t_embedder(flat)
        table = embedded.view(*times.shape, -1)
        self.register_buffer("times", table, persistent=False)
        del self.t_embedder

    def velocity(self, z: Tensor, active: Tensor) -> Tensor:
        """z [B, latent] and activated conditions [B, hidden], the timestep's among them -> [B,
        latent]."""
        modulation = self.modulation(active)
        parts = modulation.unflatten(-1, (-1, self.config.hidden))
        numbers = parts.unbind(-2)
        x = self.noisy_images_proj(z)
        delta = None
        gate = None
        for i, layer in enumerate(self.blocks):
            shift, scale, next_gate = numbers[PARTS * i : PARTS * (i + 1)]
            weight = layer.norm.weight
            x, h = add_modulated_norm(x, delta, gate, weight, scale, shift, self.config.eps)
            delta = layer.ffn.alone(h)
            gate = next_gate
        shift, scale = numbers[-2:]
        _, h = add_modulated_norm(x, delta, gate, None, scale, shift, self.config.eps)
        out: Tensor = self.final_layer.linear(h)
        return out


def add_modulated_norm(
    x: Tensor,
    delta: Tensor | None,
    gate: Tensor | None,
    weight: Tensor | None,
    scale: Tensor,
    shift: Tensor,
    eps: float,
) -> tuple[Tensor, Tensor]:
    """(s, rms_norm(s) * weight * (1 + scale) + shift) for s = x + gate * delta, without what is
    None. All [B, C]."""
    if kernels.enabled(kernels.Kernel.FLOW, x):
        from stentor.models.vibevoice.kernels import add_modulated_norm as fused

        return fused(x, delta, gate, weight, scale, shift, eps)
    if delta is not None:
        assert gate is not None
        x = x + gate * delta
    if weight is None:
        normed = F.rms_norm(x, x.shape[-1:], eps=eps)
    else:
        normed = rms_norm(x, weight, eps, weight_after_cast=True)
    return x, normed * (1 + scale) + shift
