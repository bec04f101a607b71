"""The vocoder's source: pitch from mel frames, a sum of harmonics that stand still within a frame,
and noise."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from stentor.layers.conv import CausalConv1d, StreamingState
from stentor.layers.types import Column, State
from stentor.models.cosyvoice3.codec_noise import HARMONICS
from stentor.models.cosyvoice3.config import MELS, SAMPLE_RATE, VocoderConfig
from stentor.models.cosyvoice3.ops import by_row, taps_product

FRAME = 480  # samples of a mel frame
PITCH_AHEAD = 3  # mel frames
AMPLITUDE = 0.1
NOISE = 0.003
VOICED_HZ = 10.0
WINDOW = 16
HOP = 4
BINS = WINDOW // 2 + 1
COLUMNS = FRAME // HOP  # of the source's transform, per mel frame
KEPT = FRAME + WINDOW // 2  # source samples that the next call's columns see again


def hann(device: torch.device) -> Tensor:
    """Periodic, [16] float32."""
    return torch.hann_window(WINDOW, dtype=torch.float64, device=device).float()


class Pitch(nn.Module):
    """Mel frames to Hz, in float64: an error would grow with time, in the phase of the source."""

    def __init__(self, c: VocoderConfig) -> None:
        super().__init__()
        first = nn.Conv1d(MELS, c.pitch, PITCH_AHEAD + 1)
        self.convs = nn.ModuleList([first, *(CausalConv1d(c.pitch, c.pitch, 3) for _ in range(4))])
        self.out = nn.Linear(c.pitch, 1)

    def forward(self, mel: Tensor, alive: Tensor, state: StreamingState) -> Tensor:
        """mel [B, 80, n + 3], with `alive` [B, n] marking the stream's frames -> Hz [B,
        n] float32."""
        first, *rest = self.convs
        x = F.elu(_product(first, mel.double())) * alive[:, None]
        for conv in rest:
            assert isinstance(conv, CausalConv1d)
            x = F.elu(_product(conv, conv.with_history(x, state)) * alive[:, None])
        return by_row(self.out, x.transpose(1, 2))[..., 0].abs().float()


def _product(conv: nn.Module, x: Tensor) -> Tensor:
    """The convolution of x [B, C, n] as one product. Those of the library take four times as long
    in float64."""
    assert isinstance(conv, nn.Conv1d | CausalConv1d)
    return taps_product(conv.weight, conv.bias, x.transpose(1, 2)).transpose(1, 2)


class Source(nn.Module):
    """Hz of each frame to samples. `noise` [samples, 9] is indexed by the sample's place in the
    stream."""

    noise: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.mix = nn.Linear(HARMONICS, 1)

    @staticmethod
    def columns() -> dict[str, Column]:
        """Cycles that each harmonic has run, and the last samples."""
        return {"phase": Column((HARMONICS,), torch.float64), "source": Column((KEPT,))}

    def forward(self, f0: Tensor, first: Tensor, state: State) -> tuple[Tensor, Tensor]:
        """f0 [B, n] of frames first [B] .. -> samples [B, 480 n], and the phase after each frame
        [B, n, 9].

        Frames below 0 have a pitch of 0.

        The angle is held for a whole frame: that is what the original does.
        """
        multiples = torch.arange(1, HARMONICS + 1, device=f0.device).float()
        cycles = (f0[..., None] * multiples / SAMPLE_RATE) % 1
        total = state["phase"][:, None] + cycles.double().cumsum(1)
        angle = total.float() * 2 * math.pi * FRAME
        voiced = (f0 > VOICED_HZ).float()[..., None]
        sines = torch.sin(angle) * AMPLITUDE * voiced
        level = voiced * NOISE + (1 - voiced) * (AMPLITUDE / 3)
        at = FRAME * first[:, None] + torch.arange(FRAME * f0.shape[1], device=f0.device)
        noise = self.noise[at.clamp(0, len(self.noise) - 1)].view(*f0.shape, FRAME, HARMONICS)
        x = by_row(self.mix, sines[:, :, None] + level[:, :, None] * noise)
        return torch.tanh(x).flatten(1), total


def transform(source: Tensor, start: Tensor, end: Tensor, window: Tensor) -> Tensor:
    """Columns [B, 18, m] of the source's transform (16 long, 4 apart): real parts, then imaginary
    ones.

    source [B, n] from sample start [B] on, with start = -8 modulo 480. Column k is centred on
    sample 4 k. Beyond the stream's samples 0 .. end - 1 the source is reflected.
    """
    at = start[:, None] + torch.arange(source.shape[1], device=source.device)
    last = end[:, None]
    mirror = torch.where(at < 0, -at, torch.where(at >= last, 2 * last - 2 - at, at))
    source = source.gather(1, (mirror - at[:, :1]).clamp(0, source.shape[1] - 1))
    spectrum = torch.fft.rfft(source.unfold(1, WINDOW, HOP) * window)
    return torch.cat((spectrum.real, spectrum.imag), dim=2).transpose(1, 2)
