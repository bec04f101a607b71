"""A request as sequences, one for each chunk of its text: a voice, text, and the beginning of
audio."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from stentor.errors import InvalidRequest, too_long
from stentor.models.base import Prompt, Voice, VoiceSource
from stentor.models.calm_config import FRAMES_PER_SECOND, CalmConfig
from stentor.models.calm_spec import MAX_MODEL_LEN, NEVER
from stentor.models.calm_text import Prepared, chunks, prepare
from stentor.models.calm_tokenizer import Tokenizer
from stentor.models.info import SpeechRequest

IDS_PER_SECOND = 3
SPARE_SECONDS = 2
"""Text that a second of speech has at least, and seconds beside it, after which a chunk of text
ends in any case."""


class VoicePrefix(NamedTuple):
    """First positions of a prompt: the ids in front of the voice, then its latents [n, voice] or
    its keys and values."""

    ids: list[int]
    latents: np.ndarray
    keys_values: np.ndarray | None

    @property
    def length(self) -> int:
        """Positions of the voice itself."""
        if self.keys_values is None:
            return len(self.latents)
        return int(self.keys_values.shape[2])


class CalmPrompts:
    """Requests to prompts for one checkpoint. Host only, any thread."""

    def __init__(self, c: CalmConfig, tokens: Tokenizer, voices: Mapping[str, Voice]) -> None:
        self.config = c
        self.tokens = tokens
        self.voices = voices
        self.voice_bos = c.vocab + 1
        self.audio_bos = c.vocab + 2

    @abstractmethod
    def references(self, request: SpeechRequest) -> list[VoiceSource]:
        """Return the recording whose voice speaks, if there is one."""

    @abstractmethod
    def prefix(self, voice: Voice) -> VoicePrefix:
        """Return what stands before the text."""

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
        prompts = [self.chunk(request, voice, p) for p in prepared]
        for prompt, following in pairwise(prompts):
            prompt.continuation = _always(following)
        return prompts[0]

    def chunk(self, request: SpeechRequest, voice: Voice, text: Prepared) -> Prompt:
        """Return the prompt of one chunk of text. InvalidRequest where it is too long."""
        c = self.config
        options = request.options
        prefix = self.prefix(voice)
        text_ids = self.tokens.encode(text.text)
        ids = np.array(
            [*prefix.ids, *[0] * prefix.length, *text_ids, self.audio_bos],
            np.int64,
        )
        free = MAX_MODEL_LEN - len(ids)
        if free < 1:
            raise too_long(len(ids), MAX_MODEL_LEN - 1, request.text, len(prefix.latents))
        limit = math.ceil((len(text_ids) / IDS_PER_SECOND + SPARE_SECONDS) * FRAMES_PER_SECOND)
        longest = MAX_MODEL_LEN if options["ignore_eos"] else limit
        max_frames = min(options["max_frames"], free, longest)
        tail = options["frames_after_eos"] or c.tail or text.tail
        flow_steps = options.get("flow_steps", 1)
        return Prompt(
            rows={"token": ids},
            frames=prefix.latents.astype(np.float32, copy=False),
            frame_at=len(prefix.ids) + np.arange(len(prefix.latents)),
            columns={
                **_noise(options["temperature"], options["noise_clamp"]),
                "end_threshold": options["eos_threshold"],
                "tail": tail,
                "ends_at": NEVER,
                "flow_steps": flow_steps,
            },
            max_frames=max_frames,
            min_frames=max_frames if options["ignore_eos"] else options["min_frames"],
            codec_prefix=np.zeros((0, c.latent), np.float32),
            num_evals=flow_steps,
            runaway_frames=None if options["ignore_eos"] else limit,
            voice=voice.id,
            given_kv=prefix.keys_values,
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
