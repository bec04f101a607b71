"""State that the pieces of one request share: the voice that is carried over, and the place in the engine's queue."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from stentor.audio import Recording
from stentor.engine.sequence import Place
from stentor.errors import InvalidRequest
from stentor.models.info import ModelInfo, ReferenceAudio, SpeechRequest
from stentor.silence import REFERENCE_PEAK
from stentor.text.cleanup import ALL, steps
from stentor.text.lexicon import Lexicon
from stentor.text.marks import speakers
from stentor.text.pauses import PAUSES
from stentor.text.script import Turn
from stentor.text.segments import Reading
from stentor.text.sentences import MAX_CHARS, Segment

SIDE_BY_SIDE = 8  # segments of one request in the engine together, where none depends on another


def reading(spec: ModelInfo, lexicon: Lexicon | None, cleanup: str, language: str | None = None) -> Reading:
    """How a family reads text. InvalidRequest("cleanup") for a step that is not known, or has no such language."""
    if not isinstance(cleanup, str):
        raise InvalidRequest("cleanup", f"must be a string, got {type(cleanup).__name__}")
    named = None if language == "auto" else language
    return Reading(spec.marks, spec.phonemes, lexicon, steps(cleanup, named), spec.unread)


def segments(
    spec: ModelInfo,
    text: str,
    granularity: str,
    max_chars: int = MAX_CHARS,
    lexicon: Lexicon | None = None,
    cleanup: str = ALL,
    language: str | None = None,
) -> list[Segment]:
    """Split a text into segments of at most `max_chars` characters, with the pauses that it asks for.

    "auto" is as the family wants it, else one segment if the text is short and sentences grouped up to `max_chars`
    characters if not. cleanup: steps of the clean-up (text/cleanup). language: of the text, for its notations.
    InvalidRequest("text") if there are pauses and no words, or pauses that are too long together, and
    InvalidRequest("cleanup") for a step that is not known.
    """
    wanted = spec.split_granularity if granularity == "auto" else granularity
    found = reading(spec, lexicon, cleanup, language).segments(text, min(max_chars, spec.max_text), wanted)
    if not found:
        raise InvalidRequest("text", "has no words besides its marks")
    return found


def dialogue(
    spec: ModelInfo,
    turns: Sequence[Turn],
    granularity: str,
    max_chars: int = MAX_CHARS,
    lexicon: Lexicon | None = None,
    cleanup: str = ALL,
    language: str | None = None,
) -> list[Segment]:
    """Cut turns into segments, each as `segments` does, with the pauses between them. A text without marks is no turn.

    InvalidRequest names the turn's text where a script is wrong.
    """
    if len(turns) == 1 and turns[0].voice is None and turns[0].field is None:
        return segments(spec, turns[0].text, granularity, max_chars, lexicon, cleanup, language)
    found: list[Segment] = []
    for i, turn in enumerate(turns):
        try:
            cut = segments(spec, turn.text, granularity, max_chars, lexicon, cleanup, language)
        except InvalidRequest as e:
            raise InvalidRequest(turn.named("text") if e.param == "text" else e.param, e.message) from None
        if turn.pause is not None:
            cut[-1] = replace(cut[-1], after=turn.pause)
        elif cut[-1].after is None and i + 1 < len(turns):
            cut[-1] = replace(cut[-1], after=PAUSES["turn"])
        found += [replace(segment.moved(turn.start), voice=turn.voice, turn=i) for segment in cut]
    return found


def continues(spec: ModelInfo, request: SpeechRequest) -> bool:
    """Whether a later segment can take its voice from the one before, and needs to."""
    if request.voice is not None or request.speaker_embedding is not None:
        return False
    return spec.takes_prompt or (spec.takes_reference and request.reference is None)


def segment_request(request: SpeechRequest, segment: Segment, first: bool) -> SpeechRequest:
    """The request for one segment. first: no segment before it sets its voice."""
    request = replace(request, text=segment.spoken)
    return request if first else replace(request, instructions=None)  # the voice is in the audio that is continued


class GeneratedSegment(NamedTuple):
    """A segment whose voice the next one takes: float32 samples [n] at the model's rate, and their text."""

    samples: np.ndarray
    text: str

    def fits(self, spec: ModelInfo) -> bool:
        """Whether its length and level make it a reference."""
        shortest, longest = spec.reference_seconds
        peak = np.abs(self.samples).max(initial=0.0)
        in_range = shortest * spec.sample_rate <= len(self.samples) <= longest * spec.sample_rate
        return in_range and bool(REFERENCE_PEAK <= peak < np.inf)

    def recording(self, spec: ModelInfo) -> Recording:
        """It as a reference, which no other request will bring."""
        return Recording(self.samples, spec.sample_rate, kept=False)


class VoicesSoFar:
    """The generated segments whose voices the next one takes: the last one of each speaker, the latest at the end."""

    def __init__(self, spec: ModelInfo) -> None:
        self.spec = spec
        self._by_speaker: dict[str, GeneratedSegment] = {}

    def add(self, segment: GeneratedSegment) -> None:
        """Note a segment that has been generated, unless it is unfit as a reference."""
        if segment.fits(self.spec):
            for speaker in speakers(segment.text, self.spec.marks) or [""]:
                self._by_speaker.pop(speaker, None)
                self._by_speaker[speaker] = segment

    def of(self, text: str) -> tuple[GeneratedSegment, ...]:
        """Voices that a text needs: the latest of each of its speakers, or the latest of all. None at first."""
        named = [self._by_speaker[s] for s in self._by_speaker if s in speakers(text, self.spec.marks)]
        found = {id(segment): segment for segment in named or list(self._by_speaker.values())[-1:]}
        return tuple(found.values())[-self.spec.max_references :]


class Cast:
    """The voices of one request, and what has been spoken in each so far.

    requests: of each voice by its name in the segments, with None for the request's own. several: there is more than
    one segment, or may be.
    """

    def __init__(self, spec: ModelInfo, requests: Mapping[str | None, SpeechRequest], several: bool) -> None:
        self._requests = requests
        self._carried = {voice for voice, request in requests.items() if several and continues(spec, request)}
        self._so_far = {voice: VoicesSoFar(spec) for voice in requests}
        self._begun: set[str | None] = set()

    @property
    def carries(self) -> bool:
        """Whether a segment may need one before it."""
        return bool(self._carried)

    def carries_on(self, segment: Segment) -> bool:
        """Whether later segments may take their voice from this one."""
        return segment.voice in self._carried

    def request(self, segment: Segment) -> SpeechRequest:
        """The request for a segment, without the audio that it takes its voice from."""
        first = not (self.carries_on(segment) and segment.voice in self._begun)
        return segment_request(self._requests[segment.voice], segment, first)

    def tails(self, segment: Segment) -> tuple[GeneratedSegment, ...]:
        """The segments that it takes its voice from."""
        return self._so_far[segment.voice].of(segment.spoken)

    def spoken(self, segment: Segment, samples: np.ndarray) -> None:
        """Note a segment that has been spoken: float32 samples [n] at the model's rate."""
        self._begun.add(segment.voice)
        if self.carries_on(segment):
            self._so_far[segment.voice].add(GeneratedSegment(samples, segment.spoken))


def with_tail_reference(request: SpeechRequest, spec: ModelInfo, tails: tuple[GeneratedSegment, ...]) -> SpeechRequest:
    """The request with segments generated before as its prompt or its references."""
    given = [ReferenceAudio(t.recording(spec), t.text) for t in tails]
    if spec.takes_prompt:
        return replace(request, prompt=given[-1])
    return replace(request, reference=given[0], more_references=tuple(given[1:]))


class PieceQueue:
    """Places of one request's pieces in the engine's queue. Once the engine has taken a piece, the others are not
    refused, and each takes the place of one that has ended."""

    def __init__(self) -> None:
        self._admitted = False
        self._places = 0  # of pieces that have ended, for those that follow

    def take(self) -> Place:
        """Take the place of the next piece."""
        place = Place.NEXT if self._places else Place.ADMITTED if self._admitted else Place.NEW
        self._places = max(0, self._places - 1)
        return place

    def admit(self) -> None:
        """Note that the engine has taken a piece of this request, or of the call it belongs to: none is refused now."""
        self._admitted = True

    def leave(self) -> None:
        """Note that a piece has ended, or is not needed any more. The next one takes its place."""
        self._places += 1
