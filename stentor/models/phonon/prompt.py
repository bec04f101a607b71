"""A request's voice and pace in a sequence (docs/models/phonon.md)."""

from __future__ import annotations

import numpy as np

from stentor.errors import InvalidRequest
from stentor.models.base import Prompt, Voice, VoiceSource
from stentor.models.calm_prompt import CalmPrompts, VoicePrefix
from stentor.models.calm_text import Prepared
from stentor.models.info import SpeechRequest
from stentor.models.phonon.spec import PACE


class PromptBuilder(CalmPrompts):
    """Requests to prompts for one checkpoint. Host only, any thread."""

    def references(self, request: SpeechRequest) -> list[VoiceSource]:
        """Return no recordings. InvalidRequest for a checkpoint without a voice."""
        if request.voice is None:
            raise InvalidRequest("voice", "is needed: this checkpoint's folder has no voices")
        return []

    def prefix(self, voice: Voice) -> VoicePrefix:
        """Return the latents of the voice."""
        return VoicePrefix([], voice.features["voice"], None)

    def chunk(self, request: SpeechRequest, voice: Voice, text: Prepared) -> Prompt:
        """Return the prompt of one chunk of text, whose last position has the pace."""
        prompt = super().chunk(request, voice, text)
        pace = np.zeros(prompt.length, np.float32)
        pace[-1] = request.options[PACE]
        prompt.rows[PACE] = pace
        prompt.columns[PACE] = request.options[PACE]
        return prompt
