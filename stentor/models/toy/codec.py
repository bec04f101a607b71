"""The toy's codecs: a causal one, one whose audio is late, and one that decodes from an utterance's
beginning.

The last one solves all frames in each call, as a flow does. A frame depends on the AHEAD frames
behind it, and on all frames of its chunk and before, or of its utterance if that has ended. Its
samples depend on those OWED later. Its voice comes with the request: a speaker vector, and a prefix
with a tone for each frame, whose audio it does not make.
"""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from stentor.layers.conv import (
    CausalConv1d,
    CausalConvTranspose1d,
    StreamingState,
    state_columns,
    steps_from,
)
from stentor.layers.qk_norm_rope import NormRope
from stentor.layers.sliding_window import WindowKV, window_columns
from stentor.layers.types import NO_END, CodecCall, Column, State
from stentor.models.codec_timing import CAUSAL, CodecTiming, UtteranceTiming
from stentor.models.toy.config import (
    AHEAD,
    CODES,
    HOP,
    HOPS,
    LATE,
    LATENT,
    LONG_PREFIX,
    OWED,
    SPEAKER,
    TONE,
    WINDOW,
)


class ToyCodec(nn.Module):
    """Frames [B, n, LATENT + CODES] -> HOP samples each: causal conv, windowed attention,
    transposed conv."""

    timing = CAUSAL

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
    """Codec whose samples also depend on the one LATE behind them, or on zeros where the stream has
    ended."""

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


class UtteranceCodec(nn.Module):
    """Frames [B, T, FRAME] of utterances so far -> HOP samples of each frame of a chunk, OWED
    samples late."""

    timing = UtteranceTiming(chunk=48, late=OWED, hops=HOPS, ahead=AHEAD, lengths=(16, 48))

    def __init__(self) -> None:
        super().__init__()
        self.inp = nn.Linear(FRAME, WIDTH, bias=False)
        self.ahead = nn.Linear((AHEAD + 1) * WIDTH, WIDTH)
        self.speaker = nn.Linear(SPEAKER, WIDTH)
        self.tone = nn.Linear(TONE, WIDTH)
        self.out = nn.Linear(2 * WIDTH, HOP)
        self.columns = {
            "prefix": Column(dtype=torch.int64),
            "prefix_frames": Column((LONG_PREFIX, FRAME)),
            "speaker": Column((SPEAKER,)),
            "tone": Column((LONG_PREFIX, TONE)),
            "owed": Column((OWED,)),
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
        z = self._solve(frames, state, call)
        at = call.start[:, None] + torch.arange(call.decodes, device=z.device)
        frame = (at + state["prefix"][:, None]).clamp_max(z.shape[1] - 1)
        samples = z.gather(1, frame[..., None].expand(-1, -1, HOP))
        samples = torch.where((at < call.end[:, None])[..., None], samples, 0.0).flatten(1)
        both = torch.cat((state["owed"].to(samples.dtype), samples), 1)
        owed = steps_from(both, HOP * (call.stop - call.start), OWED)
        mixed = both * 0.6 + F.pad(both, (0, OWED))[:, OWED:] * 0.4
        return mixed.tanh().float(), {**state, "owed": owed}

    def _solve(self, frames: Tensor, state: State, call: CodecCall) -> Tensor:
        """Samples of all frames of a call, [B, T, HOP]."""
        at = torch.arange(frames.shape[1], device=frames.device)
        prefix = state["prefix"][:, None]
        in_prefix = at.expand(len(frames), -1).clamp_max(LONG_PREFIX - 1)[..., None]
        of_voice = (at < prefix)[..., None]
        before = state["prefix_frames"].take_along_dim(in_prefix, 1).to(frames.dtype)
        x = self.inp(torch.where(of_voice, before, frames))
        exists = at < prefix + call.end[:, None]
        x = F.pad(torch.where(exists[..., None], x, 0.0), (0, 0, 0, AHEAD))
        count = frames.shape[1]
        y = self.ahead(torch.cat([x[:, i : i + count] for i in range(AHEAD + 1)], -1))
        tone = self.tone(state["tone"].take_along_dim(in_prefix, 1).to(y.dtype))
        y = y + self.speaker(state["speaker"].to(y.dtype))[:, None]
        y = (y + torch.where(of_voice, tone, 0)).tanh()
        chunk_end = (at // HOPS[0] + 1) * HOPS[0]
        ended = call.end[:, None] < NO_END
        until = torch.where(ended, prefix + call.end[:, None], chunk_end)
        attended = F.scaled_dot_product_attention(y, y, y.sin(), attn_mask=at < until[..., None])
        out: Tensor = self.out(torch.cat((y, attended), -1))
        return out
