"""The toy's codec that looks ahead, as one that solves a flow in chunks does.

A frame is decoded with the LOOKAHEAD frames behind it and with all frames of its chunk and before. An utterance that
is not streamed is one chunk. The audio of a frame also depends on the DELAY frames behind it. The codec is given its
voice: a speaker vector, and the prefix with a tone for each frame, whose audio it does not make.
"""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from stentor.layers.types import CodecCall, Column, State
from stentor.models.codec_timing import CodecTiming
from stentor.models.toy.config import CODES, DELAY, GRID, HOP, LATENT, LONG_PREFIX, LOOKAHEAD, SPEAKER, TONE

FRAME, WIDTH = LATENT + CODES, 8


class LookaheadCodec(nn.Module):
    """Frames [B, n + LOOKAHEAD, FRAME] -> HOP samples each of the n, and of the DELAY before them."""

    timing = CodecTiming(GRID, LOOKAHEAD, DELAY, whole=True)

    def __init__(self) -> None:
        super().__init__()
        self.inp = nn.Linear(FRAME, WIDTH, bias=False)
        self.ahead = nn.Linear((LOOKAHEAD + 1) * WIDTH, WIDTH)
        self.speaker = nn.Linear(SPEAKER, WIDTH)
        self.tone = nn.Linear(TONE, WIDTH)
        self.out = nn.Linear(2 * WIDTH, HOP)
        self.late = nn.Parameter(torch.empty(DELAY + 1, HOP))
        i64 = torch.int64
        self.columns = {
            "prefix": Column(dtype=i64),
            "prefix_frames": Column((LONG_PREFIX, FRAME)),
            "speaker": Column((SPEAKER,)),
            "tone": Column((LONG_PREFIX, TONE)),
            "count": Column(dtype=i64),
            "sum": Column((WIDTH,), torch.float64),
            "owed": Column((DELAY, HOP)),
        }

    def conditions(self, prefix: np.ndarray) -> dict[str, np.ndarray]:
        """Of a voice with so many prefix frames [n, FRAME]."""
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
            fresh = {name: torch.zeros_like(state[name]) for name in ("sum", "count", "owed")}
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
        grid = count if call.whole else GRID
        new, mean = self._means(torch.where(exists[:, :count, None], y.tanh(), 0.0), exists[:, :count], state, grid)
        z = self.out(torch.cat((y.tanh(), mean.to(y.dtype)), -1))
        heard = (exists & (at >= 0))[:, :count, None]
        owed = state["owed"].to(z.dtype)
        z = torch.cat((owed, torch.where(heard, z, 0.0), torch.zeros_like(owed)), 1)
        samples = torch.stack([z[:, i : i + DELAY + count] * self.late[i] for i in range(DELAY + 1)]).sum(0)
        return samples.tanh().flatten(1).float(), {**state, **new, "owed": z[:, count : count + DELAY]}

    def _means(self, y: Tensor, exists: Tensor, state: State, grid: int) -> tuple[State, Tensor]:
        """Means [B, n, WIDTH] of all that each frame's chunk and those before it have, and the state after them."""
        total, seen = state["sum"], state["count"]
        means = []
        for at in range(0, y.shape[1], grid):
            total = total + y[:, at : at + grid].sum(1)
            seen = seen + exists[:, at : at + grid].sum(1)
            means.append((total / seen[:, None].clamp_min(1))[:, None].expand(-1, grid, -1))
        return {"sum": total, "count": seen}, torch.cat(means, 1)


class WholeCodec(LookaheadCodec):
    """The same without chunks."""

    timing = CodecTiming(GRID, LOOKAHEAD, DELAY, whole=True, chunks=False)
