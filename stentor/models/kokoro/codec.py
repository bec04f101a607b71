"""The decoder: features, pitch and energy to samples, by a vocoder over an inverse STFT."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from stentor.models.kokoro.blocks import ResidualBlock, SnakeBlock
from stentor.models.kokoro.config import GeneratorConfig, KokoroConfig

RATE = 24_000
WIDTH = 1024  # channels of the decoder
RESIDUAL = 64  # channels of the text beside them
HARMONICS = 9
VOICED_HZ = 10.0
AMPLITUDE = 0.1
VOICED_NOISE = 0.003
SNAKE_DILATIONS = (1, 3, 5)
SOURCE_KERNELS = (7, 11)  # of the blocks that read the source


class Source(nn.Module):
    """Sines at the harmonics of a pitch, mixed into one signal."""

    def __init__(
        self,
        upsampling: int,
    ) -> None:
        super().__init__()
        self.upsampling = upsampling
        self.l_linear = nn.Linear(HARMONICS, 1)

    def forward(
        self,
        pitch: Tensor,
        noise: Tensor,
    ) -> Tensor:
        """pitch [B, 1, T] in Hz, noise [B, samples, HARMONICS] -> [B, samples]."""
        numbers = torch.arange(1, HARMONICS + 1, device=pitch.device)[:, None]
        turns_of_step = pitch.double() * numbers / RATE % 1
        turns = turns_of_step.cumsum(-1) * self.upsampling
        phase = F.interpolate(turns, scale_factor=self.upsampling, mode="linear")
        sines = torch.sin(phase.remainder(1).float() * (2 * math.pi))

        is_voiced = (pitch > VOICED_HZ).float()
        voiced = is_voiced.repeat_interleave(self.upsampling, dim=-1)
        loudness = voiced * VOICED_NOISE + (1 - voiced) * AMPLITUDE / 3
        sines = sines * AMPLITUDE * voiced + noise.transpose(1, 2) * loudness
        rows = sines.transpose(1, 2)
        mixed = self.l_linear(rows.to(self.l_linear.weight.dtype))
        return torch.tanh(mixed)[..., 0]


class Generator(nn.Module):
    """The vocoder. Steps of its stages are `rates` times as many each time."""

    def __init__(
        self,
        c: GeneratorConfig,
        style: int,
    ) -> None:
        super().__init__()
        self.c = c
        self.m_source = Source(c.upsampling)
        self.ups = nn.ModuleList()
        self.noise_convs = nn.ModuleList()
        self.noise_res = nn.ModuleList()
        self.resblocks = nn.ModuleList()
        channels = c.channels
        for at, (rate, kernel) in enumerate(zip(c.rates, c.kernels, strict=True)):
            padding = (kernel - rate) // 2
            self.ups.append(nn.ConvTranspose1d(channels, channels // 2, kernel, rate, padding))
            channels //= 2
            self.noise_convs.append(self._source_convolution(channels, c.rates[at + 1 :]))
            self.noise_res.append(SnakeBlock(channels, SOURCE_KERNELS[at], SNAKE_DILATIONS, style))
            for size, dilations in zip(c.block_kernels, c.dilations, strict=True):
                self.resblocks.append(SnakeBlock(channels, size, dilations, style))
        self.conv_post = nn.Conv1d(channels, c.fft + 2, 7, padding=3)

    def _source_convolution(
        self,
        channels: int,
        rates: tuple[int, ...],
    ) -> nn.Conv1d:
        """From the spectrum of the source to the steps of a stage, which `rates` follow."""
        stride = math.prod(rates)
        if not rates:
            return nn.Conv1d(self.c.fft + 2, channels, 1)
        kernel = 2 * stride
        padding = (stride + 1) // 2
        return nn.Conv1d(self.c.fft + 2, channels, kernel, stride=stride, padding=padding)

    def forward(
        self,
        x: Tensor,
        style: Tensor,
        pitch: Tensor,
        noise: Tensor,
        lengths: Tensor,
    ) -> Tensor:
        """x [B, n, T] and pitch [B, 1, T] of rows with `lengths` [B] steps -> [B, samples]."""
        c = self.c
        count = x.shape[-1]
        spectrum = self._spectrum(self.m_source(pitch, noise), lengths)
        steps = 1
        before = step_mask(lengths, count, 1)
        for at, rate in enumerate(c.rates):
            last = at + 1 == len(c.rates)
            steps *= rate
            mask = step_mask(lengths, count, steps, extra=int(last))
            source = self.noise_convs[at](spectrum.to(x.dtype))
            active = F.leaky_relu(x, 0.1)
            x = self.ups[at](active * before.to(x.dtype))
            if last:
                x = F.pad(x, (1, 0), mode="reflect")
            x = x + self.noise_res[at](source, style, mask)
            num_blocks = len(c.block_kernels)
            first = at * num_blocks
            blocks = self.resblocks[first : first + num_blocks]
            x = sum(block(x, style, mask) for block in blocks) / num_blocks
            before = mask
        active = F.leaky_relu(x.to(self.conv_post.weight.dtype))
        x = self.conv_post(active * before)
        return self._samples(x, before, count * steps * c.hop)

    def _spectrum(
        self,
        source: Tensor,
        lengths: Tensor,
    ) -> Tensor:
        """Magnitudes and phases [B, fft + 2, steps] of the source. Each row reflects at its own
        end."""
        c = self.c
        rows = source.float().gather(1, reflected_places(source, lengths, c))
        bins = torch.stft(
            rows,
            c.fft,
            c.hop,
            window=self._window(source),
            center=False,
            return_complex=True,
        )
        count = source.shape[1] // c.upsampling
        rate = c.upsampling // c.hop
        mask = step_mask(lengths, count, rate, extra=1)
        return torch.cat((bins.abs(), bins.angle()), dim=1) * mask

    def _samples(
        self,
        x: Tensor,
        mask: Tensor,
        count: int,
    ) -> Tensor:
        """Overlap and add of the inverse transforms of x [B, fft + 2, steps]."""
        c = self.c
        half = c.fft // 2 + 1
        wide = x.float()
        magnitudes = torch.exp(wide[:, :half])
        phases = torch.sin(wide[:, half:])
        bins = torch.polar(magnitudes, phases) * mask
        frames = torch.fft.irfft(bins, n=c.fft, dim=1)
        window = self._window(x)[:, None]
        total = count + c.fft
        shape = {"output_size": (1, total), "kernel_size": (1, c.fft), "stride": (1, c.hop)}
        samples = F.fold(frames * window, **shape).flatten(1)
        weight = F.fold(mask * window.square(), **shape).flatten(1)
        end = total - c.fft // 2
        return (samples / weight.clamp(min=1e-8))[:, c.fft // 2 : end]

    def _window(
        self,
        like: Tensor,
    ) -> Tensor:
        return torch.hann_window(self.c.fft, device=like.device)


class Decoder(nn.Module):
    """Features of the text by frame, pitch and energy -> samples."""

    def __init__(
        self,
        c: KokoroConfig,
    ) -> None:
        super().__init__()
        inputs = WIDTH + RESIDUAL + 2
        style = c.style
        self.encode = ResidualBlock(c.hidden + 2, WIDTH, style)
        self.decode = nn.ModuleList(ResidualBlock(inputs, WIDTH, style) for _ in range(3))
        self.decode.append(ResidualBlock(inputs, c.generator.channels, style, doubles=True))
        self.F0_conv = nn.Conv1d(1, 1, 3, stride=2, padding=1)
        self.N_conv = nn.Conv1d(1, 1, 3, stride=2, padding=1)
        self.asr_res = nn.Conv1d(c.hidden, RESIDUAL, 1)
        self.generator = Generator(c.generator, style)

    def forward(
        self,
        text: Tensor,
        pitch: Tensor,
        energy: Tensor,
        style: Tensor,
        noise: Tensor,
        lengths: Tensor,
    ) -> Tensor:
        """text [B, hidden, T], pitch and energy [B, 1, 2 T], noise [B, samples, HARMONICS], of rows
        with `lengths` [B] frames -> float32 [B, samples]."""
        count = text.shape[-1]
        mask = step_mask(lengths, count, 1)
        doubled = step_mask(lengths, count, 2)
        pitch_features = self.F0_conv(pitch).to(text.dtype)
        energy_features = self.N_conv(energy).to(text.dtype)
        curves = torch.cat((pitch_features, energy_features), dim=1)
        beside = torch.cat((self.asr_res(text), curves), dim=1)
        x = torch.cat((text, curves), dim=1)
        x = self.encode(x, style, mask, doubled)
        for block in self.decode:
            x = block(torch.cat((x, beside), dim=1), style, mask, doubled)
        samples: Tensor = self.generator(x, style, pitch, noise, 2 * lengths)
        return samples


def reflected_places(
    source: Tensor,
    lengths: Tensor,
    c: GeneratorConfig,
) -> Tensor:
    """Places [B, samples + fft] of the source with half a transform reflected at both ends of each
    row, of `lengths` [B] steps of the pitch."""
    half = c.fft // 2
    place = torch.arange(-half, source.shape[1] + half, device=source.device).abs()
    last = (lengths * c.upsampling - 1)[:, None]
    return torch.where(place > last, 2 * last - place, place).clamp(min=0)


def step_mask(
    lengths: Tensor,
    count: int,
    rate: int,
    extra: int = 0,
) -> Tensor:
    """Mask of the steps of padded rows that exist, at `rate` steps for each of `count`, and `extra`
    behind them: float32 [B, 1, steps]."""
    places = torch.arange(count * rate + extra, device=lengths.device)
    return (places < lengths[:, None, None] * rate + extra).float()
