"""A request's voice as the first positions of a sequence (docs/models/pocket_tts.md)."""

from __future__ import annotations

import numpy as np

from stentor.errors import InvalidRequest
from stentor.models.base import Voice, VoiceSource, reference_of
from stentor.models.calm_prompt import CalmPrompts, VoicePrefix
from stentor.models.info import SpeechRequest
from stentor.models.pocket_tts.voice import ending_on_pause


class PromptBuilder(CalmPrompts):
    """Requests to prompts for one checkpoint. Host only, any thread."""

    def references(self, request: SpeechRequest) -> list[VoiceSource]:
        """The recording whose voice speaks, if there is one. InvalidRequest for a voice beside it,
        or for neither."""
        if request.reference is not None and request.voice is not None:
            raise InvalidRequest("voice", "stands for a reference: give one of them")
        if request.reference is None and request.voice is None:
            raise InvalidRequest("reference", "is needed: this checkpoint has no voices of its own")
        return reference_of(request, ending_on_pause)

    def prefix(self, voice: Voice) -> VoicePrefix:
        """Return keys and values of a voice that comes with the checkpoint, and latents of a
        recording's."""
        keys_values = voice.features.get("given")
        if keys_values is not None:
            no_latents = np.zeros((0, self.config.voice))
            return VoicePrefix([], no_latents, keys_values)
        ids = [self.voice_bos] if self.config.voice_bos else []
        return VoicePrefix(ids, voice.features["voice"], None)
