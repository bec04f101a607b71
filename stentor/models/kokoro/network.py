"""Kokoro's parts as one module."""

from __future__ import annotations

from collections.abc import Sequence, Sized
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from stentor.kernels import conv_kernels_supported
from stentor.models.kokoro.blocks import LSTM, Lengths
from stentor.models.kokoro.codec import HARMONICS, Decoder, step_mask
from stentor.models.kokoro.config import KokoroConfig
from stentor.models.kokoro.language_model import LanguageModel
from stentor.models.kokoro.prosody import Curves, Durations, TextEncoder

if TYPE_CHECKING:
    from stentor.models.kokoro import channels_last

STEP = 16
"""Frames of a call on a GPU are multiples: memory of a few sizes is used again."""


class Features(NamedTuple):
    """Features of a planned piece by token: for pitch and energy [T, n], and for the sound
    [T, hidden]."""

    prosody: Tensor
    text: Tensor


class Fast(NamedTuple):
    """The parts that run by kernels."""

    text_encoder: channels_last.TextEncoder
    curves: channels_last.Curves
    decoder: channels_last.Decoder


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
        self.fast: Fast | None = None

    def process_weights_after_loading(self) -> None:
        """Lay weights out for kernels, where those run: beside a decoder in 16 bits."""
        weight = self.decoder.asr_res.weight
        if not conv_kernels_supported(weight.device, weight.dtype):
            return
        from stentor.models.kokoro import channels_last, channels_last_blocks, lstm_kernels

        for module in self.modules():
            if isinstance(module, LSTM) and module.hidden_size in lstm_kernels.SIZES:
                module.by_kernel = channels_last_blocks.LSTM(module)
        self.fast = Fast(
            channels_last.TextEncoder(self.text_encoder),
            channels_last.Curves(self.curves),
            channels_last.Decoder(self.decoder),
        )

    @property
    def device(self) -> torch.device:
        return self.bert_encoder.weight.device

    def plan(
        self,
        tokens: list[Tensor],
        styles: Tensor,
        speeds: Tensor,
    ) -> tuple[Tensor, list[Features]]:
        """tokens: int64 [T] of each row. styles [B, 2 * style], speeds [B]. Frames of each token
        [B, longest T] and features of each row."""
        lengths = self._lengths(tokens)
        padded = pad_sequence(tokens, batch_first=True).to(self.device)
        places = torch.arange(padded.shape[1], device=self.device)
        exists = places < lengths.device[:, None]
        mask = exists[..., None].float()

        x = self.bert_encoder(self.bert(padded, exists))
        style = styles[:, self.c.style :]
        prosody, frames = self.durations(x, style, speeds, lengths, mask)
        if self.fast is None:
            text = self.text_encoder(padded, lengths, mask)
        else:
            text = self.fast.text_encoder(padded, lengths, mask)
        rows = zip(prosody, text, map(len, tokens), strict=True)
        return frames, [Features(p[:n], t[:n]) for p, t, n in rows]

    def speak(
        self,
        rows: list[Features],
        tokens: list[np.ndarray],
        styles: Tensor,
        noise: Tensor,
    ) -> Tensor:
        """Samples [B, n] of planned rows. What stands behind a row's end is not its audio.

        tokens: place [frames] among its tokens of each frame of a row. noise [B, longest samples,
        HARMONICS].
        """
        lengths = self._lengths(tokens)
        frames = lengths.device
        count = noise.shape[1] // self.hop
        index = _index(tokens, [len(row.text) for row in rows], count).to(self.device)
        prosody = _by_frame([row.prosody for row in rows], index)
        text = _by_frame([row.text for row in rows], index)
        style = styles[:, self.c.style :]
        sound = styles[:, : self.c.style]
        if self.fast is not None:
            curves = self.fast.curves(prosody, style, lengths)
            return self.fast.decoder(text, curves, sound, noise, frames)

        mask = step_mask(frames, count, 1)
        doubled = step_mask(frames, count, 2)
        pitch, energy = self.curves(prosody, style, lengths, mask, doubled)
        text = text.transpose(1, 2).to(self.decoder.asr_res.weight.dtype)
        samples: Tensor = self.decoder(text, pitch, energy, sound, noise, frames)
        return samples

    def _lengths(self, rows: Sequence[Sized]) -> Lengths:
        host = torch.tensor([len(row) for row in rows])
        return Lengths(host, host.to(self.device))

    @property
    def hop(self) -> int:
        """Samples of a frame."""
        return 2 * self.c.generator.upsampling

    def noise_shape(self, frames: int) -> tuple[int, int]:
        """Shape of the noise of one row of `frames` frames, padded."""
        if self.device.type == "cuda":
            frames = -(-frames // STEP) * STEP
        return frames * self.hop, HARMONICS


def _index(tokens: list[np.ndarray], numbers: list[int], count: int) -> Tensor:
    """Places [B, count] of each frame's token among those of all rows, which have `numbers` tokens.
    Behind a row's end it is the place behind them all."""
    index = np.full((len(tokens), count), sum(numbers))
    first = 0
    for row, places, number in zip(index, tokens, numbers, strict=True):
        row[: len(places)] = places + first
        first += number
    return torch.from_numpy(index)


def _by_frame(values: list[Tensor], index: Tensor) -> Tensor:
    """Each token's values [T, n] for each of its frames, padded with zeros: [B, count, n]."""
    behind = values[0].new_zeros(1, values[0].shape[1])
    return torch.cat((*values, behind))[index]
