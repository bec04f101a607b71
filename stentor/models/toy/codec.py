"""The toy's codecs: a causal one, one whose audio is late, and one that looks ahead, as one that solves a flow does.

A frame of the last is decoded with the LOOKAHEAD frames behind it and with all frames of its chunk and before. An
utterance that is not streamed is one chunk. The audio of a frame also depends on the DELAY frames behind it. That codec
is given its voice: a speaker vector, and the prefix with a tone for each frame, whose audio it does not make.
"""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from stentor.layers.conv import CausalConv1d, CausalConvTranspose1d, StreamingState, state_columns
from stentor.layers.qk_norm_rope import NormRope
from stentor.layers.sliding_window import WindowKV, window_columns
from stentor.layers.types import NO_PAGES, CodecCall, CodecPageTable, Column, State
from stentor.models.codec_timing import CAUSAL, CodecTiming
from stentor.models.toy.config import (
    CODES,
    DELAY,
    GRID,
    HOP,
    LATE,
    LATENT,
    LONG_PREFIX,
    LOOKAHEAD,
    PAGES,
    SPEAKER,
    TONE,
    WINDOW,
)


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

    def decode(
        self, frames: Tensor, state: State, _: CodecCall | None = None
    ) -> tuple[Tensor, State]:
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

    def decode(
        self, frames: Tensor, state: State, call: CodecCall | None = None
    ) -> tuple[Tensor, State]:
        assert call is not None
        y, new = super().decode(frames, state)
        at = torch.arange(y.shape[1], device=y.device)
        y = torch.where(at < (call.end - call.start)[:, None] * HOP, y, 0.0)
        both = torch.cat((state["late"], y), 1)
        new["late"] = both[:, -LATE:]
        return both * 0.6 + F.pad(both, (0, LATE))[:, LATE:] * 0.4, new


FRAME = LATENT + CODES
WIDTH = 8
WHOLES = (4 * GRID, 12 * GRID)


class LookaheadCodec(nn.Module):
    """Frames [B, n + LOOKAHEAD, FRAME] -> HOP samples each of the n, and of the DELAY before them."""

    timing = CodecTiming(
        GRID, LOOKAHEAD, DELAY, whole=True, wholes=WHOLES, window=PAGES, chunk_pages=2
    )

    def __init__(self) -> None:
        super().__init__()
        self.inp = nn.Linear(FRAME, WIDTH, bias=False)
        self.ahead = nn.Linear((LOOKAHEAD + 1) * WIDTH, WIDTH)
        self.speaker = nn.Linear(SPEAKER, WIDTH)
        self.tone = nn.Linear(TONE, WIDTH)
        self.out = nn.Linear(2 * WIDTH, HOP)
        self.late = nn.Parameter(torch.empty(DELAY + 1, HOP))
        self.pages = {"kv": Column((2, GRID, WIDTH))}
        i64 = torch.int64
        self.columns = {
            "prefix": Column(dtype=i64),
            "prefix_frames": Column((LONG_PREFIX, FRAME)),
            "speaker": Column((SPEAKER,)),
            "tone": Column((LONG_PREFIX, TONE)),
            "owed": Column((DELAY, HOP)),
        }

    def conditions(self, prefix: np.ndarray) -> dict[str, np.ndarray]:
        """Make conditions of a voice with prefix frames [n, FRAME]."""
        if not len(prefix):
            return {}
        return {
            "prefix": np.array(len(prefix)),
            "prefix_frames": prefix,
            "speaker": prefix.mean(0)[:SPEAKER],
            "tone": np.sin(prefix[:, :TONE] * 3),
        }

    def decode(self, frames: Tensor, state: State, call: CodecCall) -> tuple[Tensor, State]:
        if call.whole:
            fresh = {"owed": torch.zeros_like(state["owed"])}
            frames = F.pad(frames, (0, 0, 0, LOOKAHEAD))
            samples, new = self._decode(frames, {**state, **fresh}, call)
            return samples[:, DELAY * HOP :], new
        return self._decode(frames, state, call)

    def _decode(self, frames: Tensor, state: State, call: CodecCall) -> tuple[Tensor, State]:
        count = frames.shape[1] - LOOKAHEAD
        at = call.start[:, None] + torch.arange(count + LOOKAHEAD, device=frames.device)
        in_prefix = (at + state["prefix"][:, None]).clamp(0, LONG_PREFIX - 1)[..., None]
        before = state["prefix_frames"].take_along_dim(in_prefix, 1).to(frames.dtype)
        x = self.inp(torch.where((at < 0)[..., None], before, frames))
        exists = (at >= -state["prefix"][:, None]) & (at < call.end[:, None])
        x = torch.where(exists[..., None], x, 0.0)
        y = self.ahead(torch.cat([x[:, i : i + count] for i in range(LOOKAHEAD + 1)], -1))
        tone = self.tone(state["tone"].take_along_dim(in_prefix[:, :count], 1).to(y.dtype))
        y = (
            y
            + self.speaker(state["speaker"].to(y.dtype))[:, None]
            + torch.where((at[:, :count] < 0)[..., None], tone, 0)
        )
        y = y.tanh()
        seen = self._attend(y, exists[:, :count], call)
        z = self.out(torch.cat((y, seen), -1))
        heard = (exists & (at >= 0))[:, :count, None]
        owed = state["owed"].to(z.dtype)
        z = torch.cat((owed, torch.where(heard, z, 0.0), torch.zeros_like(owed)), 1)
        samples = torch.stack(
            [z[:, i : i + DELAY + count] * self.late[i] for i in range(DELAY + 1)]
        ).sum(0)
        return samples.tanh().flatten(1).float(), {**state, "owed": z[:, count : count + DELAY]}

    def _attend(self, y: Tensor, exists: Tensor, call: CodecCall) -> Tensor:
        """Attend from each frame [B, n, WIDTH] to the whole chunk and of the pages before it."""
        kv = torch.stack((y, y.sin()), 1)
        seen = exists[:, None]
        if not call.whole:
            kv, seen = self._with_pages(kv, exists, call.pages)
        keys, values = kv.unbind(1)
        return F.scaled_dot_product_attention(y, keys, values, attn_mask=seen)

    def _with_pages(
        self, kv: Tensor, exists: Tensor, pages: CodecPageTable
    ) -> tuple[Tensor, Tensor]:
        """Keys and values [B, 2, m, WIDTH] of all pages of each row, and which of them [B, n, m] each frame sees: those
        of its page and of the pages before."""
        pool, (rows, width) = pages.pool["kv"], pages.table.shape
        count = exists.shape[1] // GRID
        own = pages.filled[:, None] + torch.arange(count, device=kv.device)
        new = (
            torch.where(exists[:, None, :, None], kv, 0.0)
            .view(rows, 2, count, GRID, WIDTH)
            .transpose(1, 2)
        )
        pool[pages.table.gather(1, own)] = new.to(pool.dtype)
        page = torch.arange(width, device=kv.device)
        filled = (page < pages.filled[:, None])[..., None].expand(-1, -1, GRID)
        real = filled.scatter(
            1, own[..., None].expand(-1, -1, GRID), exists.reshape(rows, count, GRID)
        )
        before = page <= own.repeat_interleave(GRID, 1)[..., None]
        kept = pool[pages.table].transpose(1, 2).reshape(rows, 2, width * GRID, WIDTH)
        return kept.to(kv.dtype), (before[..., None] & real[:, None]).flatten(2)


class WholeCodec(LookaheadCodec):
    """Codec that decodes whole utterances only."""

    timing = CodecTiming(GRID, LOOKAHEAD, DELAY, whole=True, wholes=WHOLES, chunks=False)
