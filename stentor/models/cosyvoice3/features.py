"""Spectral features of reference audio, for the flow and the speech tokenizer."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from stentor.layers.fbank import FBANK_RATE
from stentor.models.cosyvoice3.config import MELS, SAMPLE_RATE

_KNEE_HZ, _KNEE_MEL, _LOG_STEP = 1000.0, 15.0, math.log(6.4) / 27  # Slaney's scale: linear, then logarithmic


def prompt_mel(wav: Tensor) -> Tensor:
    """24 kHz [n] -> natural logarithms of 80 mels [n // 480, 80]."""
    fft, hop = 1920, 480
    pad = (fft - hop) // 2
    wav = F.pad(wav[None], (pad, pad), mode="reflect")[0]
    spectrum = torch.fft.rfft(wav.unfold(0, fft, hop) * torch.hann_window(fft, device=wav.device))
    magnitude = spectrum.abs().square().add(1e-9).sqrt()
    mel: Tensor = magnitude @ slaney(SAMPLE_RATE, fft, MELS).to(wav.device)
    return mel.clamp_min(1e-5).log()


def tokenizer_mel(wav: Tensor) -> Tensor:
    """16 kHz [n] -> Whisper's log-mel features [128, n // 160]."""
    fft, hop = 400, 160
    wav = F.pad(wav[None], (fft // 2, fft // 2), mode="reflect")[0]
    power = torch.fft.rfft(wav.unfold(0, fft, hop) * torch.hann_window(fft, device=wav.device)).abs().square()[:-1]
    mel = (power @ slaney(FBANK_RATE, fft, 128).to(wav.device)).clamp_min(1e-10).log10()
    return (torch.maximum(mel, mel.max() - 8).T + 4) / 4


def slaney(rate: int, fft: int, mels: int) -> Tensor:
    """Triangles of equal area on Slaney's mel scale, 0 Hz to rate / 2: [fft / 2 + 1, mels] float32."""
    hz = torch.arange(fft // 2 + 1).double() * rate / fft
    top = _KNEE_MEL + math.log(rate / 2 / _KNEE_HZ) / _LOG_STEP
    mel = torch.linspace(0, top, mels + 2).double()
    linear = mel * _KNEE_HZ / _KNEE_MEL
    edges = torch.where(mel < _KNEE_MEL, linear, _KNEE_HZ * torch.exp((mel - _KNEE_MEL) * _LOG_STEP))
    left, centre, right = edges[:-2], edges[1:-1], edges[2:]
    rising, falling = (hz[:, None] - left) / (centre - left), (right - hz[:, None]) / (right - centre)
    return (torch.minimum(rising, falling).clamp_min(0) * 2 / (right - left)).float()
