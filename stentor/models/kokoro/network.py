"""Kokoro's parts as one module."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from stentor.models.kokoro.codec import HARMONICS, Decoder, step_mask
from stentor.models.kokoro.config import KokoroConfig
from stentor.models.kokoro.language_model import LanguageModel
from stentor.models.kokoro.prosody import Curves, Durations, TextEncoder

STEP = 16
"""Frames of a call on a GPU are multiples: libraries keep plans by shape."""


class Features(NamedTuple):
    """Features of a planned piece by token: frames [T], for pitch and energy [T, n], and for the
    sound [T, hidden]."""

    frames: Tensor
    prosody: Tensor
    text: Tensor


class Network(nn.Module):
    def __init__(self, c: KokoroConfig) -> None:
        super().__init__()
        self.c = c
        self.bert = LanguageModel(c.tokens, c.bert)
        self.bert_encoder = nn.Linear(c.bert.hidden, c.hidden)
        self.durations = Durations(c)
        self.curves = Curves(c)
        self.text_encoder = TextEncoder(c)
        self.decoder = Decoder(c)

    @property
    def device(self) -> torch.device:
        return self.bert_encoder.weight.device

    def plan(
        self,
        tokens: list[Tensor],
        styles: Tensor,
        speeds: Tensor,
    ) -> list[Features]:
        """tokens: int64 [T] of each row. styles [B, 2 * style], speeds [B]."""
        lengths = torch.tensor([len(row) for row in tokens])
        padded = pad_sequence(tokens, batch_first=True).to(self.device)
        places = torch.arange(padded.shape[1])
        exists = (places < lengths[:, None]).to(self.device)
        mask = exists[..., None].float()

        x = self.bert_encoder(self.bert(padded, exists))
        style = styles[:, self.c.style :]
        prosody, frames = self.durations(x, style, speeds, lengths, mask)
        text = self.text_encoder(padded, lengths, mask)
        rows = zip(frames, prosody, text, map(len, tokens), strict=True)
        return [Features(f[:n], p[:n], t[:n]) for f, p, t, n in rows]

    def speak(
        self,
        rows: list[Features],
        lengths: Tensor,
        styles: Tensor,
        noise: Tensor,
    ) -> Tensor:
        """Samples [B, n] of planned rows. What stands behind a row's end is not its audio.

        lengths [B]: frames of each, on the host. noise [B, longest samples, HARMONICS].
        """
        frames = torch.stack([row.frames.sum() for row in rows])
        count = noise.shape[1] // self.hop
        prosody = _by_frame([row.prosody for row in rows], rows, count)
        text = _by_frame([row.text for row in rows], rows, count).transpose(1, 2)

        mask = step_mask(frames, count, 1)
        doubled = step_mask(frames, count, 2)
        style = styles[:, self.c.style :]
        pitch, energy = self.curves(prosody, style, lengths, mask, doubled)
        text = text.to(self.decoder.asr_res.weight.dtype)
        sound = styles[:, : self.c.style]
        samples: Tensor = self.decoder(text, pitch, energy, sound, noise, frames)
        return samples

    @property
    def hop(self) -> int:
        """Samples of a frame."""
        return 2 * self.c.generator.upsampling

    def noise_shape(self, frames: int) -> tuple[int, int]:
        """Shape of the noise of one row of `frames` frames, padded."""
        if self.device.type == "cuda":
            frames = -(-frames // STEP) * STEP
        return frames * self.hop, HARMONICS


def _by_frame(
    values: list[Tensor],
    rows: list[Features],
    count: int,
) -> Tensor:
    """Each token's values for each of its frames, padded: [B, count, n]."""
    spread = [
        value.repeat_interleave(row.frames, dim=0) for value, row in zip(values, rows, strict=True)
    ]
    padded = spread[0].new_zeros(len(rows), count, values[0].shape[-1])
    for target, value in zip(padded, spread, strict=True):
        target[: len(value)] = value
    return padded
