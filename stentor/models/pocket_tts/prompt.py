"""A request as a sequence: a voice, text, and the beginning of audio
(docs/models/pocket_tts.md)."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from stentor.errors import InvalidRequest, too_long
from stentor.models.base import Prompt, Voice, VoiceSource, reference_of
from stentor.models.info import SpeechRequest
from stentor.models.pocket_tts.config import PocketConfig
from stentor.models.pocket_tts.spec import MAX_MODEL_LEN, NEVER
from stentor.models.pocket_tts.text import Prepared, chunks, prepare
from stentor.models.pocket_tts.tokenizer import Tokenizer
from stentor.models.pocket_tts.voice import ending_on_pause

IDS_PER_SECOND = 3
SPARE_SECONDS = 2
FRAMES_PER_SECOND = 12.5
"""Text that a second of speech has at least, and seconds beside it, after which a chunk of text
ends in any case."""


class PromptBuilder:
    """Requests to prompts for one checkpoint. Host only, any thread."""

    def __init__(self, c: PocketConfig, tokens: Tokenizer, voices: Mapping[str, Voice]) -> None:
        self.config = c
        self.tokens = tokens
        self.voices = voices
        self.voice_bos = c.vocab + 1
        self.audio_bos = c.vocab + 2

    def references(self, request: SpeechRequest) -> list[VoiceSource]:
        """The recording whose voice speaks, if there is one. InvalidRequest for a voice beside it,
        or for neither."""
        if request.reference is not None and request.voice is not None:
            raise InvalidRequest("voice", "stands for a reference: give one of them")
        if request.reference is None and request.voice is None:
            raise InvalidRequest("reference", "is needed: this checkpoint has no voices of its own")
        return reference_of(request, ending_on_pause)

    def build(self, request: SpeechRequest, voices: Sequence[Voice]) -> Prompt:
        """The prompt of the first chunk of text, which the others continue. InvalidRequest for what
        does not fit."""
        if voices:
            voice = voices[0]
        else:
            voice = self.voices[request.voice or ""]
        parts = chunks(request.text, self.config.text, self.tokens, request.options["max_tokens"])
        prepared = [p for p in (prepare(part, self.config.text) for part in parts) if p.text]
        if not prepared:
            raise InvalidRequest("text", "has nothing that this model can speak")
        prompts = [self._chunk(request, voice, p) for p in prepared]
        for prompt, following in pairwise(prompts):
            prompt.continuation = _always(following)
        return prompts[0]

    def _chunk(self, request: SpeechRequest, voice: Voice, text: Prepared) -> Prompt:
        """The prompt of one chunk of text."""
        c = self.config
        options = request.options
        prefix = voice.features.get("given")
        latents = voice.features.get("voice", np.zeros((0, self.config.voice)))
        if prefix is None:
            length = len(latents)
        else:
            length = prefix.shape[2]
        text_ids = self.tokens.encode(text.text)
        if prefix is None and c.voice_bos:
            begin = [self.voice_bos]
        else:
            begin = []
        ids = np.array([*begin, *[0] * length, *text_ids, self.audio_bos], np.int64)
        free = MAX_MODEL_LEN - len(ids)
        if free < 1:
            raise too_long(len(ids), MAX_MODEL_LEN - 1, request.text, len(latents))
        limit = math.ceil((len(text_ids) / IDS_PER_SECOND + SPARE_SECONDS) * FRAMES_PER_SECOND)
        max_frames = min(
            options["max_frames"], free, MAX_MODEL_LEN if options["ignore_eos"] else limit
        )
        tail = options["frames_after_eos"] or c.tail or text.tail
        return Prompt(
            rows={"token": ids},
            frames=latents.astype(np.float32, copy=False),
            frame_at=len(begin) + np.arange(len(latents)),
            columns={
                **_noise(options["temperature"], options["noise_clamp"]),
                "end_threshold": options["eos_threshold"],
                "tail": tail,
                "ends_at": NEVER,
                "flow_steps": options.get("flow_steps", 1),
            },
            max_frames=max_frames,
            min_frames=max_frames if options["ignore_eos"] else options["min_frames"],
            codec_prefix=np.zeros((0, c.latent), np.float32),
            num_evals=options.get("flow_steps", 1),
            runaway_frames=None if options["ignore_eos"] else limit,
            voice=voice.id,
            given=prefix,
        )


def _noise(temperature: float, clamp: float | None) -> dict[str, Any]:
    """The spread of the noise, and the share of a normal distribution below what is cut off on
    either side."""
    scale = math.sqrt(temperature)
    if clamp is None or scale == 0:
        below = 0.0
    else:
        below = 0.5 * math.erfc(clamp / scale / math.sqrt(2))
    return {"noise_scale": scale, "noise_below": below}


def _always(prompt: Prompt) -> Callable[[np.ndarray], Prompt]:
    return lambda _: prompt
