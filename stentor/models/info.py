"""Facts about a model and its requests that need no torch: what the API process of a server knows
of an engine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from stentor.audio import Recording
from stentor.text.front_end import Check, proceed
from stentor.text.marks import NEVER, NO_MARKS, TextMarks

REACH = 4
"""Text positions on either side of a frame's most attended one whose attention is kept, for the
times of words."""
ATTENDED_WIDTH = 2 + 2 * REACH
"""Numbers of a frame: the text position with most attention, and the attention on those around
it."""


@dataclass(frozen=True)
class Option:
    """A request parameter that the family takes. With `default` None the family computes a value
    per request."""

    default: float | int | bool | None
    low: float | int
    high: float | int
    kind: type[Any]  # int, float or bool
    help: str


@dataclass(frozen=True)
class AlignmentHeads:
    """Attention heads that look at the text of the frame that is made: the first `heads` of each of
    `layers`.

    group: query heads that share a key head. scale: of their scores. lag: seconds by which their
    attention passes a word later than the word sounds. window: positions of the text behind and
    ahead of the place of the last frame that all heads of these layers see where a frame is made.
    Its place is then in there, and never before the last. None: they see the whole text.
    """

    layers: tuple[int, ...]
    heads: int
    group: int
    scale: float
    lag: float = 0.0
    window: tuple[int, int] | None = None


BY_DURATIONS = AlignmentHeads(layers=(), heads=0, group=1, scale=1.0)
"""Alignment of a family without steps, which says of each frame for which place of the text it is
made."""


@dataclass(frozen=True, kw_only=True)
class ModelInfo:
    """Facts about a model for its callers. `models.base.ModelSpec` adds what its engine needs."""

    family: str
    sample_rate: int  # Hz of the codec's output
    hop: int  # samples per frame
    options: Mapping[str, Option]
    reference_seconds: tuple[float, float]  # shortest and longest reference accepted
    voices: tuple[str, ...] = ()
    # by voice, such as "British man"
    voice_descriptions: Mapping[str, str] = field(default_factory=dict)
    # speaks where a request names no voice and brings no recording
    default_voice: str | None = None
    languages: tuple[str, ...] = ()  # besides "auto"
    takes_instructions: bool = True
    # instructions may stand beside a prompt or a reference with its text
    instructs_prompt: bool = True
    takes_reference: bool = True
    max_references: int = 1
    takes_prompt: bool = False  # reference= and prompt= together
    live_text: bool = False  # text may arrive while the request runs
    speaker_size: int = 0  # numbers of a speaker embedding given for a reference. 0: takes none
    max_text: int = 10_000  # characters
    marks: TextMarks = NO_MARKS  # inside a text
    unread: str = NEVER  # a pattern of what the family leaves out of a text
    phonemes: bool = False  # it reads `[word](/phonemes/)` in a text, without white space inside
    dashes: bool = False  # it makes no pause at a dash, so text is cut behind it
    split_granularity: str = "auto"  # how text is cut by default (text/sentences.py)
    alignment: AlignmentHeads | None = None  # what says when words are spoken. None: nothing does
    voice_mixes: bool = False  # `first(2)+second(1)` of its voices is a voice
    # speeds at which it speaks by itself. Others are stretched. None: it has one speed
    own_speed: tuple[float, float] | None = None
    # nothing of a piece is heard before it is complete: a stream begins with a short one
    short_start: bool = False


@dataclass(frozen=True, eq=False)
class Adapter:
    """A loaded LoRA adapter. Whoever holds it may use it: its slot is free when nobody does."""

    name: str
    number: int  # of its slot, from 1 on
    identity: bytes
    path: str


@dataclass(frozen=True)
class ReferenceAudio:
    """Validated reference speech, and its transcript if known."""

    recording: Recording
    text: str | None

    @property
    def samples(self) -> np.ndarray:
        """Mono float32 [n], at the rate of its file."""
        return self.recording.samples


@dataclass(frozen=True)
class SpeechRequest:
    """One utterance validated by request.py against a ModelSpec. `options` has a value for every
    family option.

    `check` is called between the parts of long preparation. It raises once the request is
    cancelled.
    """

    text: str
    voice: str | None = None
    language: str = "auto"
    instructions: str | None = None
    reference: ReferenceAudio | None = None
    # beyond the first, where the family takes several
    more_references: tuple[ReferenceAudio, ...] = ()
    prompt: ReferenceAudio | None = None
    # float32 [spec.speaker_size], in place of a reference
    speaker_embedding: np.ndarray | None = None
    live: bool = False  # `text` is only the beginning of the text
    seed: int = 0
    options: Mapping[str, Any] = field(default_factory=dict)
    speed: float = 1.0  # within `own_speed` of the family
    lora: Adapter | None = None  # with which it is spoken
    check: Check = proceed
