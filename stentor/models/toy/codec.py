"""The toy's causal codec."""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from stentor.layers.conv import CausalConv1d, CausalConvTranspose1d, StreamingState, state_columns
from stentor.layers.qk_norm_rope import NormRope
from stentor.layers.sliding_window import WindowKV, window_columns
from stentor.layers.types import NO_PAGES, CodecCall, Column, State
from stentor.models.codec_timing import CAUSAL, CodecTiming
from stentor.models.toy.config import CODES, HOP, LATE, LATENT, WINDOW


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


class LateCodec(ToyCodec):
    """Codec whose samples also depend on the one LATE behind them, or on zeros where the stream has ended."""

    timing = CodecTiming(late=LATE)

    def __init__(self) -> None:
        super().__init__()
        self.columns["late"] = Column((LATE,))

    def decode(self, frames: Tensor, state: State, call: CodecCall | None = None) -> tuple[Tensor, State]:
        assert call is not None
        y, new = super().decode(frames, state)
        at = torch.arange(y.shape[1], device=y.device)
        y = torch.where(at < (call.end - call.start)[:, None] * HOP, y, 0.0)
        both = torch.cat((state["late"], y), 1)
        new["late"] = both[:, -LATE:]
        return both * 0.6 + F.pad(both, (0, LATE))[:, LATE:] * 0.4, new
