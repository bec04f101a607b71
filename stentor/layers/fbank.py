"""Kaldi's filter bank, as speaker encoders read speech."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

FBANK_RATE = 16_000
MELS = 80


def speaker_fbank(wav: Tensor) -> Tensor:
    """16 kHz [n] -> Kaldi's filter bank [frames, 80], without its mean over time."""
    frame = 400
    hop = 160
    fft = 512
    x = wav.unfold(0, frame, hop)
    x = x - x.mean(1, keepdim=True)
    before = torch.cat((x[:, :1], x[:, :-1]), dim=1)
    x = x - 0.97 * before
    window = torch.hann_window(frame, periodic=False, device=wav.device) ** 0.85
    windowed = F.pad(x * window, (0, fft - frame))
    power = torch.fft.rfft(windowed).abs().square()
    bank = _kaldi(fft).to(wav.device)
    mel: Tensor = power[:, : len(bank)] @ bank
    smallest = torch.finfo(torch.float32).eps
    log_mel = mel.clamp_min(smallest).log()
    return log_mel - log_mel.mean(0, keepdim=True)


def _kaldi(fft: int) -> Tensor:
    """80 triangles on the mel scale of HTK, 20 Hz to 8 kHz: [fft / 2, 80] float32."""

    def mel(hz: Tensor) -> Tensor:
        return 1127 * torch.log(1 + hz / 700)

    low, high = mel(torch.tensor([20.0, 8000.0]))
    width = (high - low) / (MELS + 1)
    bins = torch.arange(fft // 2).float()
    at = mel(bins * FBANK_RATE / fft)[:, None]
    lower = low + width * torch.arange(MELS)
    upper = lower + 2 * width
    rising = (at - lower) / width
    falling = (upper - at) / width
    return torch.minimum(rising, falling).clamp_min(0)
