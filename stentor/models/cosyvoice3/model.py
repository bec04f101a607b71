"""The family as the engine sees it (models.base.SpeechModel)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from stentor import kernels
from stentor.layers.types import Launch, eager
from stentor.models.base import Emit, Hidden, KVView, Prompted, PromptRows, Rows
from stentor.models.cosyvoice3.codec import CosyVoice3Codec
from stentor.models.cosyvoice3.config import Config
from stentor.models.cosyvoice3.language_model import Language, sample_ras
from stentor.models.cosyvoice3.live_text import LiveStep, fed_rows
from stentor.models.cosyvoice3.prompt import PromptBuilder, Room
from stentor.models.cosyvoice3.reference_encoder import VoiceEncoder
from stentor.models.cosyvoice3.spec import MAX_CHUNK_FRAMES, make_spec
from stentor.models.cosyvoice3.tokenizer import Tokens
from stentor.models.cosyvoice3.voice import StoredVoice
from stentor.models.lora import NO_ADAPTERS

if TYPE_CHECKING:
    from stentor.models.cosyvoice3.live_text_kernels import FusedStep

SILENT = (1, 2, 28, 29, 55, 248, 494, 2241, 2242, 2322, 2323)
"""Codes of silence and breath."""


class CosyVoice3(Prompted):
    """A loaded checkpoint (implements models.base.SpeechModel)."""

    adapters = NO_ADAPTERS

    def __init__(
        self,
        c: Config,
        language: Language,
        codec: CosyVoice3Codec,
        tokens: Tokens,
        voices: Mapping[str, StoredVoice],
        encoder: VoiceEncoder,
    ) -> None:
        self.config = c
        self.language = language
        self.codec = codec
        self.encoder = encoder
        self.spec = make_spec(
            c, tuple(voices), language.table.dtype, encoder.available, codec.timing
        )
        self._silence = torch.tensor(SILENT, device=language.table.device)
        room = Room(self.spec.max_model_len, MAX_CHUNK_FRAMES, self.spec.codec_prefix)
        self.prompts = PromptBuilder(c.language, tokens, voices, room)

    def encode(self, wav: Tensor, role: str, launch: Launch = eager) -> dict[str, Tensor]:
        """Reference audio [n] at 24 kHz -> codes [P], mel [2 P, 80], speaker [192]."""
        return self.encoder(wav)

    def embed_prompt(self, p: PromptRows, rows: Rows) -> Hidden:
        return (self.language.embed(p.rows["token"]),)

    def embed_frame(self, rows: Rows) -> Hidden:
        return (self.language.embed(fed_rows(rows, self.config.language)),)

    def backbone(self, x: Hidden, kv: KVView) -> Hidden:
        return (self.language.hidden(x[0], kv),)

    def emit(self, h: Hidden, rows: Rows, u: Tensor) -> Emit:
        logits = self.language.logits(h[0])
        step = self._live_step(rows)
        recent = rows["made"]
        return step.emitted(self._sample(step.masked(logits), rows, u, (recent, recent >= 0)))

    def _live_step(self, rows: Rows) -> LiveStep | FusedStep:
        if not kernels.slot_kernels_enabled(self._silence.device):
            return LiveStep(rows, self._silence, self.config.language)
        from stentor.models.cosyvoice3.live_text_kernels import FusedStep

        return FusedStep(rows, self._silence, self.config.language)

    def _sample(
        self, logits: Tensor, rows: Rows, u: Tensor, recent: tuple[Tensor, Tensor]
    ) -> Tensor:
        """A code [B]."""
        ras = self.config.language.ras
        return sample_ras(
            logits,
            u,
            rows["temperature"],
            rows["top_p"],
            rows["top_k"],
            recent,
            ras.window * ras.share,
        )
