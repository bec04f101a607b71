"""The codec: codes to audio through the flow and the vocoder, a whole utterance at once."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from stentor.layers.types import NO_PAGES, CodecCall, Column, State
from stentor.models.cosyvoice3.codec_flow import PAST, Flow
from stentor.models.cosyvoice3.codec_source import FRAME
from stentor.models.cosyvoice3.codec_vocoder import Vocoder
from stentor.models.cosyvoice3.config import MAX_PROMPT, MELS, SPEAKER, Config
from stentor.models.weights import meta_init

HOP = 2 * FRAME  # samples of a code


class CosyVoice3Codec(nn.Module):
    """Parameters start on the meta device in float32. A stream's prompt (`conditions`) lies in its state."""

    pages = NO_PAGES

    def __init__(self, c: Config) -> None:
        super().__init__()
        self.config = c.flow
        with meta_init():
            self.flow, self.vocoder = Flow(c.flow), Vocoder(c.vocoder)
        self.columns: dict[str, Column] = {}

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

    def decode(self, frames: Tensor, state: State, call: CodecCall) -> tuple[Tensor, State]:
        """Whole utterances, prompts included, in which every frame sees all others.

        frames [B, T, 1] from the prompt's first code on (call.start = -P) -> samples [B, T * 960]. The state has only
        what the prompt put there, and stays.
        """
        c, prompt = self.config, state["prompt_count"]
        zero, end = torch.zeros_like(prompt), call.end + prompt
        codes = F.pad(self._codes(frames, zero, state), (PAST, c.look))
        mu = self.flow.means(codes, zero, end)
        cond = self._prompt_mel(zero, mu.shape[1], state)
        mel = self.flow.whole(mu, cond, self._speaker(state), c.ratio * end)
        at = c.ratio * prompt[:, None] + torch.arange(mel.shape[1], device=mel.device)
        heard = mel.gather(1, at.clamp_max(mel.shape[1] - 1)[..., None].expand_as(mel))
        samples = self.vocoder.whole(heard, c.ratio * call.end)
        back = torch.arange(samples.shape[1], device=mel.device) - HOP * prompt[:, None]
        return samples.gather(1, back.clamp_min(0)), state

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
