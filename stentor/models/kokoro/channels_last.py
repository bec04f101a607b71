"""Parts of the network on channels-last memory [B, T, C], by kernels (`channels_last_blocks`)."""

from __future__ import annotations

from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from stentor import kernels
from stentor.models.kokoro import codec, prosody
from stentor.models.kokoro.blocks import EPS, SLOPE, Lengths
from stentor.models.kokoro.channels_last_blocks import (
    Convolution,
    Gains,
    ResidualBlock,
    SnakeBlock,
    by_tap,
    padding_of,
)
from stentor.models.kokoro.codec import step_mask
from stentor.models.kokoro.kernels import Steps, convolution_input
from stentor.models.kokoro.transforms import Transforms

CHANNELS = 64
"""Joined channels are padded to a multiple, which makes their loads aligned."""
SPECTRUM = 32
"""Bins of the source are padded to a multiple of this."""
UP_SLOPE = 0.1
POST_SLOPE = 0.01


def aligned(
    channels: int,
    multiple: int = CHANNELS,
) -> int:
    """`channels` and those that are padded."""
    return -(-channels // multiple) * multiple


class TextEncoder:
    """Computes prosody.TextEncoder."""

    def __init__(
        self,
        encoder: prosody.TextEncoder,
    ) -> None:
        self.embedding = encoder.embedding
        self.lstm = encoder.lstm
        self.layers = []
        for layer in encoder.cnn:
            assert isinstance(layer, prosody.TextLayer)
            conv = Convolution(layer.conv, layer.conv.in_channels)
            self.layers.append((conv, layer.norm.gamma, layer.norm.beta))

    def __call__(
        self,
        tokens: Tensor,
        lengths: Lengths,
        mask: Tensor,
    ) -> Tensor:
        """tokens [B, T], mask [B, T, 1] float -> [B, T, hidden]."""
        x = self.embedding(tokens) * mask
        for conv, gamma, beta in self.layers:
            y = conv(F.pad(x, (0, 0, conv.pad, conv.pad)))
            y = F.layer_norm(y, gamma.shape, gamma, beta, EPS)
            x = F.leaky_relu_(y, SLOPE).mul_(mask)
        return self.lstm.over(x, lengths)


class Curves:
    """Computes prosody.Curves."""

    def __init__(
        self,
        curves: prosody.Curves,
    ) -> None:
        self.shared = curves.shared
        self.gains = Gains()
        self.branches = [
            self._branch(curves.F0, curves.F0_proj),
            self._branch(curves.N, curves.N_proj),
        ]
        self.gains.join()

    def _branch(
        self, modules: nn.ModuleList, project: nn.Conv1d
    ) -> tuple[list[ResidualBlock], nn.Conv1d]:
        blocks = []
        for module in modules:
            inputs = cast("nn.Conv1d", module.conv1).in_channels
            blocks.append(ResidualBlock(module, inputs, self.gains))
        return blocks, project

    def __call__(
        self,
        x: Tensor,
        style: Tensor,
        lengths: Lengths,
    ) -> Tensor:
        """x [B, T, hidden + style] -> pitch and energy [B, 2, 2 T]."""
        frames = lengths.device
        shared = self.shared.over(x, lengths)
        gains = self.gains(style)
        curves = []
        for (first, second, third), project in self.branches:
            y = first(shared, gains, Steps(frames, 1))
            y = second(y, gains, Steps(frames, 1))
            y = third(y, gains, Steps(frames, 2))
            curves.append(F.linear(y, project.weight[..., 0], project.bias)[..., 0])
        return torch.stack(curves, dim=1) * step_mask(frames, x.shape[1], 2)


class Stage:
    """One stage of the vocoder: `rate` times as many steps, mixed with the source."""

    def __init__(
        self,
        generator: codec.Generator,
        at: int,
        gains: Gains,
    ) -> None:
        self.last = at + 1 == len(generator.c.rates)
        up = generator.ups[at]
        assert isinstance(up, nn.ConvTranspose1d)
        (self.rate,) = up.stride
        self.trim = padding_of(up)
        assert up.kernel_size == (2 * self.rate,), "two inputs reach an output"
        self.weight = up.weight.permute(2, 1, 0).contiguous().permute(2, 1, 0)
        self.bias = up.bias

        source = generator.noise_convs[at]
        assert isinstance(source, nn.Conv1d)
        (self.source_stride,) = source.stride
        self.source_pad = padding_of(source)
        self.source_bias = source.bias
        behind = aligned(source.in_channels, SPECTRUM) - source.in_channels
        weight = F.pad(source.weight, (0, 0, 0, behind))
        if self.source_stride > 1:
            self.source_weight = weight.permute(0, 2, 1).contiguous().permute(0, 2, 1)
        else:
            self.source_weight = by_tap(weight)
        self.source_block = SnakeBlock(generator.noise_res[at], gains)
        count = len(generator.c.block_kernels)
        modules = generator.resblocks[at * count : (at + 1) * count]
        self.blocks = [SnakeBlock(module, gains) for module in modules]

    def __call__(
        self,
        x: Tensor,
        spectrum: Tensor,
        gains: Tensor,
        before: Steps,
        steps: Steps,
    ) -> Tensor:
        """x [B, T, C] with the steps `before` -> [B, T * rate, C / 2], of which `steps` exist. The
        last stage has one step more."""
        source = self._source(spectrum, x.shape[1] * self.rate + steps.extra)
        x = self._upsampled(x, before) + self.source_block(source, gains, steps)
        mixed = [block(x, gains, steps) for block in self.blocks]
        total = mixed[0]
        for y in mixed[1:]:
            total += y
        return total.div_(len(mixed))

    def _source(
        self,
        spectrum: Tensor,
        count: int,
    ) -> Tensor:
        if self.source_stride == 1:
            return kernels.conv1d.conv1d(
                spectrum, self.source_weight, self.source_bias, 1, None, None
            )
        taps = self.source_weight.shape[2]
        needed = taps + (count - 1) * self.source_stride
        behind = needed - self.source_pad - spectrum.shape[1]
        wide = F.pad(spectrum, (0, 0, self.source_pad, behind))
        return kernels.conv1d.strided_conv1d(
            wide, self.source_weight, self.source_bias, self.source_stride, None, None
        )

    def _upsampled(
        self,
        x: Tensor,
        steps: Steps,
    ) -> Tensor:
        wide = convolution_input(x, steps, 1, slope=UP_SLOPE)
        y = kernels.conv1d.conv_transpose1d(wide, self.weight, self.bias, self.rate, None, None)
        first = self.trim
        end = first + x.shape[1] * self.rate
        if self.last:
            # One step more stands in front, a reflection.
            y[:, first - 1] = y[:, first + 1]
            first -= 1
        return y[:, first:end]


class Generator:
    """Computes codec.Generator."""

    def __init__(
        self,
        generator: codec.Generator,
        dtype: torch.dtype,
        gains: Gains,
    ) -> None:
        """dtype: of the convolutions."""
        c = generator.c
        self.c = c
        self.dtype = dtype
        self.source = generator.m_source
        self.stages = [Stage(generator, at, gains) for at in range(len(c.rates))]
        device = generator.conv_post.weight.device
        self.transforms = Transforms(c.fft, c.hop, device)
        self.post = Convolution(
            _narrow(generator.conv_post, dtype), generator.conv_post.in_channels, torch.float32
        )

    def __call__(
        self,
        x: Tensor,
        gains: Tensor,
        pitch: Tensor,
        noise: Tensor,
        lengths: Tensor,
    ) -> Tensor:
        """x [B, T, C] and pitch [B, 1, T] of rows with `lengths` [B] steps -> [B, samples]."""
        count = x.shape[1]
        spectrum = self._spectrum(self.source(pitch, noise), lengths)
        steps = Steps(lengths, 1)
        for stage in self.stages:
            before = steps
            steps = Steps(lengths, steps.rate * stage.rate, int(stage.last))
            x = stage(x, spectrum, gains, before, steps)
        wide = convolution_input(x, steps, self.post.pad, slope=POST_SLOPE)
        y = self.post(wide)
        magnitudes, phases = y.chunk(2, dim=-1)
        mask = step_mask(lengths, count, steps.rate, steps.extra).transpose(1, 2)
        return self.transforms.samples(magnitudes.exp(), phases.sin(), mask)

    def _spectrum(
        self,
        source: Tensor,
        lengths: Tensor,
    ) -> Tensor:
        """Magnitudes and phases [B, steps, SPECTRUM] of the source. Each row reflects at its own
        end."""
        c = self.c
        rows = source.float().gather(1, codec.reflected_places(source, lengths, c))
        spectrum = torch.cat(self.transforms.spectrum(rows), dim=-1)
        count = source.shape[1] // c.upsampling
        mask = step_mask(lengths, count, c.upsampling // c.hop, extra=1).transpose(1, 2)
        behind = aligned(spectrum.shape[2], SPECTRUM) - spectrum.shape[2]
        return F.pad((spectrum * mask).to(self.dtype), (0, behind))


def _narrow(
    conv: nn.Conv1d,
    dtype: torch.dtype,
) -> nn.Conv1d:
    """The last convolution with weights in 16 bits, whose sums stay in float32."""
    (taps,) = conv.kernel_size
    narrow = nn.Conv1d(conv.in_channels, conv.out_channels, taps, padding=padding_of(conv))
    narrow.weight = nn.Parameter(conv.weight.to(dtype))
    narrow.bias = conv.bias
    return narrow


class Decoder:
    """Computes codec.Decoder with convolutions in 16 bits."""

    def __init__(
        self,
        decoder: codec.Decoder,
    ) -> None:
        self.dtype = decoder.asr_res.weight.dtype
        self.gains = Gains()
        hidden = decoder.asr_res.in_channels
        self.residual = Convolution(decoder.asr_res, hidden)
        self.weight = torch.cat((decoder.F0_conv.weight, decoder.N_conv.weight))
        assert decoder.F0_conv.bias is not None
        assert decoder.N_conv.bias is not None
        self.bias = torch.cat((decoder.F0_conv.bias, decoder.N_conv.bias))

        inputs = aligned(hidden + 2)
        self.behind = inputs - hidden - 2
        self.encode = ResidualBlock(decoder.encode, inputs, self.gains)
        inputs = aligned(codec.WIDTH + codec.RESIDUAL + 2)
        self.decode_behind = inputs - codec.WIDTH - codec.RESIDUAL - 2
        self.decode = [ResidualBlock(block, inputs, self.gains) for block in decoder.decode]
        self.generator = Generator(decoder.generator, self.dtype, self.gains)
        self.gains.join()

    def __call__(
        self,
        text: Tensor,
        curves: Tensor,
        style: Tensor,
        noise: Tensor,
        frames: Tensor,
    ) -> Tensor:
        """text [B, T, hidden], pitch and energy [B, 2, 2 T], noise [B, samples, HARMONICS], of rows
        with `frames` [B] -> float32 [B, samples]."""
        text = text.to(self.dtype)
        gains = self.gains(style)
        halved = self._halved(curves).to(self.dtype)
        beside = torch.cat((self.residual(text), F.pad(halved, (0, self.decode_behind))), dim=-1)
        x = torch.cat((text, F.pad(halved, (0, self.behind))), dim=-1)
        steps = Steps(frames, 1)
        x = self.encode(x, gains, steps)
        for block in self.decode:
            x = block(torch.cat((x, beside), dim=-1), gains, steps)
        return self.generator(x, gains, curves[:, :1], noise, 2 * frames)

    def _halved(
        self,
        curves: Tensor,
    ) -> Tensor:
        """The convolutions of pitch and energy, [B, T, 2]."""
        rows = F.pad(curves, (1, 1)).unfold(2, 3, 2)
        y = (rows * self.weight).sum(-1)
        return y.transpose(1, 2) + self.bias
