"""The codec: latents to samples and samples to latents, causal. Modules are named as in the
checkpoint."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from stentor import kernels
from stentor.layers.conv import (
    CausalConv1d,
    CausalConvTranspose1d,
    StreamingState,
    cast_codec,
    convolve,
    state_columns,
    upcast,
)
from stentor.layers.linear import Linear
from stentor.layers.norm import RMSNorm
from stentor.layers.types import CodecCall, Column, Launch, State
from stentor.layers.windows import Windows
from stentor.models.vibevoice.config import DecoderConfig, EncoderConfig

KERNEL = 7
FFN = 4
"""Width of a block's feed-forward, in channels."""
MANY_WEIGHTS = 2**22
"""Weights of a convolution that the library multiplies."""


class FeedForward(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.linear1 = Linear(channels, FFN * channels)
        self.linear2 = Linear(FFN * channels, channels)

    def forward(self, x: Tensor) -> Tensor:
        wide = F.gelu(self.linear1(x))
        out: Tensor = self.linear2(wide)
        return out


class CodecBlock(nn.Module):
    """Two residual branches: a depthwise convolution, and a feed-forward at each step. x [B, C, n].

    Each has a gain per channel, which `fold_gains` multiplies into the weights before it.
    """

    def __init__(self, channels: int, eps: float) -> None:
        super().__init__()
        self.norm = RMSNorm(channels, eps)
        self.mixer = CausalConv1d(
            channels,
            channels,
            KERNEL,
            groups=channels,
        )
        self.gamma = nn.Parameter(torch.empty(channels))
        self.ffn_norm = RMSNorm(channels, eps)
        self.ffn = FeedForward(channels)
        self.ffn_gamma = nn.Parameter(torch.empty(channels))

    def fold_gains(self) -> None:
        """Multiply the gains into the layers that they follow."""
        assert self.mixer.bias is not None
        self.mixer.weight.data *= self.gamma[:, None, None]
        self.mixer.bias.data *= self.gamma
        self.ffn.linear2.weight.data *= self.ffn_gamma[:, None]
        self.ffn.linear2.bias.data *= self.ffn_gamma
        del self.gamma, self.ffn_gamma

    def forward(self, x: Tensor, state: StreamingState | None) -> Tensor:
        if kernels.conv_kernels_enabled(x):
            return self._fused(x.transpose(1, 2), state).transpose(1, 2)
        normed = self.norm(x.transpose(1, 2))
        x = convolve(
            self.mixer,
            normed.transpose(1, 2),
            state,
            residual=x,
        )
        steps = x.transpose(1, 2)
        out: Tensor = steps + self.ffn(self.ffn_norm(steps))
        return out.transpose(1, 2)

    def _fused(self, x: Tensor, state: StreamingState | None) -> Tensor:
        from stentor.models.vibevoice.kernels import MAX_FUSED_WIDTH, feed_forward, mix

        mixer = self.mixer
        assert mixer.bias is not None
        if state is None:
            x, _ = mix(x, None, self.norm.kernel_args, mixer.weight, mixer.bias)
        else:
            past = state.old[mixer.key]
            x, last = mix(x, past, self.norm.kernel_args, mixer.weight, mixer.bias)
            state.new[mixer.key] = last
        if x.shape[2] > MAX_FUSED_WIDTH:
            wide: Tensor = x + self.ffn(self.ffn_norm(x))
            return wide
        up = self.ffn.linear1
        down = self.ffn.linear2
        return feed_forward(
            x, self.ffn_norm.kernel_args, up.weight, up.bias, down.weight, down.bias
        )


def resample(conv: nn.Module, x: Tensor, state: StreamingState) -> Tensor:
    """`convolve` of x [B, C, n] by a resampling convolution.

    One with many weights has few steps, for which the convolution kernel has too few CTAs: there
    the library's products read the weights at four times the rate. They depend on the number of
    rows.
    """
    assert isinstance(conv, CausalConv1d | CausalConvTranspose1d)
    has_product = isinstance(conv, CausalConvTranspose1d) or conv.reads_rows
    is_wide = has_product and conv.weight.numel() >= MANY_WEIGHTS
    if not is_wide or kernels.is_batch_invariant() or not kernels.conv_kernels_enabled(x):
        return convolve(conv, x, state)
    steps = x.transpose(1, 2)
    steps, state.new[conv.key] = kernels.conv1d.concat_history(
        steps, state.old[conv.key], conv.tail, None, keep=True
    )
    if isinstance(conv, CausalConvTranspose1d):
        return _upsampled(conv, steps).transpose(1, 2)
    return _downsampled(conv, steps).transpose(1, 2)


def _upsampled(conv: CausalConvTranspose1d, x: Tensor) -> Tensor:
    """The transposed convolution of x [B, 1 + n, C], as products of a step and of the one before
    it: [B, n * stride, C']."""
    assert conv.bias is not None
    by_tap = conv.weight.permute(2, 1, 0)
    present = by_tap[: conv.stride].flatten(0, 1).T
    before = by_tap[conv.stride :].flatten(0, 1).T
    count = x.shape[1] - 1
    y = torch.addmm(conv.bias.repeat(conv.stride), x[:, 1:].flatten(0, 1), present)
    y.addmm_(x[:, :-1].flatten(0, 1), before)
    return y.view(len(x), count * conv.stride, -1)


def _downsampled(conv: CausalConv1d, x: Tensor) -> Tensor:
    """The strided convolution of x [B, tail + n, C], whose taps are one row: [B, n / stride,
    C']."""
    _, channels, taps = conv.weight.shape
    rows = x.flatten(1).unfold(1, taps * channels, conv.stride * channels)
    weight = conv.weight.transpose(1, 2).flatten(1)
    return F.linear(rows, weight, conv.bias)


class CodecHalf(nn.Module):
    """Stages of blocks, each behind a resampling convolution, and a convolution behind them all.
    `process_weights_after_loading` must follow the loading."""

    columns: dict[str, Column]

    def __init__(
        self,
        widths: Sequence[int],
        depths: Sequence[int],
        eps: float,
        outputs: int,
    ) -> None:
        """widths, depths: channels and blocks of the stages. outputs: channels at the end."""
        super().__init__()
        self.stages = nn.ModuleList()
        for width, depth in zip(widths, depths, strict=True):
            blocks = [CodecBlock(width, eps) for _ in range(depth)]
            self.stages.append(nn.ModuleList(blocks))
        self.head = CausalConv1d(widths[-1], outputs, KERNEL)

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of its convolutions."""
        return self.head.weight.dtype

    def process_weights_after_loading(self, dtype: torch.dtype) -> None:
        """Fold gains, and round the weights to `dtype`."""
        for module in self.modules():
            if isinstance(module, CodecBlock):
                module.fold_gains()
        cast_codec(self, dtype)
        self.columns = state_columns(self)

    def through(
        self,
        resamplers: nn.ModuleList,
        x: Tensor,
        state: StreamingState,
    ) -> Tensor:
        """x [B, C, n] after all stages, whose resampling convolutions these are."""
        for resampler, stage in zip(resamplers, self.stages, strict=True):
            x = resample(resampler, x, state)
            for block in stage.children():
                x = block(x, state)
        return convolve(self.head, x, state)


class Decoder(CodecHalf):
    """Latents to audio (implements models.base.Codec)."""

    def __init__(self, c: DecoderConfig) -> None:
        widths = c.widths
        super().__init__(widths, c.depths, c.eps, 1)
        self.latent = c.latent
        self.upsample_layers = nn.ModuleList()
        self.upsample_layers.append(CausalConv1d(c.latent, widths[0], KERNEL))
        for (inputs, outputs), ratio in zip(pairwise(widths), c.ratios, strict=True):
            resampler = CausalConvTranspose1d(inputs, outputs, ratio)
            self.upsample_layers.append(resampler)
        self.scale = nn.Parameter(torch.empty(()))
        self.bias = nn.Parameter(torch.empty(()))

    def process_weights_after_loading(self, dtype: torch.dtype) -> None:
        """Fold gains, and round all weights but the two factors of latents to `dtype`."""
        factors = self.scale.data.float(), self.bias.data.float()
        super().process_weights_after_loading(dtype)
        self.scale.data, self.bias.data = factors

    def decode(
        self,
        frames: Tensor,
        state: State,
        _: CodecCall | None = None,
    ) -> tuple[Tensor, State]:
        streaming = StreamingState(state)
        latents = frames[..., : self.latent]
        samples = self.samples(latents, streaming)
        return samples.clamp(-1, 1), streaming.new

    def samples(self, latents: Tensor, state: StreamingState) -> Tensor:
        """Latents [B, n, latent] -> samples [B, n * hop] float32, which may be beyond full
        scale."""
        x = latents / self.scale - self.bias
        x = x.to(self.dtype).transpose(1, 2)
        waves = self.through(self.upsample_layers, x, state)
        return waves[:, 0].float()


class Encoder(CodecHalf):
    """Samples to latents."""

    windows: Windows

    def __init__(self, c: EncoderConfig) -> None:
        widths = c.widths
        super().__init__(widths, c.depths, c.eps, c.latent)
        self.hop = c.hop
        self.downsample_layers = nn.ModuleList()
        self.downsample_layers.append(CausalConv1d(1, widths[0], KERNEL))
        for (inputs, outputs), ratio in zip(pairwise(widths), c.ratios, strict=True):
            resampler = CausalConv1d(
                inputs,
                outputs,
                2 * ratio,
                stride=ratio,
                left=ratio,
            )
            self.downsample_layers.append(resampler)

    def process_weights_after_loading(self, dtype: torch.dtype) -> None:
        """Fold gains, and round the weights to `dtype`."""
        super().process_weights_after_loading(dtype)

        def run(x: Tensor, state: StreamingState, count: Tensor) -> Tensor:
            return self.run(x, state)

        self.windows = Windows(run, self.hop, self.columns)

    def run(self, x: Tensor, state: StreamingState) -> Tensor:
        """Samples [B, 1, n * hop] in its dtype -> latents [B, latent, n]."""
        return self.through(self.downsample_layers, x, state)

    def forward(self, samples: Tensor, launch: Launch) -> Tensor:
        """A recording [n] -> latents [ceil(n / hop), latent] float32 at least."""
        x = samples[None, None].to(self.dtype)
        latents = self.windows(x, launch)[0].T
        count = -(-len(samples) // self.hop)
        return upcast(latents)[:count]
