"""The speaker encoder of Base models: log-mel spectrogram and ECAPA-TDNN (Desplanques et al.,
2020)."""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from stentor.models.qwen3_tts.config import SpeakerConfig

FFT = 1024
HOP = 256


def mel_filters(rate: int, fft: int, mels: int) -> np.ndarray:
    """Slaney's mel filter bank, area-normalised, [mels, fft / 2 + 1] float32, from 0 Hz to rate /
    2."""
    knee = 1000.0  # linear below 1 kHz, 27 steps per factor 6.4 above
    step = 200.0 / 3
    log_step = np.log(6.4) / 27.0

    def to_hz(mel: np.ndarray) -> np.ndarray:
        return np.where(
            mel < knee / step, mel * step, knee * np.exp(log_step * (mel - knee / step))
        )

    top = knee / step + np.log(rate / 2 / knee) / log_step
    edges = to_hz(np.linspace(0.0, top, mels + 2))
    bins = np.fft.rfftfreq(fft, 1.0 / rate)
    ramps = edges[:, None] - bins
    width = np.diff(edges)
    rising = -ramps[:-2] / width[:-1, None]
    falling = ramps[2:] / width[1:, None]
    weights = np.maximum(0.0, np.minimum(rising, falling))
    weights *= (2.0 / (edges[2:] - edges[:-2]))[:, None]
    filters: np.ndarray = weights.astype(np.float32)
    return filters


def fourier(fft: int) -> np.ndarray:
    """Matrix of a frame's spectrum under Hann's window: [fft, 2 (fft / 2 + 1)] float32, real parts
    first."""
    at = np.arange(fft)
    window = 0.5 - 0.5 * np.cos(2 * np.pi * at / fft)
    turns = np.outer(at, np.arange(fft // 2 + 1)) % fft * (2 * np.pi / fft)
    parts: np.ndarray = np.concatenate((np.cos(turns), -np.sin(turns)), axis=1) * window[:, None]
    return parts.astype(np.float32)


class LogMel(nn.Module):
    """Samples [n] -> log-mel frames [1, T, mels] in float32.

    The spectrum is a product, because a Fourier transform would be planned anew for every length.
    """

    filters: Tensor
    fourier: Tensor

    def __init__(self, rate: int, mels: int) -> None:
        super().__init__()
        self.register_buffer(
            "filters", torch.from_numpy(mel_filters(rate, FFT, mels)), persistent=False
        )
        self.register_buffer("fourier", torch.from_numpy(fourier(FFT)), persistent=False)

    def forward(self, samples: Tensor) -> Tensor:
        pad = (FFT - HOP) // 2
        y = F.pad(samples.float()[None, None], (pad, pad), mode="reflect")[0]
        real, imaginary = (y.unfold(1, FFT, HOP) @ self.fourier).chunk(2, dim=-1)
        magnitude = torch.sqrt(real.square() + imaginary.square() + 1e-9)
        return torch.log((magnitude @ self.filters.T).clamp_min(1e-5))


class SameConv1d(nn.Conv1d):
    """A convolution that keeps the length. Reflections stand around x [B, C, T].

    It is a product, because cuDNN would plan anew for every length, which takes longer than to
    compute.
    """

    def __init__(self, inputs: int, outputs: int, kernel: int, dilation: int = 1) -> None:
        super().__init__(inputs, outputs, kernel, dilation=dilation)

    def forward(self, x: Tensor) -> Tensor:
        (taps,) = self.kernel_size
        (step,) = self.dilation
        count = x.shape[2]
        if taps > 1:
            added = (taps - 1) * step
            x = F.pad(x, (added // 2, added - added // 2), "reflect")
            x = torch.stack([x[:, :, i * step : i * step + count] for i in range(taps)], 2).flatten(
                1, 2
            )
        assert self.bias is not None
        weight = self.weight.flatten(1).expand(len(x), -1, -1)
        return torch.baddbmm(self.bias[None, :, None], weight, x)


class TimeDelay(nn.Module):
    def __init__(self, inputs: int, outputs: int, kernel: int, dilation: int = 1) -> None:
        super().__init__()
        self.conv = SameConv1d(inputs, outputs, kernel, dilation)

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.conv(x))


class Res2Net(nn.Module):
    """`scale` groups of channels, each convolved together with the result of the one before (Gao et
    al., 2019)."""

    def __init__(self, channels: int, scale: int, kernel: int, dilation: int) -> None:
        super().__init__()
        part = channels // scale
        self.blocks = nn.ModuleList(
            TimeDelay(part, part, kernel, dilation) for _ in range(scale - 1)
        )
        self.scale = scale

    def forward(self, x: Tensor) -> Tensor:
        first, *parts = x.chunk(self.scale, dim=1)
        out = [first]
        for i, (block, part) in enumerate(zip(self.blocks, parts, strict=True)):
            out.append(block(part if i == 0 else part + out[-1]))
        return torch.cat(out, dim=1)


class SqueezeExcitation(nn.Module):
    def __init__(self, channels: int, squeeze: int) -> None:
        super().__init__()
        self.conv1 = SameConv1d(channels, squeeze, 1)
        self.conv2 = SameConv1d(squeeze, channels, 1)

    def forward(self, x: Tensor) -> Tensor:
        return x * torch.sigmoid(self.conv2(F.relu(self.conv1(x.mean(dim=2, keepdim=True)))))


class SERes2Net(nn.Module):
    def __init__(
        self, inputs: int, channels: int, kernel: int, dilation: int, c: SpeakerConfig
    ) -> None:
        super().__init__()
        self.tdnn1 = TimeDelay(inputs, channels, 1)
        self.res2net_block = Res2Net(channels, c.scale, kernel, dilation)
        self.tdnn2 = TimeDelay(channels, channels, 1)
        self.se_block = SqueezeExcitation(channels, c.squeeze)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = x + self.se_block(self.tdnn2(self.res2net_block(self.tdnn1(x))))
        return out


class AttentivePooling(nn.Module):
    """Attention-weighted mean and standard deviation over time: [B, C, T] -> [B, 2 C, 1]."""

    def __init__(self, channels: int, attention: int) -> None:
        super().__init__()
        self.tdnn = TimeDelay(3 * channels, attention, 1)
        self.conv = SameConv1d(attention, channels, 1)

    def forward(self, x: Tensor) -> Tensor:
        even = x.new_full((x.shape[0], 1, x.shape[2]), 1.0) / x.shape[2]
        mean, std = _statistics(x, even)
        context = torch.cat((x, mean.expand_as(x), std.expand_as(x)), dim=1)
        weights = self.conv(torch.tanh(self.tdnn(context))).softmax(dim=2)
        return torch.cat(_statistics(x, weights), dim=1)


def _statistics(x: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
    mean = (weights * x).sum(2, keepdim=True)
    variance = (weights * (x - mean).pow(2)).sum(2, keepdim=True)
    return mean, variance.clamp_min(1e-12).sqrt()


class SpeakerEncoder(nn.Module):
    """Log-mel frames [1, T, mels] -> speaker vector [1, dim], not normalised."""

    def __init__(self, c: SpeakerConfig) -> None:
        super().__init__()
        blocks: list[nn.Module] = [TimeDelay(c.mels, c.channels[0], c.kernels[0], c.dilations[0])]
        for i in range(1, len(c.channels) - 1):
            blocks.append(
                SERes2Net(c.channels[i - 1], c.channels[i], c.kernels[i], c.dilations[i], c)
            )
        self.blocks = nn.ModuleList(blocks)
        self.mfa = TimeDelay(sum(c.channels[1:-1]), c.channels[-1], c.kernels[-1], c.dilations[-1])
        self.asp = AttentivePooling(c.channels[-1], c.attention)
        self.fc = SameConv1d(2 * c.channels[-1], c.dim, 1)

    def forward(self, mel: Tensor) -> Tensor:
        x = mel.to(self.fc.weight.dtype).transpose(1, 2)
        outputs = []
        for block in self.blocks:
            x = block(x)
            outputs.append(x)
        x = self.mfa(torch.cat(outputs[1:], dim=1))
        out: Tensor = self.fc(self.asp(x)).squeeze(-1)
        return out
