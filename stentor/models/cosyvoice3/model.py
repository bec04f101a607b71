"""The family as the engine sees it (models.base.SpeechModel)."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from stentor.layers.types import Launch, eager
from stentor.models.base import Emit, Encode, Hidden, KVView, Prompt, PromptRows, Rows, SpeechRequest
from stentor.models.cosyvoice3.codec import CosyVoice3Codec
from stentor.models.cosyvoice3.config import MARK, MIX, Config
from stentor.models.cosyvoice3.language_model import Language
from stentor.models.cosyvoice3.live_text import Turn, fed_rows, turn_of
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

    def encode(self, wav: Tensor, role: str, launch: Launch = eager) -> dict[str, Tensor]:
        """Reference audio [n] at 24 kHz -> codes [P], mel [2 P, 80], speaker [192]."""
        return self.encoder(wav)

    def prompt(self, request: SpeechRequest, encode: Encode) -> Prompt:
        return self.prompts.build(request, encode)

    def speakable(self, text: str, check: Check) -> bool:
        return has_words(text, self.spec.marks)

    def embed_prompt(self, p: PromptRows) -> Hidden:
        return (self.language.embed(p.rows["token"]),)

    def embed_frame(self, rows: Rows) -> Hidden:
        if not self.spec.live_text:
            return (self.language.embed_codes(rows["prev"][:, 0]),)
        return (self.language.embed(fed_rows(rows, self.config.language)),)

    def backbone(self, x: Hidden, kv: KVView) -> Hidden:
        return (self.language.hidden(x[0], kv),)

    def emit(self, h: Hidden, rows: Rows, u: Tensor) -> Emit:
        if self.spec.live_text:
            return self._emit_live(h, rows, u, turn_of(rows))
        frames, exist = rows.recent(self.config.language.ras.window)
        code = self._sample(h, rows, u, torch.zeros_like(rows["step"], dtype=torch.bool), (frames[..., 0], exist))
        stop = code >= self.config.language.codes
        silent = self._silent_run(code, rows)
        return Emit(torch.where(stop, 0, code)[:, None], stop, {"silent": silent}, silent <= MOST_SILENT)

    def _emit_live(self, h: Hidden, rows: Rows, u: Tensor, turn: Turn) -> Emit:
        """The same where text may come while a row speaks. Of most rows all is there, and each of their turns draws."""
        c, made = self.config.language, rows["made"]
        code = torch.where(turn.forced, c.fill, self._sample(h, rows, u, turn.asks, (made, made >= 0)))
        special = (code >= c.codes) & turn.draws
        asked, stop = special & turn.asks, special & ~turn.asks
        speaks = turn.draws & ~special
        silent = torch.where(speaks, self._silent_run(code, rows), rows["silent"])
        latest = torch.where(asked, c.fill, code)[:, None]
        columns = {
            "silent": silent,
            "taken": turn.taken,
            "asks": turn.asks.long(),
            "made": torch.where(turn.draws[:, None], torch.cat((latest, made[:, :-1]), dim=1), made),
            "made_count": rows["made_count"] + turn.draws,
            "next_fill": torch.where(asked, rows["made_count"] + MIX[1] + 1, rows["next_fill"]),
        }
        frame = torch.where(speaks, code, torch.where(stop, 0, MARK + turn.taken))
        frame = torch.where(turn.draws & (code < 0), code, frame)
        return Emit(frame[:, None], stop, columns, speaks & (silent <= MOST_SILENT))

    def _sample(self, h: Hidden, rows: Rows, u: Tensor, asks: Tensor, recent: tuple[Tensor, Tensor]) -> Tensor:
        """A code [B], where `asks` [B] one that the original draws before the text has ended."""
        c = self.config.language
        logits = self.language.logits(h[0])
        step, ids = rows["step"][:, None], torch.arange(logits.shape[1], device=u.device)
        early = (ids >= c.codes) & (step < rows["min_frames"][:, None]) & ~asks[:, None]
        early = early | ((ids == c.start) & ((step < rows["start_from"][:, None]) | asks[:, None]))
        logits = logits.masked_fill(early, float("-inf"))
        parameters = (rows["temperature"], rows["top_p"], rows["top_k"])
        return sample_ras(logits, u, *parameters, recent, c.ras.window * c.ras.share)

    def _silent_run(self, code: Tensor, rows: Rows) -> Tensor:
        """Silent codes in a row, up to this one."""
        return torch.where((code[:, None] == self._silent).any(-1), rows["silent"] + 1, 0)
