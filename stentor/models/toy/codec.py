"""The toy's causal codec."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

from stentor.layers.conv import CausalConv1d, CausalConvTranspose1d, StreamingState, state_columns
from stentor.layers.qk_norm_rope import NormRope
from stentor.layers.sliding_window import WindowKV, window_columns
from stentor.layers.types import NO_PAGES, CodecCall, Column, State
from stentor.models.codec_timing import CAUSAL
from stentor.models.toy.config import CODES, LATENT, WINDOW


class ToyCodec(nn.Module):
    """Frames [B, n, LATENT + CODES] -> HOP samples each: causal conv, windowed attention, transposed conv."""

    timing = CAUSAL
    pages = NO_PAGES

    def __init__(self) -> None:
        super().__init__()
        self.inp = CausalConv1d(LATENT + CODES, 8, 3)
        self.up = CausalConvTranspose1d(8, 4, 3)
        self.out = CausalConv1d(4, 1, 5)
        self.up2 = CausalConvTranspose1d(4, 4, 2)
        self.columns = {
            **state_columns(self),
            **window_columns("attn", 1, 2, 4, WINDOW),
            "count": Column(dtype=torch.int64),
        }

    def decode(self, frames: Tensor, state: State, _: CodecCall | None = None) -> tuple[Tensor, State]:
        streaming = StreamingState(state)
        x = self.inp(frames.transpose(1, 2), streaming).tanh()
        pos = state["count"][:, None] + torch.arange(frames.shape[1], device=frames.device)
        heads = x.transpose(1, 2).unflatten(-1, (2, 4))
        kv = WindowKV("attn", WINDOW, pos, streaming)
        x = x + kv.attend(0, heads, heads, heads, NormRope()).flatten(-2).transpose(1, 2)
        y = self.out(self.up2(self.up(x, streaming), streaming), streaming).tanh()
        streaming.new["count"] = state["count"] + frames.shape[1]
        return y[:, 0].float(), streaming.new

    def conditions(self, prefix: np.ndarray) -> dict[str, np.ndarray]:
        """It has none."""
        return {}
