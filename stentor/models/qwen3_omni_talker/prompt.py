"""From a request to the rows of its prompt: a user turn, the role, the codec prefix with the voice,
the first token.

All text after the first token goes to later steps, one token each, whether it is known or not (live
text).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from stentor.errors import InvalidRequest
from stentor.models.base import LiveText, Prompt, Voice, VoiceSource
from stentor.models.byte_bpe import settled
from stentor.models.frame_prompt import LiveColumn, frame_prompt
from stentor.models.info import SpeechRequest
from stentor.models.qwen3_omni_talker.config import Config
from stentor.models.qwen3_omni_talker.tokenizer import ROLE, Tokenize, user_turn

NONE = -1
ASKED = "Please read the following text out loud."
"""The user's turn of requests without instructions. It does not repeat the text, which may come
later."""


class PromptBuilder:
    """Requests to prompts for one checkpoint. Host only, any thread."""

    def __init__(self, c: Config, tokenize: Tokenize, max_model_len: int) -> None:
        self._c = c
        self._tokenize = tokenize
        self._max_model_len = max_model_len
        self._role = tokenize(ROLE)

    def references(self, request: SpeechRequest) -> list[VoiceSource]:
        """None: voices are rows of a table."""
        return []

    def build(self, request: SpeechRequest, voices: Sequence[Voice]) -> Prompt:
        """Raises InvalidRequest for what this checkpoint cannot do."""
        i = self._c.ids
        assert request.voice is not None, "the spec has a default voice"
        voice = self._c.speakers[request.voice]
        text = request.text
        rest = ""
        if request.live:
            cut = settled(text) or len(text)
            text, rest = text[:cut], text[cut:]
        # By itself: the thinker makes it token by token after the role, whose newline it cannot
        # join.
        body = self._tokenize(text)
        user = self._tokenize(user_turn(self._user(request)))
        turns = [*user, *self._role]
        texts = [*turns, *[i.tts_pad] * 4, i.tts_bos, body[0]]
        codes = [*[NONE] * len(turns), i.nothink, i.think_bos, i.think_eos, voice, i.pad, i.bos]
        if len(texts) >= self._max_model_len:
            raise InvalidRequest(
                "instructions", f"has {len(user)} tokens, which leave no room for speech"
            )
        rows = {"text": np.array(texts, np.int32), "code": np.array(codes, np.int32)}
        frames = np.zeros((0, self._c.codebooks), np.int32), np.zeros(0, np.int64)
        if request.live:
            trailing = body[1:]
        else:
            trailing = [*body[1:], i.tts_eos]
        prompt = frame_prompt(request, rows, frames, trailing, len(body), self._max_model_len)
        if request.live:
            prompt.live = LiveText("text", LiveColumn(self._tokenize, i.tts_eos, prompt, rest))
        return prompt

    def _user(self, request: SpeechRequest) -> str:
        if request.instructions is None:
            if request.options["empty_user_turn"]:
                return ""
            return ASKED
        if request.options["empty_user_turn"]:
            raise InvalidRequest(
                "empty_user_turn", "cannot stand beside instructions, which are the user's turn"
            )
        return request.instructions
