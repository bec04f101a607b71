"""The family as the engine sees it (models.base.SpeechModel)."""

from __future__ import annotations

import torch
from torch import Tensor

from stentor.layers.types import Launch, eager
from stentor.models.base import Emit, Hidden, KVView, Prompted, PromptRows, Rows
from stentor.models.fish_s2.codec import FishCodec
from stentor.models.fish_s2.language_model import Language
from stentor.models.fish_s2.prompt import PromptBuilder
from stentor.models.fish_s2.spec import make_spec
from stentor.models.fish_s2.tokenizer import Tokens
from stentor.models.lora import AdapterSlots


class FishS2(Prompted):
    """A loaded checkpoint (implements models.base.SpeechModel)."""

    def __init__(
        self, language: Language, codec: FishCodec, tokens: Tokens, adapters: AdapterSlots
    ) -> None:
        self.language = language
        self.codec = codec
        self.adapters = adapters
        dtype = language.embeddings.weight.dtype
        self.spec = make_spec(language.config, codec.config.hop, dtype, adapters.columns)
        self.prompts = PromptBuilder(tokens, language.config.books, self.spec.max_model_len)

    def encode(self, wav: Tensor, role: str, launch: Launch = eager) -> dict[str, Tensor]:
        """Reference audio [n] at 44.1 kHz -> codes [ceil(n / hop), books]."""
        return {"codes": self.codec.encode(wav, launch)}

    def embed_prompt(self, p: PromptRows, rows: Rows) -> Hidden:
        x = self.language.embeddings(p.rows["token"])
        x = torch.cat((x, x[:1]))  # the last row takes what padding frames write
        x[p.frame_at] = self.language.embed_codes(p.frames)
        return (x[:-1],)

    def embed_frame(self, rows: Rows) -> Hidden:
        return (self.language.embed_codes(rows["prev"]),)

    def backbone(self, x: Hidden, kv: KVView) -> Hidden:
        return (self.language.hidden(x[0], kv),)

    def emit(self, h: Hidden, rows: Rows, u: Tensor) -> Emit:
        frame, stop = self.language.frame(h[0], rows, u)
        return Emit(frame, stop, {})
