"""A recording as the encoders take it, and CAM++ (3D-Speaker), which makes a speaker vector of its
filter bank.

The package trims quiet ends at the rate of the file, and resamples to 48 kHz by its own filter, so
both are done on the host before the engine sees it. Modules are named as in the checkpoint.
"""

from __future__ import annotations

import math

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from stentor.audio import Recording
from stentor.layers.fbank import MELS

FRAME = 2048
HOP = 512
TOP_DB = 30.0
LEAST = 1e-5
WIDTH = 64
ROLLOFF = 0.95
BETA = 14.769656459379492
"""Windowed sinc: zero crossings on a side, share of the band that is kept, and Kaiser's
parameter."""


def as_heard(recording: Recording, rate: int, patch: int) -> Recording:
    """The recording between its first and last part within 30 dB of the loudest, at `rate`, with
    zeros behind it to a multiple of `patch` samples."""
    x = resampled(trimmed(torch.from_numpy(recording.samples).float()), recording.rate, rate)
    samples = F.pad(x, (0, -len(x) % patch)).numpy()
    return Recording(samples, rate)


def trimmed(x: Tensor) -> Tensor:
    """x [n] without the frames at both ends whose level is 30 dB or more below the loudest
    one's."""
    windows = F.pad(x, (FRAME // 2, FRAME // 2)).unfold(0, FRAME, HOP)
    level = torch.from_numpy(np.sqrt(np.square(windows.numpy()).mean(1))).clamp_min(LEAST)
    loud = torch.nonzero(20 * torch.log10(level / level.max()) > -TOP_DB).flatten()
    return x[int(loud[0]) * HOP : (int(loud[-1]) + 1) * HOP]


def resampled(x: Tensor, source: int, target: int) -> Tensor:
    """x [n] -> [ceil(n * target / source)], by a sinc in Kaiser's window."""
    if source == target:
        return x
    common = math.gcd(source, target)
    a = source // common
    b = target // common
    base = min(a, b) * ROLLOFF
    half = math.ceil(WIDTH * a / base)
    step = torch.arange(-half, half + a, dtype=torch.float64) / a
    t = ((torch.arange(0, -b, -1, dtype=torch.float64)[:, None] / b + step) * base).clamp(
        -WIDTH, WIDTH
    )
    window = torch.i0(BETA * (1 - (t / WIDTH) ** 2).sqrt()) / torch.i0(
        torch.tensor(BETA, dtype=torch.float64)
    )
    kernel = (torch.sinc(t) * window * base / a).float()
    y = F.conv1d(F.pad(x, (half, half + a))[None, None], kernel[:, None], stride=a)[0].T.reshape(-1)
    return y[: math.ceil(b * len(x) / a)]


def speaker_window(wav: Tensor, longest: int) -> Tensor:
    """The middle of a recording that is longer than the speaker encoder takes. The package takes a
    random part."""
    start = max(0, len(wav) - longest) // 2
    return wav[start : start + longest]


CHANNELS = 32
GROWTH = 32
BOTTLENECK = 128
BLOCKS = ((12, 1), (24, 2), (16, 2))
"""Layers and dilation of the dense blocks."""
SEGMENT = 100
LEAST_VARIANCE = 1e-2
KERNEL = 41
STRIDE = 3
PADDING = (19, 22)
"""Sizes of the resampling from 48 to 16 kHz."""


class BasicBlock(nn.Module):
    """Two convolutions with a skip. The stride is along frequency."""

    def __init__(self, stride: int) -> None:
        super().__init__()
        self.conv1 = _conv2d(stride)
        self.bn1 = nn.BatchNorm2d(CHANNELS)
        self.conv2 = _conv2d(1)
        self.bn2 = nn.BatchNorm2d(CHANNELS)
        if stride > 1:
            skip = nn.Conv2d(CHANNELS, CHANNELS, 1, (stride, 1), bias=False)
            self.shortcut = nn.Sequential(skip, nn.BatchNorm2d(CHANNELS))
        self.strided = stride > 1

    def forward(self, x: Tensor) -> Tensor:
        y = self.bn2(self.conv2(self.bn1(self.conv1(x)).relu()))
        out: Tensor = (y + (self.shortcut(x) if self.strided else x)).relu()
        return out


def _conv2d(stride: int, inputs: int = CHANNELS) -> nn.Conv2d:
    return nn.Conv2d(inputs, CHANNELS, 3, (stride, 1), 1, bias=False)


class Head(nn.Module):
    """FCM: [1, 1, mels, n] -> [1, 32 * mels / 8, n]."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = _conv2d(1, 1)
        self.bn1 = nn.BatchNorm2d(CHANNELS)
        self.layer1 = nn.Sequential(BasicBlock(2), BasicBlock(1))
        self.layer2 = nn.Sequential(BasicBlock(2), BasicBlock(1))
        self.conv2 = _conv2d(2)
        self.bn2 = nn.BatchNorm2d(CHANNELS)

    def forward(self, x: Tensor) -> Tensor:
        x = self.layer2(self.layer1(self.bn1(self.conv1(x)).relu()))
        out: Tensor = self.bn2(self.conv2(x)).relu().flatten(1, 2)
        return out


class Normed(nn.Module):
    """Batch norm, then ReLU unless it has no weights."""

    def __init__(self, channels: int, affine: bool = True) -> None:
        super().__init__()
        self.batchnorm = nn.BatchNorm1d(channels, affine=affine)
        self.affine = affine

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.batchnorm(x)
        if self.affine:
            return y.relu()
        return y


class ContextGate(nn.Module):
    """A convolution, gated by the mean of all and of the segment."""

    def __init__(self, dilation: int) -> None:
        super().__init__()
        self.linear_local = nn.Conv1d(
            BOTTLENECK, GROWTH, 3, padding=dilation, dilation=dilation, bias=False
        )
        self.linear1 = nn.Conv1d(BOTTLENECK, BOTTLENECK // 2, 1)
        self.linear2 = nn.Conv1d(BOTTLENECK // 2, GROWTH, 1)

    def forward(self, x: Tensor) -> Tensor:
        segments = F.avg_pool1d(x, SEGMENT, SEGMENT, ceil_mode=True).repeat_interleave(
            SEGMENT, dim=-1
        )
        context = x.mean(-1, keepdim=True) + segments[..., : x.shape[-1]]
        out: Tensor = self.linear_local(x) * self.linear2(self.linear1(context).relu()).sigmoid()
        return out


class DenseLayer(nn.Module):
    def __init__(self, inputs: int, dilation: int) -> None:
        super().__init__()
        self.nonlinear1 = Normed(inputs)
        self.linear1 = nn.Conv1d(inputs, BOTTLENECK, 1, bias=False)
        self.nonlinear2 = Normed(BOTTLENECK)
        self.cam_layer = ContextGate(dilation)

    def forward(self, x: Tensor) -> Tensor:
        y = self.cam_layer(self.nonlinear2(self.linear1(self.nonlinear1(x))))
        return torch.cat((x, y), 1)


class NormedConv(nn.Module):
    """A convolution behind its norm, or before it."""

    def __init__(self, conv: nn.Conv1d, norm: Normed, first: bool) -> None:
        super().__init__()
        self.linear = conv
        self.nonlinear = norm
        self.first = first

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = (
            self.nonlinear(self.linear(x)) if self.first else self.linear(self.nonlinear(x))
        )
        return out


class XVector(nn.Module):
    def __init__(self, size: int) -> None:
        super().__init__()
        width = 4 * CHANNELS
        tdnn = nn.Conv1d(CHANNELS * MELS // 8, width, 5, 2, 2, bias=False)
        self.tdnn = NormedConv(tdnn, Normed(width), first=True)
        for i, (layers, dilation) in enumerate(BLOCKS, 1):
            dense = {
                f"tdnnd{n + 1}": DenseLayer(width + n * GROWTH, dilation) for n in range(layers)
            }
            width += layers * GROWTH
            self.add_module(f"block{i}", nn.ModuleDict(dense))
            transit = nn.Conv1d(width, width // 2, 1, bias=False)
            self.add_module(f"transit{i}", NormedConv(transit, Normed(width), first=False))
            width //= 2
        self.out_nonlinear = Normed(width)
        last = nn.Conv1d(2 * width, size, 1, bias=False)
        self.dense = NormedConv(last, Normed(size, affine=False), first=True)

    def forward(self, x: Tensor) -> Tensor:
        x = self.tdnn(x)
        for i in range(1, len(BLOCKS) + 1):
            for layer in self.get_submodule(f"block{i}").children():
                x = layer(x)
            x = self.get_submodule(f"transit{i}")(x)
        x = self.out_nonlinear(x)
        # not the plain pooling, which does not clamp
        spread = x.var(-1).clamp_min(LEAST_VARIANCE).sqrt()
        out: Tensor = self.dense(torch.cat((x.mean(-1), spread), 1)[..., None])
        return out[0, :, 0]


class SpeakerEncoder(nn.Module):
    """All of speaker_encoder.safetensors."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.model = nn.ModuleDict({"head": Head(), "xvector": XVector(size)})
        self.resample = nn.ParameterDict({"kernel": torch.empty(1, 1, KERNEL)})

    def lowered(self, wav: Tensor) -> Tensor:
        """48 kHz [n] -> 16 kHz [ceil(n / 3)], by a filter that the checkpoint brings."""
        y = F.conv1d(F.pad(wav, PADDING)[None, None], self.resample["kernel"], stride=STRIDE)[0, 0]
        return y[: -(-len(wav) // STRIDE)]

    def forward(self, features: Tensor) -> Tensor:
        """Filter bank [frames, mels] -> [size]."""
        out: Tensor = self.model["xvector"](self.model["head"](features.T[None, None]))
        return out
