"""Blocks of Kokoro that see padded rows: what stands behind a row's end changes nothing of it.

Convolutions read zeros there, norms take their statistics over the row's own steps, and LSTMs run
over packed rows.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

EPS = 1e-5
SLOPE = 0.2
SNAKES = 3  # convolutions of each kind in a block of the vocoder


class Lengths(NamedTuple):
    """Steps of padded rows that exist: int64 [B] on the host and on the device."""

    host: Tensor
    device: Tensor


class LSTM(nn.LSTM):
    """An LSTM in both directions, over padded rows.

    by_kernel: computes the same from inputs and the lengths on the device, where it runs.
    """

    def __init__(
        self,
        inputs: int,
        outputs: int,
    ) -> None:
        super().__init__(inputs, outputs // 2, batch_first=True, bidirectional=True)
        self.by_kernel: Callable[[Tensor, Tensor], Tensor] | None = None

    def over(
        self,
        x: Tensor,
        lengths: Lengths,
    ) -> Tensor:
        """Rows [B, T, inputs] -> [B, T, outputs]. Zeros stand behind their ends."""
        if self.by_kernel is not None:
            return self.by_kernel(x, lengths.device)
        rows = pack_padded_sequence(x, lengths.host, batch_first=True, enforce_sorted=False)
        y, _ = self(rows)
        padded, _ = pad_packed_sequence(y, batch_first=True, total_length=x.shape[1])
        return padded


class Styled(nn.Module):
    """Gains and shifts of channels by a style."""

    def __init__(
        self,
        style: int,
        channels: int,
    ) -> None:
        super().__init__()
        self.fc = nn.Linear(style, 2 * channels)

    def gains(self, style: Tensor) -> tuple[Tensor, Tensor]:
        """style [B, style] -> gain and shift of each channel, [B, channels] each."""
        gain, shift = self.fc(style).chunk(2, dim=-1)
        return 1 + gain, shift


class StyledInstanceNorm(Styled):
    """Norm of each channel over the row's own steps."""

    def forward(
        self,
        x: Tensor,
        style: Tensor,
        mask: Tensor,
    ) -> Tensor:
        """x [B, n, T], style [B, style], mask [B, 1, T] float -> float32 [B, n, T]."""
        count = mask.sum(-1, keepdim=True)
        y = x.float()
        y = y - (y * mask).sum(-1, keepdim=True) / count
        variance = (y.square() * mask).sum(-1, keepdim=True) / count
        gain, shift = self.gains(style)
        scale = gain[..., None] * torch.rsqrt(variance + EPS)
        styled: Tensor = torch.addcmul(shift[..., None], y, scale)
        return styled


class StyledLayerNorm(Styled):
    """Norm of each step over its channels."""

    def forward(
        self,
        x: Tensor,
        style: Tensor,
    ) -> Tensor:
        """x [B, T, n], style [B, style] -> [B, T, n]."""
        gain, shift = self.gains(style)
        return gain[:, None] * F.layer_norm(x, x.shape[-1:], eps=EPS) + shift[:, None]


class ResidualBlock(nn.Module):
    """Two convolutions with styled norms. doubles: it has two steps for each."""

    def __init__(
        self,
        inputs: int,
        outputs: int,
        style: int,
        doubles: bool = False,
    ) -> None:
        super().__init__()
        self.doubles = doubles
        self.conv1 = nn.Conv1d(inputs, outputs, 3, padding=1)
        self.conv2 = nn.Conv1d(outputs, outputs, 3, padding=1)
        self.norm1 = StyledInstanceNorm(style, inputs)
        self.norm2 = StyledInstanceNorm(style, outputs)
        if inputs != outputs:
            self.conv1x1: nn.Module = nn.Conv1d(inputs, outputs, 1, bias=False)
        else:
            self.conv1x1 = nn.Identity()
        if doubles:
            self.pool: nn.Module = nn.ConvTranspose1d(
                inputs, inputs, 3, stride=2, padding=1, output_padding=1, groups=inputs
            )
        else:
            self.pool = nn.Identity()

    def forward(
        self,
        x: Tensor,
        style: Tensor,
        mask: Tensor,
        doubled: Tensor,
    ) -> Tensor:
        """x [B, n, T]. mask, doubled: of its steps, and of twice as many."""
        y = self._active(self.norm1, x, style, mask)
        if self.doubles:
            y = self.pool(y)
            x = x.repeat_interleave(2, dim=-1)
            mask = doubled
            y = y * mask.to(y.dtype)
        y = self.conv1(y)
        y = self.conv2(self._active(self.norm2, y, style, mask))
        mixed: Tensor = (y + self.conv1x1(x)) * 0.5**0.5
        return mixed

    def _active(
        self,
        norm: nn.Module,
        x: Tensor,
        style: Tensor,
        mask: Tensor,
    ) -> Tensor:
        y = F.leaky_relu(norm(x, style, mask), SLOPE)
        return (y * mask).to(x.dtype)


class SnakeBlock(nn.Module):
    """Convolutions of the vocoder with styled norms and Snake activations."""

    def __init__(
        self,
        channels: int,
        kernel: int,
        dilations: tuple[int, ...],
        style: int,
    ) -> None:
        super().__init__()

        def convolutions(steps: tuple[int, ...]) -> nn.ModuleList:
            return nn.ModuleList(
                nn.Conv1d(channels, channels, kernel, dilation=n, padding=(kernel - 1) * n // 2)
                for n in steps
            )

        def norms() -> nn.ModuleList:
            return nn.ModuleList(StyledInstanceNorm(style, channels) for _ in dilations)

        def alphas() -> nn.ParameterList:
            return nn.ParameterList(torch.ones(1, channels, 1) for _ in dilations)

        self.convs1 = convolutions(dilations)
        self.convs2 = convolutions((1,) * len(dilations))
        self.adain1 = norms()
        self.adain2 = norms()
        self.alpha1 = alphas()
        self.alpha2 = alphas()

    def forward(
        self,
        x: Tensor,
        style: Tensor,
        mask: Tensor,
    ) -> Tensor:
        """x [B, n, T], of which the steps in `mask` [B, 1, T] exist."""
        for at, conv in enumerate(self.convs1):
            y = snake(self.adain1[at](x, style, mask), self.alpha1[at])
            y = conv((y * mask).to(x.dtype))
            y = snake(self.adain2[at](y, style, mask), self.alpha2[at])
            x = x + self.convs2[at]((y * mask).to(x.dtype))
        return x


def snake(x: Tensor, alpha: Tensor) -> Tensor:
    """Snake activation (Ziyin et al., 2020)."""
    return x + torch.sin(alpha * x).square() / alpha
