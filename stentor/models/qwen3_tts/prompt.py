"""From a request to the rows of its prompt, for every mode (docs/models/qwen3_tts.md)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

from stentor.audio import digest
from stentor.errors import InvalidRequest, too_long
from stentor.kernels.constants import VECTOR_ID
from stentor.models.base import LiveText, Prompt, Voice, VoiceSource, reference_of
from stentor.models.byte_bpe import settled
from stentor.models.frame_prompt import LiveColumn, frame_prompt
from stentor.models.info import SpeechRequest
from stentor.models.qwen3_tts.config import Config
from stentor.models.qwen3_tts.tokenizer import Tokenizer

NONE = -1
ROLE = 3
TAIL = 5
REFERENCE_TAIL = 2
"""Tokens around the text: `<|im_start|>assistant\\n`, `<|im_end|>\\n<|im_start|>assistant\\n`,
`<|im_end|>\\n`."""


@dataclass
class PromptLayout:
    """Positions of a prompt under construction: a text id, a codec id or a frame at each. Frames
    come last."""

    text: list[int] = field(default_factory=list)
    code: list[int] = field(default_factory=list)

    def add(self, text: Iterable[int], code: int | Sequence[int] = NONE) -> None:
        """Positions with text ids, and one codec id for all of them or one for each."""
        ids = list(text)
        self.text += ids
        self.code += [code] * len(ids) if isinstance(code, int) else list(code)

    def add_frames(self, text: Sequence[int]) -> None:
        """One frame of the reference at each of these text ids' positions. Nothing follows."""
        self.text += text

    def codes(self) -> np.ndarray:
        """The codec id at each position, or NONE."""
        # of a list of hundreds, numpy looks at each
        codes = np.full(len(self.text), NONE, np.int32)
        codes[: len(self.code)] = self.code
        return codes

    def frame_at(self) -> np.ndarray:
        """The positions of frames."""
        return np.arange(len(self.code), len(self.text))


class PromptBuilder:
    """Requests to prompts for one checkpoint. Host only, any thread."""

    def __init__(self, c: Config, tokenizer: Tokenizer, max_model_len: int) -> None:
        self._c = c
        self._tokenizer = tokenizer
        self._max_model_len = max_model_len

    def references(self, request: SpeechRequest) -> list[VoiceSource]:
        """The recording whose voice speaks. InvalidRequest if there is none and this checkpoint
        needs one."""
        if (
            self._c.kind == "base"
            and request.speaker_embedding is None
            and request.reference is None
        ):
            message = (
                "this model speaks with the voice of a reference: give one, or a speaker_embedding"
            )
            raise InvalidRequest("reference", message)
        return reference_of(request)

    def build(self, request: SpeechRequest, voices: Sequence[Voice]) -> Prompt:
        """Raises InvalidRequest for what this checkpoint cannot do."""
        c = self._c
        options = request.options
        voice = request.voice
        whole_text = self._whole(request)
        if request.reference is not None and request.reference.text:
            transcript = request.reference.text
        else:
            transcript = ""
        cloned = bool(voices) and bool(transcript.strip()) and not options["x_vector_only"]
        text = request.text
        rest = ""
        if request.live:
            if cloned:
                raise InvalidRequest(
                    "live",
                    "a voice to be cloned with its words needs the whole text: x_vector_only",
                )
            cut = settled(text) or len(text)
            text, rest = text[:cut], text[cut:]
        ids = self._tokenizer.encode(
            f"<|im_start|>assistant\n{text}<|im_end|>\n<|im_start|>assistant\n"
        )
        body = ids[ROLE:-TAIL]
        layout = PromptLayout()
        if request.instructions:
            layout.add(
                self._tokenizer.encode(f"<|im_start|>user\n{request.instructions}<|im_end|>\n")
            )
        layout.add(ids[:ROLE])
        self._prefix(layout, self._language(request, voice), voice)
        codes = np.zeros((0, c.codebooks), np.int32)
        if cloned:
            codes = voices[0].features["codes"]
            transcript_ids = voices[0].once(transcript, lambda: self._transcript_ids(transcript))
            trailing = self._clone(layout, [*transcript_ids, *body], len(codes), whole_text)
        else:
            trailing = self._speak(layout, body, whole_text)
        if request.live:
            trailing.pop()  # the text's end
        prompt = self._finish(request, layout, trailing, codes, len(body))
        if self._c.kind == "base":
            embedding = request.speaker_embedding
            if embedding is None:
                speaker = voices[0]
            else:
                speaker = Voice(digest(embedding), {"speaker": embedding})
            prompt.voice = speaker.id
            prompt.columns["speaker"] = speaker.features["speaker"]
        if request.live:
            prompt.live = LiveText(
                "text", LiveColumn(self._tokenizer.encode, c.ids.tts_eos, prompt, rest)
            )
        return prompt

    def _whole(self, request: SpeechRequest) -> bool:
        """Whether the prompt holds the whole text."""
        requested = request.options["non_streaming_mode"]
        if request.live and requested:
            raise InvalidRequest(
                "live", "text that goes on cannot stand in the prompt: non_streaming_mode"
            )
        if request.live:
            return False
        if requested is None:
            return self._c.kind != "base"
        return bool(requested)

    def _transcript_ids(self, text: str) -> list[int]:
        """Token ids of a reference's transcript."""
        return self._tokenizer.encode(f"<|im_start|>assistant\n{text}<|im_end|>\n")[
            ROLE:-REFERENCE_TAIL
        ]

    def _language(self, request: SpeechRequest, voice: str | None) -> int | None:
        """The codec id of the language or of the voice's dialect, None for auto."""
        c = self._c
        language = request.language
        if voice is not None and language in ("auto", "chinese") and voice in c.dialects:
            return c.languages[c.dialects[voice]]
        if language == "auto":
            return None
        return c.languages[language]

    def _prefix(self, layout: PromptLayout, language: int | None, voice: str | None) -> None:
        """The codec prefix: language, speaker, pad. Its last row carries the text BOS, the others
        PAD."""
        i = self._c.ids
        codes = [i.nothink, i.think_bos, i.think_eos]
        if language is not None:
            codes = [self._c.think, i.think_bos, language, i.think_eos]
        if voice is not None:
            codes.append(self._c.speakers[voice])
        if self._c.kind == "base":
            codes.append(VECTOR_ID)
        codes.append(i.pad)
        layout.add([i.tts_pad] * (len(codes) - 1) + [i.tts_bos], codes)

    def _speak(self, layout: PromptLayout, body: list[int], whole_text: bool) -> list[int]:
        """Text for a voice without reference codes. Returns the text that later steps take."""
        i = self._c.ids
        if whole_text:
            layout.add([*body, i.tts_eos], i.pad)
            layout.add([i.tts_pad], i.bos)
            return []
        layout.add(body[:1], i.bos)
        return [*body[1:], i.tts_eos]

    def _clone(
        self, layout: PromptLayout, text: list[int], frames: int, whole_text: bool
    ) -> list[int]:
        """In-context cloning: the reference's text and codes before the text. Returns the text of
        later steps."""
        i = self._c.ids
        text = [*text, i.tts_eos]
        if whole_text:
            layout.add(text, i.pad)
            layout.add([i.tts_pad], i.bos)
            layout.add_frames([i.tts_pad] * frames)
            return []
        beside = text[: frames + 1] + [i.tts_pad] * (frames + 1 - len(text))
        layout.add(beside[:1], i.bos)
        layout.add_frames(beside[1:])
        return text[frames + 1 :]

    def _finish(
        self,
        request: SpeechRequest,
        layout: PromptLayout,
        trailing: list[int],
        codes: np.ndarray,
        text_tokens: int,
    ) -> Prompt:
        length = len(layout.text)
        if length >= self._max_model_len:
            raise too_long(length, self._max_model_len - 1, request.text, len(codes))
        rows = {"text": np.array(layout.text, np.int32), "code": layout.codes()}
        frames = codes, layout.frame_at()
        return frame_prompt(request, rows, frames, trailing, text_tokens, self._max_model_len)
