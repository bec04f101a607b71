"""The family as the engine sees it (models.base.SpeechModel)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from stentor import kernels
from stentor.errors import InvalidRequest
from stentor.layers.types import Column
from stentor.models.base import (
    Emit,
    Encode,
    Hidden,
    KVSpec,
    KVView,
    ModelSpec,
    Option,
    Prompt,
    PromptRows,
    Rows,
    SpeechRequest,
)
from stentor.models.fish_s2.codec import FishCodec
from stentor.models.fish_s2.config import LanguageConfig
from stentor.models.fish_s2.language_model import Language
from stentor.models.fish_s2.prompt import Spoken, batches, build, spoken_words
from stentor.models.fish_s2.tokenizer import Tokens

SAMPLE_RATE = 44_100
REFERENCE_SECONDS = (0.5, 60.0)
MAX_REFERENCES = 8
CHUNK_BYTES = 200  # of text spoken at a time when it has speaker turns, as in the reference's server
ROOM = 2048  # positions that a prompt must leave free, as in the reference
FRAMES = 1024  # default of max_frames for short texts, as in the reference's server
RUN_ON = 128  # frames, besides those below, after which speech has probably run on
FRAMES_PER_BYTE = 6  # of UTF-8 text; slow speech takes about 2.5


def options(c: LanguageConfig) -> dict[str, Option]:
    """Request parameters; defaults of the reference's server."""
    return {
        "temperature": Option(0.8, 0.0, 2.0, float, "randomness of every code; 0 takes the likeliest"),
        "top_p": Option(0.8, 0.0, 1.0, float, "probability mass that codes are drawn from"),
        "top_k": Option(30, 0, c.codes, int, "likeliest codes that are drawn from; 0 means all"),
        "min_frames": Option(0, 0, c.max_model_len, int, "frames made before the model may end"),
        "max_frames": Option(None, 1, c.max_model_len, int, "frames at most; by default from the text's length"),
        "ignore_eos": Option(False, 0, 1, bool, "speak until max_frames"),
    }


def spec(c: LanguageConfig, hop: int, dtype: torch.dtype) -> ModelSpec:
    """Facts for the engine."""
    return ModelSpec(
        family="fish_s2",
        sample_rate=SAMPLE_RATE,
        hop=hop,
        frame=Column((c.books,), torch.int64),
        kv=KVSpec(c.slow.layers, c.slow.kv_heads, c.slow.head_dim, dtype),
        max_model_len=c.max_model_len,
        draws=c.books + 1,
        columns={},
        prompt_rows={"token": Column(dtype=torch.int64)},
        options=options(c),
        stop_keeps_frame=False,
        reference_rate=SAMPLE_RATE,
        reference_seconds=REFERENCE_SECONDS,
        max_references=MAX_REFERENCES,
        takes_instructions=False,
    )


class FishS2:
    """A loaded model: language, codec, tokens."""

    def __init__(self, language: Language, codec: FishCodec, tokens: Tokens, dtype: torch.dtype) -> None:
        self.language, self.codec, self.tokens = language, codec, tokens
        self.spec = spec(language.config, codec.config.hop, dtype)

    def encode(self, wav: Tensor, role: str) -> dict[str, Tensor]:
        """Reference audio [n] at 44.1 kHz -> codes [ceil(n / hop), books]."""
        return {"codes": self.codec.encode(wav)}

    def prompt(self, request: SpeechRequest, encode: Encode) -> Prompt:
        pieces = batches(request.text, CHUNK_BYTES)
        if not spoken_words("".join(pieces)):
            raise InvalidRequest("text", "has nothing to speak: besides [tags] and speaker tags it must have words")
        given = () if request.reference is None else (request.reference, *request.more_references)
        for audio in given:
            if not (audio.text or "").strip():
                raise InvalidRequest("reference", "needs its text: this model clones from audio and transcript")
        references = [Spoken(a.text or "", encode(a.samples, "reference")["codes"]) for a in given]
        return self._piece(pieces, references, (), request.options)

    def _piece(
        self, pieces: Sequence[str], references: Sequence[Spoken], history: Sequence[Spoken], o: Mapping[str, Any]
    ) -> Prompt:
        """The prompt of the first of `pieces`; the others follow, each after what has been spoken."""
        prompt = self.assemble(pieces[0], references, history, o)

        def next_piece(spoken: np.ndarray) -> Prompt | None:
            left = None if o["max_frames"] is None else o["max_frames"] - len(spoken)
            if left == 0:
                return None
            return self._piece(pieces[1:], references, [*history, Spoken(pieces[0], spoken)], {**o, "max_frames": left})

        if len(pieces) > 1:
            prompt.continuation = next_piece
        return prompt

    def assemble(
        self, text: str, references: Sequence[Spoken], history: Sequence[Spoken], o: Mapping[str, Any]
    ) -> Prompt:
        """A prompt for `text` in the voices of `references`, after the turns of `history`; `o` are option values."""
        p = build(self.tokens, self.language.config.books, text, references, history)
        room = self.spec.max_model_len - len(p.token)
        if room < ROOM:
            most = self.spec.max_model_len - ROOM
            raise InvalidRequest("text", f"takes {len(p.token)} tokens with its reference; at most {most} fit")
        guess = max(FRAMES, FRAMES_PER_BYTE * len(text.encode()))
        max_frames = min(o["max_frames"] or guess, room)
        fixed = o["ignore_eos"] or o["temperature"] == 0  # another try would end no sooner
        return Prompt(
            rows={"token": p.token},
            frames=p.frames,
            frame_at=p.frame_at,
            columns={name: o[name] for name in ("temperature", "top_k", "top_p")},
            max_frames=max_frames,
            min_frames=max_frames if o["ignore_eos"] else min(o["min_frames"], max_frames),
            codec_prefix=p.frames[:0],
            runaway_frames=None if fixed else RUN_ON + FRAMES_PER_BYTE * len(text.encode()),
        )

    def embed_prompt(self, p: PromptRows) -> Hidden:
        x = self.language.embeddings(p.rows["token"])
        x = torch.cat((x, x[:1]))  # the last row takes what padding frames write
        x[p.frame_at] = self.language.embed_codes(p.frames)
        return (x[:-1],)

    def embed_frame(self, rows: Rows) -> Hidden:
        return (self.language.embed_codes(rows["prev"]),)

    def backbone(self, x: Hidden, kv: KVView) -> Hidden:
        return (self.language.hidden(x[0], kv),)

    def emit(self, h: Hidden, rows: Rows, u: Tensor) -> Emit:
        if kernels.enabled(kernels.Kernel.FUSED_SAMPLING, h[0]):
            return Emit(*self.language.fused(h[0], rows, u), {})
        code = self.language.first_code(h[0], rows, u[:, :2])
        stop = code == self.language.config.codes
        code = torch.where(stop, 0, code)
        rest = self.language.rest(h[0], code, rows, u[:, 2:])
        return Emit(torch.cat((code[:, None], rest), dim=-1), stop, {})
