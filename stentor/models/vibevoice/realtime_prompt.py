"""A request as a sequence: the voice's keys and values, then the first window of text
(docs/models/vibevoice.md)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from stentor.errors import InvalidRequest, too_long
from stentor.models.base import LiveText, Prompt, Voice, VoiceSource
from stentor.models.info import SpeechRequest
from stentor.models.vibevoice.config import RealtimeConfig
from stentor.models.vibevoice.realtime_windows import (
    FEED,
    WINDOW_TOKENS,
    LiveFeed,
    plan_text,
    steps_until,
)
from stentor.text.marks import has_words

QUOTES = str.maketrans({"\u2019": "'", "\u201c": '"', "\u201d": '"'})
"""Quotation marks that the authors' demos replace."""
SUSPECT_PER_TOKEN = 5
SUSPECT_MORE = 20
"""A result of so many latents for each token, and more, has probably run on."""


class PromptBuilder:
    """Requests to prompts for one checkpoint. Host only, any thread."""

    def __init__(
        self, c: RealtimeConfig, encode: Callable[[str], list[int]], voices: Mapping[str, Voice]
    ) -> None:
        self.config = c
        self.encode = encode
        self.voices = voices

    def references(self, request: SpeechRequest) -> list[VoiceSource]:
        """None: the encoder of recordings was not released."""
        return []

    def build(self, request: SpeechRequest, voices: Sequence[Voice]) -> Prompt:
        """Raises InvalidRequest for what does not fit."""
        if request.voice is None:
            raise InvalidRequest(
                "voice", "is needed: put the authors' files NAME.pt into voices/ of the checkpoint"
            )
        voice = self.voices[request.voice]
        text = request.text.translate(QUOTES)
        if request.live:
            return self._live(request, voice, text)
        text = text.strip()
        if not has_words(text):
            raise InvalidRequest("text", "has nothing that this model can speak")
        ids = self.encode(text + "\n")
        first = ids[:WINDOW_TOKENS]
        values = plan_text(ids, len(first))
        if len(values) > FEED:
            raise too_long(len(values), FEED, request.text)
        prompt = self._prompt(request, voice, first)
        columns = {"feed": np.array(values, np.int64), "streamed": len(ids) - len(first)}
        prompt.columns |= columns
        suspect = len(ids) * SUSPECT_PER_TOKEN + SUSPECT_MORE
        options = request.options
        if options["ignore_eos"]:
            latents = options["max_frames"]
            min_latents = latents
        else:
            latents = min(options["max_frames"], 2 * suspect)
            min_latents = options["min_frames"]
            prompt.runaway_frames = suspect
        prompt.max_frames = min(prompt.max_frames, steps_until(values, latents))
        if min_latents:
            prompt.min_frames = steps_until(values, min_latents)
        prompt.streamed_text_tokens = len(ids) - len(first)
        return prompt

    def _live(self, request: SpeechRequest, voice: Voice, text: str) -> Prompt:
        """A prompt whose text arrives."""
        if not has_words(text):
            raise InvalidRequest("text", "has nothing that this model can speak")
        feed = LiveFeed(self.encode, text)
        prompt = self._prompt(request, voice, feed.first)
        prompt.columns |= {
            "opens": int(feed.opens),
            "feed": feed("", False),
            "most": request.options["max_frames"],
        }
        prompt.live = LiveText("feed", lambda text, last: feed(text.translate(QUOTES), last))
        return prompt

    def _prompt(self, request: SpeechRequest, voice: Voice, ids: list[int]) -> Prompt:
        """The prompt of a voice and the first tokens."""
        upper = voice.features["upper"]
        lower = voice.features["lower"]
        count = upper.shape[2]
        length = count + len(ids)
        free = self.config.positions - length
        if free < 1:
            raise too_long(length, self.config.positions - 1, request.text)
        options = request.options
        places = lower.shape[2] + np.arange(-count, len(ids))
        columns: dict[str, Any] = {
            "text_places": lower.shape[2] + len(ids),
            "cfg": options["cfg"],
            "flow_steps": options["flow_steps"],
            "noise_scale": options["temperature"],
            "eos_threshold": options["eos_threshold"],
            "without_text": voice.features["hidden"],
        }
        return Prompt(
            rows={
                "token": np.array([0] * count + ids, np.int64),
                "place": np.maximum(places, 0).astype(np.int64),
            },
            frames=np.zeros((len(ids), 1), np.float32),
            frame_at=np.arange(count, length),
            columns=columns,
            max_frames=min(FEED, free + 1),
            min_frames=0,
            codec_prefix=np.zeros((0, self.config.head.latent), np.float32),
            voice=voice.id,
            num_evals=options["flow_steps"],
            given_kv=upper,
            given_by_frame={"text": lower, "negative": voice.features["negative"]},
        )
