"""The codec: codes to audio through the flow and the vocoder, in cells of 25 codes or a whole utterance at once."""

from __future__ import annotations

from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from stentor.layers.types import NO_PAGES, CodecCall, Column, State
from stentor.models.codec_timing import CodecTiming
from stentor.models.cosyvoice3.codec_flow import PAST, STEPS, Flow, KeptKeys
from stentor.models.cosyvoice3.codec_source import FRAME
from stentor.models.cosyvoice3.codec_vocoder import DELAY, DRAIN, Vocoder
from stentor.models.cosyvoice3.config import MAX_PROMPT, MELS, SPEAKER, Config
from stentor.models.weights import meta_init

HOP = 2 * FRAME  # samples of a code
DELAY_FRAMES = -(-DELAY // HOP)  # codes by which audio is late, and
LATE = DELAY_FRAMES * HOP - DELAY  # samples of the call before that this takes
MOST_CELLS = 2  # of a row in a call: attention reads what is kept once for both
WHOLES = (75, 100, 125, 150, 175, 200, 250, 300, 350, 400, 500, 600, 750, 1000)
"""Codes of whole utterances, their prompts included, for which there are captured calls."""


class CosyVoice3Codec(nn.Module):
    """Parameters start on the meta device in float32. A stream's prompt (`conditions`) lies in its state."""

    def __init__(self, c: Config, window: int = 0) -> None:
        """window: cells of a stream that are kept, the prompt's included. 0: streams are whole utterances."""
        super().__init__()
        self.config = flow = c.flow
        self.timing = CodecTiming(
            flow.cell, whole=True, wholes=WHOLES, chunks=False, batch_invariant=False
        )
        if window:
            ahead = (flow.look, DELAY_FRAMES)
            self.timing = CodecTiming(
                flow.cell,
                *ahead,
                True,
                WHOLES,
                window=window,
                chunk_pages=MOST_CELLS,
                batch_invariant=False,
            )
        with meta_init():
            self.flow = Flow(c.flow)
            self.vocoder = Vocoder(c.vocoder)
        self.columns: dict[str, Column] = {}
        self.pages: Mapping[str, Column] = NO_PAGES

    def process_weights_after_loading(
        self, noise: tuple[Tensor, Tensor], flow_dtype: torch.dtype, vocoder_dtype: torch.dtype
    ) -> None:
        """noise: the flow's and the source's (codec_noise.py)."""
        self.flow.process_weights_after_loading(noise[0], flow_dtype)
        self.vocoder.process_weights_after_loading(noise[1], vocoder_dtype)
        c = self.config
        self.columns = {
            "prompt_codes": Column((MAX_PROMPT,), torch.int64),
            "prompt_count": Column(dtype=torch.int64),
            "prompt_mel": Column((c.ratio * MAX_PROMPT, MELS)),
            "speaker": Column((SPEAKER,)),
        }
        if self.timing.chunks:
            self.columns |= {
                "past": Column((PAST,), torch.int64),
                "late": Column((LATE,)),
                **{f"flow.{name}": column for name, column in self.flow.columns().items()},
                **{f"vocoder.{name}": column for name, column in self.vocoder.columns.items()},
            }
            self.pages = {
                "keys": Column(
                    (STEPS, c.depth, 2, 2, c.heads, c.ratio * c.cell, c.head_dim), flow_dtype
                )
            }

    def decode(self, frames: Tensor, state: State, call: CodecCall) -> tuple[Tensor, State]:
        """n cells: frames [B, 25 n + 3, 1] -> samples [B, (25 n + 3) * 960], 3 codes late, and next state.

        Rows begin at a multiple of 25, counted from the prompt's first code. Whole utterances: `_whole`.
        """
        if call.whole:
            return self._whole(frames, state, call), state
        c = self.config
        prompt = state["prompt_count"]
        first = call.start + prompt
        end = call.end + prompt
        codes = self._codes(frames, first, state)
        mu = self.flow.means(torch.cat((state["past"], codes), dim=1), first, end)
        given = frames.shape[1] - c.look
        count = (c.ratio * (end - first)).clamp(0, c.ratio * given)
        where = c.ratio * first
        keys = KeptKeys(
            call.pages.pool["keys"], call.pages.table, call.pages.filled, count, given // c.cell
        )
        cond = self._prompt_mel(where, mu.shape[1], state)
        mel, flow = self.flow.solve(
            mu, cond, self._speaker(state), where, keys, _part(state, "flow.")
        )
        new = {**state, "past": codes[:, given - PAST : given]} | {
            f"flow.{name}": v for name, v in flow.items()
        }
        return self._heard(mel, new, call)

    def _heard(self, mel: Tensor, state: State, call: CodecCall) -> tuple[Tensor, State]:
        """mel [B, 50 n, 80] of n cells -> samples [B, (25 n + 3) * 960], 3 codes late, and next state.

        What a last cell owes comes out of frames of silence behind it. Other cells are given it for nothing.
        """
        ratio = self.config.ratio
        end = FRAME * mel.shape[1]
        drained = F.pad(mel, (0, 0, 0, DRAIN))
        ends = ratio * call.end
        own = _part(state, "vocoder.")
        samples, new = self.vocoder(drained, ratio * call.start, ends, own, ahead=DRAIN)
        joined = torch.cat((state["late"], samples[:, : end + DELAY]), dim=1)
        late = {"late": samples[:, end - LATE : end]}
        return joined, {**state, **late, **{f"vocoder.{name}": v for name, v in new.items()}}

    def _whole(self, frames: Tensor, state: State, call: CodecCall) -> Tensor:
        """Whole utterances, prompts included, in which every frame sees all others: another result than of cells.

        frames [B, T, 1] from the prompt's first code on (call.start = -P) -> samples [B, T * 960]. The state has only
        what the prompt put there.
        """
        c = self.config
        prompt = state["prompt_count"]
        zero = torch.zeros_like(prompt)
        end = call.end + prompt
        codes = F.pad(self._codes(frames, zero, state), (PAST, c.look))
        mu = self.flow.means(codes, zero, end)
        cond = self._prompt_mel(zero, mu.shape[1], state)
        mel = self.flow.whole(mu, cond, self._speaker(state), c.ratio * end)
        at = c.ratio * prompt[:, None] + torch.arange(mel.shape[1], device=mel.device)
        heard = mel.gather(1, at.clamp_max(mel.shape[1] - 1)[..., None].expand_as(mel))
        samples = self.vocoder.whole(heard, c.ratio * call.end)
        back = torch.arange(samples.shape[1], device=mel.device) - HOP * prompt[:, None]
        return samples.gather(1, back.clamp_min(0))

    def _codes(self, frames: Tensor, first: Tensor, state: State) -> Tensor:
        """[B, n] codes from `first` [B] on, counted from the prompt's first: the prompt's, then those of frames."""
        at = first[:, None] + torch.arange(frames.shape[1], device=frames.device)
        prompt = state["prompt_codes"].gather(1, at.clamp(0, MAX_PROMPT - 1))
        return torch.where(at < state["prompt_count"][:, None], prompt, frames[..., 0])

    def _prompt_mel(self, first: Tensor, count: int, state: State) -> Tensor:
        """The prompt's mel frames from `first` [B] on, [B, count, 80]. Zeros follow it."""
        at = first[:, None] + torch.arange(count, device=first.device)
        mel = state["prompt_mel"]
        given = mel.gather(1, at.clamp(0, mel.shape[1] - 1)[..., None].expand(-1, -1, MELS))
        return given * (at < self.config.ratio * state["prompt_count"][:, None])[..., None]

    def _speaker(self, state: State) -> Tensor:
        return self.flow.speaker(state["speaker"])


def _part(state: State, prefix: str) -> State:
    return {
        name.removeprefix(prefix): value for name, value in state.items() if name.startswith(prefix)
    }
