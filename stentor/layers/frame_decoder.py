"""Decoders of frames of codes at 12.5 Hz to samples: windowed attention over frames, then causal
convolutions, exact in chunks. Names are those of the checkpoints."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from math import prod

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from stentor.layers.codec_blocks import DILATIONS, ConvNeXt, SnakeBeta, Upsample
from stentor.layers.configs import FrameDecoderConfig, StackConfig
from stentor.layers.conv import (
    CausalConv1d,
    CausalConvTranspose1d,
    StreamingState,
    cast_codec,
    context_steps,
    convolve,
    state_columns,
    upcast,
)
from stentor.layers.rope import Rope, angles
from stentor.layers.sliding_window import WindowKV, window_columns
from stentor.layers.transformer import Block, Stack, SwiGLU
from stentor.layers.types import CodecCall, Column, State

WINDOW = "window"
CLOCK = "clock"
POSITIONS = 32768  # frames a stream may have, with its reference: 43 minutes


class LayerScale(nn.Module):
    """Learned gain per channel on a residual branch (Touvron et al., 2021). After loading, the
    branch's weights include it."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.empty(channels))

    def forward(self, x: Tensor) -> Tensor:
        return self.scale * x


def scale_outputs(linear: nn.Linear, scale: Tensor) -> None:
    """Multiply the outputs of `linear` by `scale` [outputs]."""
    linear.weight.data = linear.weight.data * scale.data[:, None]
    if linear.bias is not None:
        linear.bias.data = linear.bias.data * scale.data


class ScaledBlock(Block):
    """Pre-norm block with layer scales, which the weights include after loading."""

    mlp: SwiGLU

    def __init__(self, c: StackConfig) -> None:
        super().__init__(c)
        self.self_attn_layer_scale = LayerScale(c.hidden)
        self.mlp_layer_scale = LayerScale(c.hidden)

    def process_weights_after_loading(self) -> None:
        scale_outputs(self.self_attn.o_proj, self.self_attn_layer_scale.scale)
        scale_outputs(self.mlp.down_proj, self.mlp_layer_scale.scale)
        del self.self_attn_layer_scale, self.mlp_layer_scale


class ScaledStack(Stack):
    """A transformer of `ScaledBlock`."""

    def __init__(self, c: StackConfig) -> None:
        super().__init__(c)
        self.layers = nn.ModuleList(ScaledBlock(c) for _ in range(c.layers))


class ScaledConvNeXt(ConvNeXt):
    """A ConvNeXt block with a gain per channel. After loading, the MLP's weights include it."""

    gamma: Tensor | None

    def __init__(self, channels: int) -> None:
        super().__init__(channels)
        self.gamma = nn.Parameter(torch.empty(channels))

    def process_weights_after_loading(self) -> None:
        assert self.gamma is not None
        scale_outputs(self.pwconv2, self.gamma)
        self.gamma = None


class ResidualUnit(nn.Module):
    """x + conv1x1(snake(dilated convolution of 7 taps(snake(x))))."""

    def __init__(self, channels: int, dilation: int) -> None:
        super().__init__()
        self.act1 = SnakeBeta(channels)
        self.conv1 = CausalConv1d(channels, channels, 7, dilation)
        self.act2 = SnakeBeta(channels)
        self.conv2 = CausalConv1d(channels, channels, 1)

    def forward(
        self, x: Tensor, state: StreamingState | None, first: Tensor | None = None
    ) -> Tensor:
        """x [B, C, n]. What stands before column `first` [B] counts as zero."""
        y = convolve(self.conv1, x, state, before=self.act1, after=self.act2, first=first)
        return convolve(self.conv2, y, state, residual=x)


class UpBlock(nn.Module):
    """Snake, transposed convolution, three dilated residual units: halves the channels, multiplies
    the rate."""

    def __init__(self, channels: int, rate: int) -> None:
        super().__init__()
        half = channels // 2
        up = CausalConvTranspose1d(channels, half, rate)
        units = [ResidualUnit(half, dilation) for dilation in DILATIONS]
        self.block = nn.ModuleList([SnakeBeta(channels), up, *units])

    def forward(
        self,
        x: Tensor,
        state: StreamingState | None,
        first: Tensor | None = None,
        made: Tensor | None = None,
    ) -> Tensor:
        """x [B, channels, n] -> [B, channels / 2, n * rate]. What stands before column `first` [B]
        of x, and before column `made` [B] of the result, counts as zero."""
        act, up, *units = self.block
        x = convolve(up, x, state, before=act, first=first)
        for unit in units:
            x = unit(x, state, made)
        return x


class FrameDecoder(nn.Module):
    """The decoder behind its codebooks. A subclass has a `pre_transformer`, returns its input from
    `latents`, and calls `add_convolutions` in the order of its checkpoint."""

    table: Tensor
    offset: Tensor
    pre_transformer: Stack

    def __init__(self, c: FrameDecoderConfig) -> None:
        super().__init__()
        self.shape = c
        self.rope: Rope | None = None

    def add_convolutions(self) -> None:
        """Make `upsample` and `decoder`."""
        c = self.shape
        upsample = [Upsample(c.latent, ratio, ScaledConvNeXt) for ratio in c.ratios]
        self.upsample = nn.ModuleList(upsample)
        *widths, last_width = [c.width // 2**i for i in range(len(c.rates) + 1)]
        first = CausalConv1d(c.latent, c.width, 7)
        blocks = [UpBlock(width, rate) for width, rate in zip(widths, c.rates, strict=True)]
        snake = SnakeBeta(last_width)
        last = CausalConv1d(last_width, 1, 7)
        self.decoder = nn.ModuleList([first, *blocks, snake, last])

    @property
    def dtype(self) -> torch.dtype:
        """Precision in which audio is made."""
        return self.decoder[0].get_parameter("weight").dtype

    def fold_gains(self) -> None:
        """Multiply gains into the weights in front of them."""
        for module in self.modules():
            if isinstance(module, ScaledBlock | ScaledConvNeXt):
                module.process_weights_after_loading()

    def finish(self, table: Tensor, dtype: torch.dtype | None) -> None:
        """Take table [codebooks * size, width], from which `embed` reads, make that of RoPE in its
        precision, and round the weights to `dtype`, unless it is None."""
        self.register_buffer("table", table.detach(), persistent=False)
        device = table.device
        c = self.shape
        offset = torch.arange(c.codebooks, device=device) * c.codebook_size
        self.register_buffer("offset", offset, persistent=False)
        rope_angles = angles(c.stack.head_dim, POSITIONS, c.theta)
        rope = Rope(rope_angles, table.dtype, interleaved=False, in_float32=False)
        self.rope = rope.to(device)
        if dtype is None:
            dtype = self.dtype
        cast_codec(self, dtype)

    def embed(self, codes: Tensor) -> Tensor:
        """codes [B, n, codebooks] -> the sums of their rows [B, n, width]."""
        rows = F.embedding(codes + self.offset, self.table)
        return rows.sum(-2).to(self.dtype)

    def latents(self, codes: Tensor, state: StreamingState | None) -> Tensor:
        """codes [B, n, codebooks] -> what the transformer takes [B, n, latent]."""
        return self.embed(codes)

    def forward(
        self,
        codes: Tensor,
        pos: Tensor,
        state: StreamingState | None = None,
        last: int | None = None,
    ) -> Tensor:
        """codes [B, n, codebooks] at frame positions pos [B, n] -> samples [B, n * hop] in [-1, 1],
        or of the `last` frames. The transformer takes all frames, and the convolutions only
        these."""
        x = self.latents(codes, state)
        x = self.attended(x, pos, state)
        if last is not None:
            x = x[:, -last:]
            pos = pos[:, -last:]
        return self.samples(x, pos, state)

    def attended(self, x: Tensor, pos: Tensor, state: StreamingState | None) -> Tensor:
        """Windowed self-attention over frames x [B, n, latent] at positions pos [B, n]."""
        assert self.rope is not None, "process_weights_after_loading comes first"
        kv = WindowKV(WINDOW, self.shape.window, pos, state)
        out: Tensor = self.pre_transformer(x, kv.attend, self.rope, pos)
        return out

    def samples(self, x: Tensor, pos: Tensor, state: StreamingState | None) -> Tensor:
        """x [B, n, latent] of the frames at positions pos [B, n] -> samples [B, n * hop] in [-1,
        1].

        The first `skip` of an utterance mean nothing.
        """
        x = x.transpose(1, 2)
        for up in self.upsample:
            x = up(x, state)
        first, *blocks, snake, last = self.decoder
        x = convolve(first, x, state)
        befores = self._befores(pos[:, 0])
        for block, (before, position) in zip(blocks, pairwise(befores), strict=True):
            x = block(x, state, before, position)
        x = convolve(last, x, state, before=snake, first=befores[-1])
        samples = upcast(x)[:, 0]
        return samples.clamp(-1.0, 1.0)

    def _befores(self, start: Tensor) -> list[Tensor | None]:
        """Columns [B] of this call before which nothing exists, before each block and after the
        last, where the call begins with frame `start` [B]. None: all exist."""
        c = self.shape
        step = prod(c.ratios)
        befores: list[Tensor | None] = []
        for lag, rate in zip(c.lags, (1, *c.rates), strict=True):
            step = step * rate
            if lag:
                befores.append((lag - start * step).clamp_min(0))
            else:
                befores.append(None)
        return befores


class FrameCodec:
    """A decoder as a stateful codec (implements models.base.Codec)."""

    def __init__(self, decoder: FrameDecoder) -> None:
        c = decoder.shape
        self.decoder = decoder
        self.context = context_steps(decoder.upsample, decoder.decoder)
        window = window_columns(
            WINDOW, c.stack.layers, c.stack.kv_heads, c.stack.head_dim, c.window, decoder.dtype
        )
        self.columns: Mapping[str, Column] = {
            **state_columns(decoder),
            **window,
            CLOCK: Column(dtype=torch.int64),
        }

    def decode(
        self, frames: Tensor, state: State, call: CodecCall | None = None
    ) -> tuple[Tensor, State]:
        """frames [B, n, codebooks] -> samples [B, n * hop] float32 in [-1, 1], and the streams'
        next state. A silent call returns the samples of the last frames, on which the state
        depends."""
        streaming = StreamingState(state)
        count = frames.shape[1]
        pos = state[CLOCK][:, None] + torch.arange(count, device=frames.device)
        if call is not None and call.silent:
            context = self.context
        else:
            context = None
        samples = self.decoder(frames.long(), pos, streaming, context)
        return samples.float(), {**streaming.new, CLOCK: state[CLOCK] + count}
