"""Blocks of the network on channels-last memory [B, T, C], by kernels.

Each is made once from a block of `blocks`, with its weights, and computes what that computes. A
convolution with its norm is three launches: statistics, the padded input, and the convolution.
Nothing is planned by shape, so a piece of a new length costs no more than another. Convolutions in
16 bits are kernels, those in float32 are products.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from stentor import kernels
from stentor.kernels.types import SnakeParams
from stentor.models.kokoro import blocks
from stentor.models.kokoro.kernels import (
    Norm,
    Pool,
    Steps,
    convolution_input,
    statistics,
)
from stentor.models.kokoro.lstm_kernels import Recurrence, lstm


class LSTM:
    """Computes blocks.LSTM: one product for the inputs of all steps, and one kernel."""

    def __init__(
        self,
        net: blocks.LSTM,
    ) -> None:
        forward, backward = net.all_weights
        weight, last_weight, bias, last_bias = forward
        weight_back, last_weight_back, bias_back, last_bias_back = backward
        self.weight = torch.cat((weight, weight_back)).t()
        self.bias = torch.cat((bias + last_bias, bias_back + last_bias_back))
        self.recurrence = Recurrence.of(last_weight, last_weight_back)

    def __call__(
        self,
        x: Tensor,
        lengths: Tensor,
    ) -> Tensor:
        """x float32 [B, T, inputs] and lengths [B] -> [B, T, outputs]."""
        inputs = torch.addmm(self.bias, x.flatten(0, 1), self.weight)
        return lstm(inputs.view(*x.shape[:2], 2, -1), self.recurrence, lengths)


class Gains:
    """Gains and shifts of all norms of a part for a style, by one product."""

    def __init__(self) -> None:
        self._weights: list[Tensor] = []
        self._biases: list[Tensor] = []
        self._columns = 0
        self._product: tuple[Tensor, Tensor] | None = None

    def add(
        self,
        norm: nn.Module,
        channels: int,
    ) -> slice:
        """The columns of a norm's gains and shifts, of `channels` each. They are zero for those
        that the norm lacks."""
        assert isinstance(norm, blocks.StyledInstanceNorm)
        gain, shift = norm.fc.bias.chunk(2)
        behind = channels - len(gain)
        for weight in norm.fc.weight.chunk(2):
            self._weights.append(F.pad(weight, (0, 0, 0, behind)))
        for bias in (1 + gain, shift):
            self._biases.append(F.pad(bias, (0, behind)))
        first = self._columns
        self._columns += 2 * channels
        return slice(first, self._columns)

    def join(self) -> None:
        """Join the weights of the norms that were added."""
        weight = torch.cat(self._weights)
        self._product = (torch.cat(self._biases), weight.t())

    def __call__(
        self,
        style: Tensor,
    ) -> Tensor:
        """style [B, style] -> [B, columns]."""
        assert self._product is not None, "join follows the last norm"
        bias, weight = self._product
        return torch.addmm(bias, style, weight)


class Convolution:
    """A convolution of steps side by side. Its input has `pad` steps more at each end, and `inputs`
    channels, of which those that the weights lack are zeros."""

    def __init__(
        self,
        conv: nn.Module,
        inputs: int,
        dtype: torch.dtype | None = None,
    ) -> None:
        """dtype: of the result, where it is not that of the weights."""
        assert isinstance(conv, nn.Conv1d)
        self.pad = padding_of(conv)
        (self.dilation,) = conv.dilation
        self.bias = conv.bias
        self.dtype = dtype
        weight = F.pad(conv.weight, (0, 0, 0, inputs - conv.in_channels))
        self.in_16_bits = weight.dtype.itemsize == 2
        if self.in_16_bits:
            self.weight = by_tap(weight)
        else:
            assert self.dilation == 1, "a product reads steps side by side"
            self.weight = weight.transpose(1, 2).flatten(1).t().contiguous()

    def __call__(
        self,
        x: Tensor,
        residual: Tensor | None = None,
    ) -> Tensor:
        """residual + convolution of x [B, pad + T + pad, inputs]: [B, T, outputs]."""
        if self.in_16_bits:
            return kernels.conv1d.conv1d(
                x, self.weight, self.bias, self.dilation, None, residual, self.dtype
            )
        batch, _, channels = x.shape
        width = len(self.weight)
        rows = x.flatten(1).unfold(1, width, channels).reshape(-1, width)
        if self.bias is None:
            y = rows @ self.weight
        else:
            y = torch.addmm(self.bias, rows, self.weight)
        y = y.view(batch, -1, y.shape[1])
        if residual is not None:
            y += residual
        return y


def padding_of(conv: nn.Conv1d | nn.ConvTranspose1d) -> int:
    """Steps of zeros at each end."""
    assert not isinstance(conv.padding, str), "paddings are numbers"
    (pad,) = conv.padding
    return pad


def by_tap(weight: Tensor) -> Tensor:
    """A weight [O, C, k] as `kernels.conv1d.conv1d` reads it: laid out tap by tap."""
    return weight.permute(2, 0, 1).contiguous().permute(1, 2, 0)


class ResidualBlock:
    """Computes blocks.ResidualBlock for inputs of so many channels."""

    def __init__(
        self,
        block: nn.Module,
        inputs: int,
        gains: Gains,
    ) -> None:
        assert isinstance(block, blocks.ResidualBlock)
        outputs = block.conv1.out_channels
        self.first = gains.add(block.norm1, inputs)
        self.second = gains.add(block.norm2, outputs)
        self.conv1 = Convolution(block.conv1, inputs)
        self.conv2 = Convolution(block.conv2, outputs)
        self.pool = _pool(block.pool, inputs)
        self.shortcut = None
        if isinstance(block.conv1x1, nn.Conv1d):
            self.shortcut = Convolution(block.conv1x1, inputs)

    def __call__(
        self,
        x: Tensor,
        gains: Tensor,
        steps: Steps,
    ) -> Tensor:
        """x [B, T, inputs] -> [B, T, outputs], with a pool [B, 2 T, outputs]."""
        norm = Norm(statistics(x, steps), gains[:, self.first])
        y = convolution_input(x, steps, self.conv1.pad, norm, slope=blocks.SLOPE, pool=self.pool)
        if self.shortcut is not None:
            x = self.shortcut(x)
        if self.pool is not None:
            x = x.repeat_interleave(2, dim=1)
            steps = steps._replace(rate=2 * steps.rate)

        y = self.conv1(y)
        norm = Norm(statistics(y, steps), gains[:, self.second])
        y = convolution_input(y, steps, self.conv2.pad, norm, slope=blocks.SLOPE)
        return self.conv2(y, x).mul_(0.5**0.5)


def _pool(
    module: nn.Module,
    inputs: int,
) -> Pool | None:
    """The weights of a block's pool for inputs of so many channels. None: it has none."""
    if not isinstance(module, nn.ConvTranspose1d):
        return None
    assert module.bias is not None
    behind = inputs - module.in_channels
    weight = F.pad(module.weight[:, 0].float().t(), (0, behind))
    return Pool(weight.contiguous(), F.pad(module.bias.float(), (0, behind)))


class SnakeBlock:
    """Computes blocks.SnakeBlock."""

    def __init__(
        self,
        block: nn.Module,
        gains: Gains,
    ) -> None:
        assert isinstance(block, blocks.SnakeBlock)
        firsts = zip(block.convs1, block.adain1, block.alpha1, strict=True)
        seconds = zip(block.convs2, block.adain2, block.alpha2, strict=True)
        self.firsts = [SnakeConvolution(*parts, gains) for parts in firsts]
        self.seconds = [SnakeConvolution(*parts, gains) for parts in seconds]

    def __call__(
        self,
        x: Tensor,
        gains: Tensor,
        steps: Steps,
    ) -> Tensor:
        """x [B, T, C]."""
        for first, second in zip(self.firsts, self.seconds, strict=True):
            y = first(x, gains, steps)
            x = second(y, gains, steps, x)
        return x


class SnakeConvolution:
    """A convolution behind a norm and a Snake activation."""

    def __init__(
        self,
        conv: nn.Module,
        norm: nn.Module,
        alpha: Tensor,
        gains: Gains,
    ) -> None:
        assert isinstance(conv, nn.Conv1d)
        self.conv = Convolution(conv, conv.in_channels)
        self.gains = gains.add(norm, conv.in_channels)
        flat = alpha.detach().float().flatten()
        self.snake = SnakeParams(flat, 1 / flat)

    def __call__(
        self,
        x: Tensor,
        gains: Tensor,
        steps: Steps,
        residual: Tensor | None = None,
    ) -> Tensor:
        norm = Norm(statistics(x, steps), gains[:, self.gains])
        y = convolution_input(x, steps, self.conv.pad, norm, self.snake)
        return self.conv(y, residual)
