"""Prosody of a text: durations of its signs, pitch and energy."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from stentor.models.kokoro.blocks import (
    EPS,
    LSTM,
    SLOPE,
    Lengths,
    ResidualBlock,
    StyledLayerNorm,
)
from stentor.models.kokoro.config import KokoroConfig


class ChannelNorm(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.gamma = nn.Parameter(torch.ones(channels))
        self.beta = nn.Parameter(torch.zeros(channels))

    def forward(self, x: Tensor) -> Tensor:
        """x [B, n, T]."""
        y = F.layer_norm(x.transpose(1, 2), self.gamma.shape, self.gamma, self.beta, EPS)
        return y.transpose(1, 2)


class TextLayer(nn.Module):
    def __init__(
        self,
        channels: int,
        kernel: int,
    ) -> None:
        super().__init__()
        self.conv = nn.Conv1d(channels, channels, kernel, padding=(kernel - 1) // 2)
        self.norm = ChannelNorm(channels)

    def forward(self, x: Tensor) -> Tensor:
        return F.leaky_relu(self.norm(self.conv(x)), SLOPE)


class TextEncoder(nn.Module):
    """Tokens -> features of the text for the decoder."""

    def __init__(self, c: KokoroConfig) -> None:
        super().__init__()
        self.embedding = nn.Embedding(c.tokens, c.hidden)
        self.cnn = nn.ModuleList(TextLayer(c.hidden, c.text_kernel) for _ in range(c.layers))
        self.lstm = LSTM(c.hidden, c.hidden)

    def forward(
        self,
        tokens: Tensor,
        lengths: Lengths,
        mask: Tensor,
    ) -> Tensor:
        """tokens [B, T], mask [B, T, 1] float -> [B, T, hidden]."""
        x = (self.embedding(tokens) * mask).transpose(1, 2)
        for layer in self.cnn:
            x = layer(x) * mask.transpose(1, 2)
        return self.lstm.over(x.transpose(1, 2), lengths)


class DurationLayer(nn.Module):
    def __init__(
        self,
        channels: int,
        style: int,
    ) -> None:
        super().__init__()
        self.lstm = LSTM(channels + style, channels)
        self.norm = StyledLayerNorm(style, channels)

    def forward(
        self,
        x: Tensor,
        style: Tensor,
        lengths: Lengths,
    ) -> Tensor:
        normed: Tensor = self.norm(self.lstm.over(x, lengths), style)
        return normed


class Durations(nn.Module):
    """Features of the language model -> features of the prosody, and frames of each token."""

    def __init__(self, c: KokoroConfig) -> None:
        super().__init__()
        layers = (DurationLayer(c.hidden, c.style) for _ in range(c.layers))
        self.text_encoder = nn.ModuleList(layers)
        self.lstm = LSTM(c.hidden + c.style, c.hidden)
        self.duration_proj = nn.Linear(c.hidden, c.max_duration)

    def forward(
        self,
        x: Tensor,
        style: Tensor,
        speed: Tensor,
        lengths: Lengths,
        mask: Tensor,
    ) -> tuple[Tensor, Tensor]:
        """x [B, T, hidden], style [B, style], speed [B], mask [B, T, 1]
        -> [B, T, hidden + style], int64 [B, T]."""
        along = style[:, None].expand(-1, x.shape[1], -1)
        x = torch.cat((x, along), dim=-1) * mask
        for layer in self.text_encoder:
            x = torch.cat((layer(x, style, lengths), along), dim=-1) * mask
        logits = self.duration_proj(self.lstm.over(x, lengths))
        frames = torch.sigmoid(logits).sum(-1) / speed[:, None]
        return x, frames.round().clamp(min=1).long()


class Curves(nn.Module):
    """Features of the prosody by frame -> pitch in Hz and energy, at two steps per frame."""

    def __init__(self, c: KokoroConfig) -> None:
        super().__init__()
        half = c.hidden // 2

        def blocks() -> nn.ModuleList:
            return nn.ModuleList(
                [
                    ResidualBlock(c.hidden, c.hidden, c.style),
                    ResidualBlock(c.hidden, half, c.style, doubles=True),
                    ResidualBlock(half, half, c.style),
                ]
            )

        self.shared = LSTM(c.hidden + c.style, c.hidden)
        self.F0 = blocks()
        self.N = blocks()
        self.F0_proj = nn.Conv1d(half, 1, 1)
        self.N_proj = nn.Conv1d(half, 1, 1)

    def forward(
        self,
        x: Tensor,
        style: Tensor,
        lengths: Lengths,
        mask: Tensor,
        doubled: Tensor,
    ) -> tuple[Tensor, Tensor]:
        """x [B, T, hidden + style], masks [B, 1, T] and [B, 1, 2 T] ->
        [B, 1, 2 T] each."""
        shared = self.shared.over(x, lengths).transpose(1, 2)
        curves = []
        for blocks, project in ((self.F0, self.F0_proj), (self.N, self.N_proj)):
            first, second, third = blocks
            y = first(shared, style, mask, doubled)
            y = second(y, style, mask, doubled)
            y = third(y, style, doubled, doubled)
            curves.append(project(y) * doubled)
        pitch, energy = curves
        return pitch, energy
