"""A request as a VoxCPM2 sequence (docs/models/voxcpm2.md).

Text is taken as it is but for white space: the reference's optional normaliser (WeText) is not part
of stentor.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from stentor import text as texts
from stentor.errors import CheckpointError, InvalidRequest, too_long
from stentor.models.base import Prompt, Voice, VoiceSource
from stentor.models.info import ReferenceAudio, SpeechRequest
from stentor.models.voxcpm2.config import VoxCPM2Config
from stentor.models.voxcpm2.steps import evaluations
from stentor.models.voxcpm2.tokenizer import AUDIO_START, REFERENCE_END, REFERENCE_START
from stentor.text.front_end import FrontEnd
from stentor.text.marks import TextMarks
from stentor.text.trace import is_sound

VOICES = "voices.safetensors"
PRIME = 3  # patches that set the codec's state before the first generated one
CAP_EXTRA = 10  # further patches after which an utterance of suspect length ends
MIN_LEN = 2  # the reference's default: a stop counts after MIN_LEN + 1 patches

_STYLE = r"\((?:[^()\n]|\([^()\n]{0,100}\)){1,400}"
MARKS = TextMarks(
    lead=rf"\s*{_STYLE}\)\s*", lead_begun=rf"\s*(?:\(|{_STYLE}(?:\([^()\n]{{0,100}})?)?"
)
"""A description of the voice or the style in half-width parentheses, in front of a text."""

ROLES = "reference", "prompt"  # of what is cloned, and of what is continued

Tokenize = Callable[[str], list[int]]


@dataclass
class GivenAudio:
    """The reference's part of the sequence: patches of the isolated reference and of the prompt,
    and the prompt's text.

    id: names both. voices: names of each, with its first patch.
    """

    id: str
    voices: tuple[tuple[str, int], ...]
    reference: np.ndarray  # [R, P, feat], R may be 0
    prompt: np.ndarray  # [M, P, feat], M may be 0
    text: str


class PromptBuilder:
    """Requests to prompts for one checkpoint. Host only, any thread."""

    def __init__(
        self,
        tokenize: Tokenize,
        front_end: FrontEnd,
        patch: int,
        feat: int,
        max_length: int,
        suspect: tuple[float, float] = (6.0, 0.0),
        aligned: bool = False,
        voices: Mapping[str, Voice] | None = None,
    ) -> None:
        """suspect: an utterance of n tokens is of suspect length beyond suspect[0] n + suspect[1]
        patches. aligned: whether prompts carry the places of their words, of which each character
        is then a token.

        voices: named ones, with `patches` as of a reference. The first speaks where none is named.
        """
        self.voices = dict(voices or {})
        self.tokenize = tokenize
        self.front_end = front_end
        self.suspect = suspect
        self.aligned = aligned
        self.empty = np.zeros((0, patch, feat), np.float32)
        self.max_length = max_length

    def references(self, request: SpeechRequest) -> list[VoiceSource]:
        """Recordings to clone and to continue. Raises InvalidRequest for combinations that the
        model cannot take."""
        _, prompt = parts = _given(request)
        if prompt is not None and prompt.text is None:
            raise InvalidRequest(
                "prompt", "needs the text that is spoken in it: Reference(audio, text)"
            )
        if prompt is not None and request.instructions:
            raise InvalidRequest(
                "instructions",
                "cannot be combined with audio that is continued (a reference or prompt with text)",
            )
        return [
            VoiceSource(audio.recording, role)
            for audio, role in zip(parts, ROLES, strict=True)
            if audio is not None
        ]

    def build(self, request: SpeechRequest, voices: Sequence[Voice]) -> Prompt:
        """Raises InvalidRequest for texts and lengths that the model cannot take."""
        parts = self._given(request, voices)
        target = self.front_end(_clean(_with_instructions(request)), request.check)
        if not target.text:
            raise InvalidRequest("text", "has nothing that this model can speak")
        if parts.text:
            transcript = self.front_end(parts.text, request.check).text
        else:
            transcript = ""
        ids, frames, frame_at = self._sequence(parts, transcript + target.text)
        free = self.max_length - len(ids)
        if free < 1:
            raise too_long(len(ids), self.max_length - 1, request.text, len(frames))
        count = len(self.tokenize(target.text))
        suspect = int(count * self.suspect[0] + self.suspect[1])
        cap = suspect + CAP_EXTRA
        options = request.options
        max_frames = min(cap, options["max_frames"], free)
        if options["ignore_eos"]:
            min_frames = max_frames
        else:
            min_frames = options["min_frames"]
        columns: dict[str, Any] = {
            "cfg": options["cfg"],
            "flow_steps": options["flow_steps"],
            "temperature": options["temperature"],
        }
        if len(parts.prompt):
            columns["prev"] = parts.prompt[-1]
        if self.aligned:
            end = len(ids) - 1 - len(parts.prompt)
            columns |= {"text_start": end - count, "text_end": end}
        return Prompt(
            rows={"token": np.asarray(ids, np.int64)},
            frames=frames,
            frame_at=frame_at,
            columns=columns,
            max_frames=max_frames,
            min_frames=min_frames,
            codec_prefix=frames[-PRIME:] if len(parts.prompt) else self.empty,
            voice=parts.id,
            voices=parts.voices,
            num_evals=evaluations(options["flow_steps"]),
            runaway_frames=None if options["ignore_eos"] else suspect,
            words=target.places(is_sound) if self.aligned else (),
        )

    def _given(self, request: SpeechRequest, voices: Sequence[Voice]) -> GivenAudio:
        """The mode, one of four: what is cloned (reference) and what is continued (prompt). Where a
        request has neither, a named voice is cloned."""
        _, prompt = _given(request)
        if not voices and self.voices:
            voices = [self.voices[request.voice or next(iter(self.voices))]]
        patches = [
            self.empty,
            *(voice.features["patches"].astype(np.float32, copy=False) for voice in voices),
        ]
        if prompt is None:
            continued = self.empty
        else:
            continued = patches.pop()
        if prompt is not None:
            text = prompt.text or ""
        else:
            text = ""
        starts = (0, len(patches[-1])) if len(voices) > 1 else (0,)
        spans = tuple((voice.id, start) for voice, start in zip(voices, starts, strict=False))
        return GivenAudio(
            " ".join(voice.id for voice in voices), spans, patches[-1], continued, text
        )

    def _sequence(self, given: GivenAudio, text: str) -> tuple[list[int], np.ndarray, np.ndarray]:
        """Token ids [T] (0 where audio stands), the reference's patches in order [M, P, feat] and
        their positions [M]."""
        ids: list[int] = []
        at: list[int] = []
        if len(given.reference):
            at.extend(range(1, 1 + len(given.reference)))
            ids = [REFERENCE_START, *[0] * len(given.reference), REFERENCE_END]
        ids = [*ids, *self.tokenize(text), AUDIO_START]
        at.extend(range(len(ids), len(ids) + len(given.prompt)))
        ids = [*ids, *[0] * len(given.prompt)]
        if len(given.prompt):
            frames = np.concatenate([given.reference, given.prompt])
        else:
            frames = given.reference
        return ids, frames, np.asarray(at, np.int64)


def front_end_of(c: VoxCPM2Config) -> FrontEnd:
    """The text front end that the checkpoint was trained with. Released ones take text as it is."""
    try:
        return texts.front_end(c.text_frontend)
    except ValueError as e:
        raise CheckpointError(f"config.json: stentor.text_frontend: {e}") from e


def make_prompts(
    c: VoxCPM2Config,
    tokenize: Tokenize,
    front_end: FrontEnd,
    patches: Mapping[str, np.ndarray] | None,
) -> PromptBuilder:
    """The prompts of a checkpoint, with `patches` [R, patch, feat] of the voices that config.json
    names.

    patches: None for random weights, which have no voices.
    """
    voices = patches or {}
    if patches is not None:
        _check_voices(c, voices)
    return PromptBuilder(
        tokenize,
        front_end,
        c.patch,
        c.feat,
        c.max_length,
        (c.patches_per_token, c.patches_around),
        c.alignment is not None,
        {name: Voice(name, {"patches": stored}) for name, stored in voices.items()},
    )


def _check_voices(c: VoxCPM2Config, patches: Mapping[str, np.ndarray]) -> None:
    """CheckpointError names a voice of config.json that is missing, or has another shape."""
    for name in c.voices:
        if name not in patches or patches[name].shape[1:] != (c.patch, c.feat):
            raise CheckpointError(
                f"{VOICES}: {name} must be there with patches [R, {c.patch}, {c.feat}]"
            )


def _given(request: SpeechRequest) -> tuple[ReferenceAudio | None, ReferenceAudio | None]:
    """Audio to clone, and audio to continue: the prompt, or a reference with its text."""
    reference = request.reference
    prompt = request.prompt
    if prompt is None and reference is not None and reference.text is not None:
        return None, reference
    return reference, prompt


def _with_instructions(request: SpeechRequest) -> str:
    """Voice design and style control are a half-width parenthesis in front of the text, nothing
    else."""
    instructions = (request.instructions or "").strip()
    if instructions:
        return f"({instructions}){request.text}"
    return request.text


def _clean(text: str) -> str:
    """White space as the reference's `generate` cleans it."""
    return re.sub(r"\s+", " ", text)
