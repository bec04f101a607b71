"""The vocoder (causal HiFT): mel frames to audio through a source, three stages and an inverse
Fourier transform.

Calls have fixed shapes: n mel frames in, 480 n samples out, 1,928 samples late. Rows may be
anywhere in their streams.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from stentor.layers.codec_blocks import Snake
from stentor.layers.conv import (
    CausalConv1d,
    StreamingState,
    cast_codec,
    convolve,
    state_columns,
    steps_from,
)
from stentor.layers.types import Column, State
from stentor.models.cosyvoice3.codec_source import (
    BINS,
    COLUMNS,
    FRAME,
    HOP,
    KEPT,
    PITCH_AHEAD,
    WINDOW,
    Pitch,
    Source,
    hann,
    transform,
)
from stentor.models.cosyvoice3.config import MELS, VocoderConfig
from stentor.models.cosyvoice3.ops import by_row

AHEAD = 4  # mel frames that a frame's audio depends on
DELAY = AHEAD * FRAME + WINDOW // 2  # samples
DRAIN = -(-DELAY // FRAME)  # frames past the end that bring the last samples out
RATES = (8, 5, 3)
KERNELS = (16, 11, 7)
TAPS = (3, 7, 11)
SOURCE_TAPS = (7, 7, 11)
DILATIONS = (1, 3, 5)
STRIDES = (15, 3, 1)  # columns of the source's transform per position of a stage
WIDE = STRIDES[0] - 1  # columns that the next call sees again
OVERLAP = WINDOW - HOP
MAX_MAGNITUDE = 100.0
LIMIT = 0.99


class ResidualBlock(nn.Module):
    """Three pairs of convolutions with Snake before each, dilated in the first of a pair. x [B, C,
    n]."""

    def __init__(self, channels: int, taps: int) -> None:
        super().__init__()
        self.convs1 = nn.ModuleList(CausalConv1d(channels, channels, taps, d) for d in DILATIONS)
        self.convs2 = nn.ModuleList(CausalConv1d(channels, channels, taps) for _ in DILATIONS)
        self.activations1 = nn.ModuleList(Snake(channels) for _ in DILATIONS)
        self.activations2 = nn.ModuleList(Snake(channels) for _ in DILATIONS)

    def forward(self, x: Tensor, first: Tensor, state: StreamingState) -> Tensor:
        """Treat columns of x before `first` [B] as zeros in each convolution, as its left
        padding."""
        parts = (self.convs1, self.convs2, self.activations1, self.activations2)
        for conv1, conv2, act1, act2 in zip(*parts, strict=True):
            y = convolve(conv1, x, state, before=act1, first=first)
            x = convolve(conv2, y, state, before=act2, residual=x, first=first)
        return x


class Vocoder(nn.Module):
    """Parameters start on the meta device: float32, and float64 in the pitch predictor."""

    window: Tensor

    def __init__(self, c: VocoderConfig) -> None:
        super().__init__()
        widths = [c.base >> (i + 1) for i in range(len(RATES))]
        inputs = [c.base, *widths[:-1]]
        self.conv_pre = nn.Conv1d(MELS, c.base, AHEAD + 1)
        self.ups = nn.ModuleList(
            CausalConv1d(*s) for s in zip(inputs, widths, KERNELS, strict=True)
        )
        downs = (
            nn.Conv1d(2 * BINS, w, 2 * s if s > 1 else 1, stride=s)
            for w, s in zip(widths, STRIDES, strict=True)
        )
        self.source_downs = nn.ModuleList(downs)
        blocks = (ResidualBlock(*s) for s in zip(widths, SOURCE_TAPS, strict=True))
        self.source_resblocks = nn.ModuleList(blocks)
        self.resblocks = nn.ModuleList(ResidualBlock(w, taps) for w in widths for taps in TAPS)
        self.conv_post = CausalConv1d(widths[-1], 2 * BINS, 7)
        self.source = Source()
        self.pitch = Pitch(c).double()
        self.columns: dict[str, Column] = {}

    def process_weights_after_loading(self, noise: Tensor, dtype: torch.dtype) -> None:
        """noise: `codec_noise.source_noise`. dtype: of the stages. Pitch, source and spectra stay
        as they are."""
        device = self.conv_pre.weight.device
        for part in (
            self.conv_pre,
            self.ups,
            self.source_downs,
            self.source_resblocks,
            self.resblocks,
            self.conv_post,
        ):
            cast_codec(part, dtype)
        self.source.register_buffer("noise", noise.to(device), persistent=False)
        self.register_buffer("window", hann(device), persistent=False)
        self.columns = {
            **state_columns(self),
            **Source.columns(),
            "mel": Column((AHEAD, MELS)),
            "bins": Column((2 * BINS, WIDE)),
            "held": Column((self.conv_post.channels,), dtype),
            "overlap": Column((2, OVERLAP)),
        }

    def forward(
        self, mel: Tensor, at: Tensor, end: Tensor, state: State, ahead: Tensor | None = None
    ) -> tuple[Tensor, State]:
        """mel [B, n, 80] of frames at [B] .., n >= 5, of streams of `end` [B] frames -> samples [B,
        480 n], next state.

        Sample j stands at 480 at - 1928 + j of the stream. What stands outside 0 .. 480 end is to
        be dropped, and so are mel frames outside the stream. An end that is not known yet is a
        large number. The next state is the one before the last `ahead` [B] frames of each row.
        """
        streaming = StreamingState(state, ahead, mel.shape[1])
        frames = at[:, None] + torch.arange(mel.shape[1], device=mel.device)
        mel = mel * ((frames >= 0) & (frames < end[:, None]))[..., None]
        mel = streaming.concat_history("mel", mel, AHEAD, dim=1).transpose(1, 2)
        bins = self._bins(mel, at, end, streaming)
        y = self._stages(mel, bins, at, streaming)
        return self._synthesize(y, at, end, streaming), streaming.new

    def _bins(self, mel: Tensor, at: Tensor, end: Tensor, state: StreamingState) -> Tensor:
        """The source's columns [B, 18, 14 + 120 n + 1]: 14 of before, and those from frame at - 4
        on."""
        first = at - PITCH_AHEAD
        alive = first[:, None] + torch.arange(mel.shape[2] - AHEAD, device=mel.device) >= 0
        f0 = self.pitch(mel[:, :, AHEAD - PITCH_AHEAD :], alive, state) * alive
        new, phases = self.source(f0, first, state.old)
        source = torch.cat((state.old["source"], new), dim=1)
        frames = f0.shape[1]
        stays = kept_steps(state, len(f0), frames)
        state.new["phase"] = steps_from(phases, stays - 1, 1)[:, 0]
        state.new["source"] = steps_from(source, FRAME * stays, KEPT)
        count = new.shape[1] + WINDOW
        start = FRAME * (at - AHEAD) - WINDOW // 2
        bins = transform(source[:, :count], start, FRAME * end, self.window)
        in_stream = (
            COLUMNS * (at - AHEAD)[:, None] + torch.arange(bins.shape[2], device=mel.device) >= 0
        )
        bins = torch.cat((state.old["bins"], bins * in_stream[:, None]), dim=2)
        state.new["bins"] = steps_from(bins.transpose(1, 2), COLUMNS * stays, WIDE).transpose(1, 2)
        return bins

    def _stages(self, mel: Tensor, bins: Tensor, at: Tensor, state: StreamingState) -> Tensor:
        """Frames from at - 4 on -> [B, 18, 120 n]: logarithms of magnitudes and phases of each
        column."""
        dtype = self.conv_pre.weight.dtype
        first = (AHEAD - at).clamp_min(0)
        bins = bins.to(dtype)
        x = by_row(self.conv_pre, mel.to(dtype))
        for i, (up, rate, stride) in enumerate(zip(self.ups, RATES, STRIDES, strict=True)):
            first = rate * first
            x = convolve(up, _repeated(F.leaky_relu(x, 0.1), rate), state, first=first)
            if stride == 1:
                x = self._shifted(x, at, state)
            if stride > 1:
                source = bins[:, :, WIDE - (stride - 1) :]
            else:
                source = bins[:, :, WIDE:-1]
            down = by_row(self.source_downs[i], source)
            x = x + self.source_resblocks[i](down, first, state)
            branches = self.resblocks[len(TAPS) * i : len(TAPS) * (i + 1)]
            a, b, c = (block(x, first, state) for block in branches)
            x = (a + b + c) / len(TAPS)
        return convolve(self.conv_post, F.leaky_relu(x, 0.01), state, first=first)

    @staticmethod
    def _shifted(x: Tensor, at: Tensor, state: StreamingState) -> Tensor:
        """Column k goes with the position k - 1 of x [B, C, 120 n], and column 0 with position
        1."""
        x = x.transpose(1, 2)
        stays = kept_steps(state, len(x), x.shape[1])
        state.new["held"] = steps_from(x, stays - 1, 1)[:, 0]
        before = torch.cat((state.old["held"][:, None].to(x.dtype), x[:, :-1]), dim=1)
        after = torch.cat((x[:, 1:], x[:, -1:]), dim=1)
        column = COLUMNS * (at - AHEAD)[:, None] + torch.arange(x.shape[1], device=x.device)
        return torch.where((column == 0)[..., None], after, before).transpose(1, 2)

    def _synthesize(self, y: Tensor, at: Tensor, end: Tensor, state: StreamingState) -> Tensor:
        """The inverse transform: windowed columns, overlapped, over the sum of squared windows."""
        y = y.float()
        column = COLUMNS * (at - AHEAD)[:, None] + torch.arange(y.shape[2], device=y.device)
        column_mask = ((column >= 0) & (column <= COLUMNS * end[:, None])).float()[..., None]
        magnitude = y[:, :BINS].exp().clamp(max=MAX_MAGNITUDE)
        phase = torch.sin(y[:, BINS:])
        spectrum = torch.complex(magnitude * phase.cos(), magnitude * phase.sin()).transpose(1, 2)
        wave = torch.fft.irfft(spectrum, n=WINDOW) * self.window * column_mask
        parts = torch.stack(
            (wave, self.window.square() * column_mask), dim=1
        )  # [B, 2, columns, 16]
        total = F.pad(state.old["overlap"], (0, HOP * y.shape[2]))
        for i in range(0, WINDOW, HOP):
            piece = parts[..., i : i + HOP].flatten(2)
            total = total + F.pad(piece, (i, OVERLAP - i))
        windows = OVERLAP // HOP
        stays = kept_steps(state, len(y), y.shape[2])
        last = steps_from(parts.transpose(1, 2), stays - windows, windows).transpose(1, 2)
        state.new["overlap"] = _overlap(last)
        settled = total[:, :, :-OVERLAP]
        samples: Tensor = settled[:, 0] / settled[:, 1].clamp_min(1e-11)
        return samples.clamp(-LIMIT, LIMIT)


def kept_steps(state: StreamingState, rows: int, count: int) -> Tensor:
    """How many of `count` steps belong to each row's stream, [B] int64. The others are ahead of
    it."""
    ahead = state.steps_ahead(count)
    if ahead is None:
        device = next(iter(state.old.values())).device
        return torch.full((rows,), count, device=device)
    return count - ahead


def _overlap(parts: Tensor) -> Tensor:
    """Add up what the last three windows [B, 2, 3, 16] reach beyond their samples: [B, 2, 12]."""
    first, second, third = parts.unbind(2)
    end = third[..., HOP:] + F.pad(second[..., 2 * HOP :], (0, HOP))
    return end + F.pad(first[..., 3 * HOP :], (0, 2 * HOP))


def _repeated(x: Tensor, times: int) -> Tensor:
    """Each position of x [B, C, n] so often, channels last in memory."""
    return x.transpose(1, 2).repeat_interleave(times, dim=1).transpose(1, 2)
