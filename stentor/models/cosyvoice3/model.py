"""The family as the engine sees it (models.base.SpeechModel)."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from stentor.models.base import Emit, Encode, Hidden, KVView, Prompt, PromptRows, Rows, SpeechRequest
from stentor.models.cosyvoice3.codec import CosyVoice3Codec
from stentor.models.cosyvoice3.config import Config
from stentor.models.cosyvoice3.language_model import Language
from stentor.models.cosyvoice3.prompt import PromptBuilder, Room
from stentor.models.cosyvoice3.reference_encoder import VoiceEncoder
from stentor.models.cosyvoice3.sampling import sample_ras
from stentor.models.cosyvoice3.spec import MOST_FRAMES, make_spec
from stentor.models.cosyvoice3.tokenizer import Tokens
from stentor.models.cosyvoice3.voice import Voice
from stentor.models.lora import NO_ADAPTERS
from stentor.text.front_end import Check
from stentor.text.marks import has_words

SILENT = (1, 2, 28, 29, 55, 248, 494, 2241, 2242, 2322, 2323)
"""Codes of silence and breath."""
MOST_SILENT = 5
"""Silent codes in a row that are heard."""


class CosyVoice3:
    """A loaded checkpoint (implements models.base.SpeechModel)."""

    adapters = NO_ADAPTERS

    def __init__(
        self,
        c: Config,
        language: Language,
        codec: CosyVoice3Codec,
        tokens: Tokens,
        voices: Mapping[str, Voice],
        encoder: VoiceEncoder,
    ) -> None:
        self.config, self.language, self.codec, self.encoder = c, language, codec, encoder
        self.spec = make_spec(c, tuple(voices), language.table.dtype, encoder.available, codec.timing)
        self._silent = torch.tensor(SILENT, device=language.table.device)
        room = Room(self.spec.max_model_len, MOST_FRAMES, self.spec.codec_prefix)
        self.prompts = PromptBuilder(c.language, tokens, voices, room)

    def encode(self, wav: Tensor, role: str) -> dict[str, Tensor]:
        """Reference audio [n] at 24 kHz -> codes [P], mel [2 P, 80], speaker [192]."""
        return self.encoder(wav)

    def prompt(self, request: SpeechRequest, encode: Encode) -> Prompt:
        return self.prompts.build(request, encode)

    def speakable(self, text: str, check: Check) -> bool:
        return has_words(text, self.spec.marks)

    def embed_prompt(self, p: PromptRows) -> Hidden:
        return (self.language.embed(p.rows["token"]),)

    def embed_frame(self, rows: Rows) -> Hidden:
        return (self.language.embed_codes(rows["prev"][:, 0]),)

    def backbone(self, x: Hidden, kv: KVView) -> Hidden:
        return (self.language.hidden(x[0], kv),)

    def emit(self, h: Hidden, rows: Rows, u: Tensor) -> Emit:
        c = self.config.language
        logits = self.language.logits(h[0])
        step, special = rows["step"][:, None], torch.arange(logits.shape[1], device=u.device)
        early = (special >= c.codes) & (step < rows["min_frames"][:, None])
        early = early | ((special == c.start) & (step < rows["start_from"][:, None]))
        frames, exist = rows.recent(c.ras.window)
        parameters = (rows["temperature"], rows["top_p"], rows["top_k"])
        logits = logits.masked_fill(early, float("-inf"))
        code = sample_ras(logits, u, *parameters, (frames[..., 0], exist), c.ras.window * c.ras.share)
        silent = torch.where((code[:, None] == self._silent).any(-1), rows["silent"] + 1, 0)
        stop = code >= c.codes
        return Emit(torch.where(stop, 0, code)[:, None], stop, {"silent": silent}, silent <= MOST_SILENT)
