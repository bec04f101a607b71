"""The codec: codes to audio through the flow and the vocoder. The flow solves an utterance from its
beginning."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from stentor.layers.types import NO_END, CodecCall, Column, State
from stentor.models.codec_timing import UtteranceTiming
from stentor.models.cosyvoice3.codec_flow import Flow
from stentor.models.cosyvoice3.codec_source import FRAME
from stentor.models.cosyvoice3.codec_vocoder import DELAY, DRAIN, Vocoder
from stentor.models.cosyvoice3.config import MAX_PROMPT, MELS, SPEAKER, Config
from stentor.models.weights import meta_init

HOP = 2 * FRAME  # samples of a code
HOPS = (25, 50, 100)  # codes of a stream's chunks, as in the original
CALL_CODES = 800  # of a call of several rows
LENGTHS = (78, 103, 128, 153, 178, 203, 253, 303, 353, 403, 503, 603, 753, 1003)
"""Codes of captured calls, prompts included. A stream's chunk ends on a multiple of 25 and looks at
three more."""
VOCODER = "vocoder."


class CosyVoice3Codec(nn.Module):
    """Parameters start on the meta device in float32. A stream's prompt (`conditions`) lies in its
    state."""

    def __init__(self, c: Config) -> None:
        super().__init__()
        self.config = c.flow
        self.timing = UtteranceTiming(
            chunk=CALL_CODES, late=DELAY, hops=HOPS, ahead=c.flow.look, lengths=LENGTHS
        )
        assert HOPS[0] == c.flow.chunk
        with meta_init():
            self.flow = Flow(c.flow)
            self.vocoder = Vocoder(c.vocoder)
        self.columns: dict[str, Column] = {}

    def process_weights_after_loading(
        self, noise: tuple[Tensor, Tensor], flow_dtype: torch.dtype, vocoder_dtype: torch.dtype
    ) -> None:
        """noise: the flow's and the source's (codec_noise.py)."""
        self.flow.process_weights_after_loading(noise[0], flow_dtype)
        self.vocoder.process_weights_after_loading(noise[1], vocoder_dtype)
        self.columns = {
            "prompt_codes": Column((MAX_PROMPT,), torch.int64),
            "prompt_count": Column(dtype=torch.int64),
            "prompt_mel": Column((self.config.ratio * MAX_PROMPT, MELS)),
            "speaker": Column((SPEAKER,)),
            **{VOCODER + name: column for name, column in self.vocoder.columns.items()},
        }

    def decode(self, frames: Tensor, state: State, call: CodecCall) -> tuple[Tensor, State]:
        """frames [B, T, 1] from the prompt's first code on -> samples [B, call.decodes * 960 +
        1928], next state.

        The flow solves all T codes: with full attention in rows whose utterance has ended, else in
        chunks. The vocoder goes on from the state with the mel frames of codes `call.start` to
        `call.stop`, and is 1,928 samples late.
        """
        ratio = self.config.ratio
        prompt = state["prompt_count"]
        mel = self._mel(frames, state, call)
        count = ratio * call.decodes
        at = ratio * (prompt + call.start)[:, None] + torch.arange(count, device=mel.device)
        at = at.clamp_max(mel.shape[1] - 1)
        chunk = mel.gather(1, at[..., None].expand(-1, -1, MELS))
        # What a last chunk owes comes out of frames of silence behind it.
        chunk = F.pad(chunk, (0, 0, 0, DRAIN))
        ahead = chunk.shape[1] - ratio * (call.stop - call.start)
        samples, vocoder = self.vocoder(
            chunk, ratio * call.start, ratio * call.end, _vocoder_part(state), ahead
        )
        new = {**state, **{VOCODER + name: value for name, value in vocoder.items()}}
        return samples[:, : call.decodes * HOP + DELAY], new

    def _mel(self, frames: Tensor, state: State, call: CodecCall) -> Tensor:
        """The mel frames of all codes of a call, [B, 2 T, 80]."""
        ratio = self.config.ratio
        end = call.end + state["prompt_count"]
        mu = self.flow.means(self._codes(frames, state), end)
        cond = self._prompt_mel(mu.shape[1], state)
        speaker = self.flow.speaker(state["speaker"])
        exist = (ratio * end).clamp_max(mu.shape[1])
        return self.flow.solve(mu, cond, speaker, exist, call.end < NO_END)

    def _codes(self, frames: Tensor, state: State) -> Tensor:
        """[B, T] codes: the prompt's, then those of frames."""
        at = torch.arange(frames.shape[1], device=frames.device).expand(len(frames), -1)
        prompt = state["prompt_codes"].gather(1, at.clamp_max(MAX_PROMPT - 1))
        return torch.where(at < state["prompt_count"][:, None], prompt, frames[..., 0])

    def _prompt_mel(self, count: int, state: State) -> Tensor:
        """The prompt's mel frames [B, count, 80]. Zeros follow them."""
        mel = state["prompt_mel"][:, :count]
        mel = F.pad(mel, (0, 0, 0, count - mel.shape[1]))
        at = torch.arange(count, device=mel.device)
        exist = at < self.config.ratio * state["prompt_count"][:, None]
        return mel * exist[..., None]


def _vocoder_part(state: State) -> State:
    return {
        name.removeprefix(VOCODER): value
        for name, value in state.items()
        if name.startswith(VOCODER)
    }
