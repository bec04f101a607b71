"""Flow matching: codes to mel frames."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from stentor.layers.types import Column, State
from stentor.models.cosyvoice3.codec_dit import STEPS, DiT, step_times
from stentor.models.cosyvoice3.codec_keys import CallKeys, Keys
from stentor.models.cosyvoice3.config import MELS, SPEAKER, FlowConfig
from stentor.models.cosyvoice3.ops import taps_product

PAST = 2
"""Codes before a cell that its first frames depend on."""


class LookAhead(nn.Module):
    """Each code with the three after it and the two before: [B, 2 + n + 3, 80] -> [B, n, 80]."""

    def __init__(self, c: FlowConfig) -> None:
        super().__init__()
        self.conv1 = nn.Conv1d(MELS, c.look_channels, c.look + 1)
        self.conv2 = nn.Conv1d(c.look_channels, MELS, PAST + 1)
        self.ahead = c.look

    def forward(self, x: Tensor, begun: Tensor) -> Tensor:
        """begun [B, 2 + n]: whether a code is one of the stream's. What is before the stream is zero in both layers."""
        y = F.leaky_relu(taps_product(self.conv1.weight, self.conv1.bias, x), 0.01) * begun[..., None]
        return taps_product(self.conv2.weight, self.conv2.bias, y) + x[:, PAST : x.shape[1] - self.ahead]


class Flow(nn.Module):
    """Parameters start on the meta device in float32. Frames and codes are counted from the first one of the prompt."""

    noise: Tensor
    lengths: Tensor

    def __init__(self, c: FlowConfig) -> None:
        super().__init__()
        self.config = c
        self.input_embedding = nn.Embedding(c.codes, MELS)
        self.spk_embed_affine_layer = nn.Linear(SPEAKER, MELS)
        self.look = LookAhead(c)
        self.dit = DiT(c)

    def process_weights_after_loading(self, noise: Tensor, dtype: torch.dtype) -> None:
        """noise: `codec_noise.flow_noise`. dtype: of the transformer. All else stays float32."""
        device = self.input_embedding.weight.device
        self.register_buffer("noise", noise.to(device), persistent=False)
        self.register_buffer("lengths", step_times().length.to(device), persistent=False)
        self.dit.process_weights_after_loading(dtype)

    def columns(self) -> dict[str, Column]:
        """State of a stream beside its keys and values."""
        return self.dit.columns(self.dit.output.weight.dtype)

    def speaker(self, embedding: Tensor) -> Tensor:
        """A speaker embedding [B, 192] of any length -> [B, 80]."""
        out: Tensor = self.spk_embed_affine_layer(F.normalize(embedding, dim=-1, eps=1e-12))
        return out

    def means(self, codes: Tensor, first: Tensor, end: Tensor) -> Tensor:
        """codes [B, 2 + n + 3] from code first - 2 on -> mu [B, 2 n, 80] of codes first .. first + n - 1.

        first, end [B]: there are no codes below 0, and none from `end` on: zeros stand in their place.
        """
        at = first[:, None] - PAST + torch.arange(codes.shape[1], device=codes.device)
        exist = (at >= 0) & (at < end[:, None])
        x = self.input_embedding(codes.clamp(0, self.config.codes - 1)) * exist[..., None]
        mu: Tensor = self.look(x, (at >= 0)[:, : codes.shape[1] - self.config.look])
        return mu.repeat_interleave(self.config.ratio, dim=1)

    def solve(
        self, mu: Tensor, cond: Tensor, speaker: Tensor, at: Tensor, keys: Keys, state: State
    ) -> tuple[Tensor, State]:
        """Ten Euler steps with guidance on frames at [B] .. of mu, cond [B, T, 80] -> mel [B, T, 80] and next state."""
        where = (at[:, None] + torch.arange(mu.shape[1], device=mu.device)).clamp_max(len(self.noise) - 1)
        x, rope = self.noise[where], self.dit.rope_at(where)
        fixed, tails = self.dit.conditions(cond, mu, speaker), []
        guidance = self.config.guidance
        for step in range(STEPS):
            v, tail = self.dit(x, fixed, step, keys, rope, state)
            x = x + self.lengths[step] * ((1 + guidance) * v[:, 0] - guidance * v[:, 1])
            tails.append(tail)
        first, second = zip(*tails, strict=True)
        return x, {"dit.0": torch.stack(first, dim=1), "dit.1": torch.stack(second, dim=1)}

    def whole(self, mu: Tensor, cond: Tensor, speaker: Tensor, count: Tensor) -> Tensor:
        """Run the flow on whole rows, of which the first `count` [B] frames exist and all see each other."""
        fresh = {n: c.rows(len(mu), mu.device) for n, c in self.columns().items()}
        return self.solve(mu, cond, speaker, torch.zeros_like(count), CallKeys(count, mu.shape[1]), fresh)[0]
