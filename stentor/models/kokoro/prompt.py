"""A request as a piece for Kokoro: signs, and the style for their number."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from stentor.errors import InvalidRequest, too_long
from stentor.models.base import Prompt, Voice, VoiceSource
from stentor.models.info import SpeechRequest
from stentor.models.kokoro.front_ends import front_end
from stentor.models.kokoro.tokenizer import IDS, MAX_SIGNS, PAD
from stentor.models.kokoro.voices import Voices, language_of
from stentor.text.trace import is_sound

MAX_DURATION = 50 * 2  # frames of one sign at most, at half speed


class PromptBuilder:
    """Requests to prompts for one checkpoint. Host only, any thread."""

    def __init__(self, voices: Voices, default: str) -> None:
        self.voices = voices
        self.default = default

    def references(self, request: SpeechRequest) -> list[VoiceSource]:
        """Return none: the family takes no recordings."""
        return []

    def build(self, request: SpeechRequest, voices: Sequence[Voice]) -> Prompt:
        """Raises InvalidRequest for texts that the model cannot read."""
        voice = request.voice or self.default
        if request.language == "auto":
            language = language_of(voice)
        else:
            language = request.language
        signs = front_end(language)(request.text, request.check).only(IDS.__contains__)
        if not any(is_sound(sign) for sign in signs.text):
            raise InvalidRequest(
                "text", f"has nothing that can be read as {language}, the language of {voice}"
            )
        if len(signs.text) > MAX_SIGNS:
            raise too_long(len(signs.text), MAX_SIGNS, request.text)

        tokens = [PAD, *(IDS[sign] for sign in signs.text), PAD]
        return Prompt(
            rows={"token": np.array(tokens, np.int64)},
            frames=np.zeros(0, np.int32),
            frame_at=np.zeros(0, np.int64),
            columns={
                "style": self.voices.style(voice, len(signs.text)),
                "speed": request.speed,
                "text_start": 0,
                "text_end": len(tokens),
            },
            max_frames=MAX_DURATION * len(tokens),
            min_frames=0,
            codec_prefix=np.zeros(0, np.int32),
            words=tuple(_behind_pad(word) for word in signs.places(is_sound)),
        )


def _behind_pad(word: range) -> range:
    """Where a word stands among the tokens."""
    if not word:
        return word
    return range(word.start + 1, word.stop + 1)
