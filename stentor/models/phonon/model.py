"""Phonon as a models.base.SpeechModel: pure functions over rows."""

from __future__ import annotations

import torch
from torch import Tensor

from stentor.layers.types import Launch, eager
from stentor.models.base import Hidden, PromptRows, Rows
from stentor.models.calm_codec import Decoder
from stentor.models.calm_model import CalmModel
from stentor.models.phonon.config import PhononConfig
from stentor.models.phonon.language_model import ConditionedLanguageModel
from stentor.models.phonon.prompt import PromptBuilder
from stentor.models.phonon.spec import PACE, make_spec


class Phonon(CalmModel):
    """A loaded checkpoint (implements SpeechModel)."""

    net: ConditionedLanguageModel

    def __init__(
        self,
        c: PhononConfig,
        net: ConditionedLanguageModel,
        decoder: Decoder,
        prompts: PromptBuilder,
    ) -> None:
        spec = make_spec(c, net.dtype, tuple(prompts.voices))
        super().__init__(c, net, decoder, prompts, spec)
        self.audio_bos = prompts.audio_bos

    def encode(self, wav: Tensor, role: str, launch: Launch = eager) -> dict[str, Tensor]:
        """Never called: `takes_reference` is false."""
        raise NotImplementedError("the encoder of recordings was not released")

    def embed_prompt(self, p: PromptRows, rows: Rows) -> Hidden:
        (x,) = super().embed_prompt(p, rows)
        is_audio = (p.rows["token"] == self.audio_bos)[:, None]
        condition = self.net.condition(p.rows[PACE])
        return (torch.where(is_audio, x + condition, x),)

    def embed_frame(self, rows: Rows) -> Hidden:
        (x,) = super().embed_frame(rows)
        return (x + self.net.condition(rows[PACE]),)
