"""What the pieces of one request share: the voice that is carried over, and the place in the engine's queue."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from stentor.audio import Recording
from stentor.engine.sequence import Place
from stentor.errors import InvalidRequest
from stentor.models.base import ModelSpec, Prompt, ReferenceAudio, SpeechRequest
from stentor.silence import REFERENCE_PEAK
from stentor.text.lexicon import Lexicon
from stentor.text.marks import speakers
from stentor.text.segments import Reading
from stentor.text.sentences import MAX_CHARS, Segment

if TYPE_CHECKING:
    from stentor.engine.engine import Engine
    from stentor.engine.stream import AudioStream

SIDE_BY_SIDE = 8  # segments of one request in the engine together, where none depends on another


def segments(
    spec: ModelSpec, text: str, granularity: str, max_chars: int = MAX_CHARS, lexicon: Lexicon | None = None
) -> list[Segment]:
    """What a text is spoken in, each of at most `max_chars` characters, with the pauses that it asks for.

    "auto" is as the family wants it, else one segment if the text is short and sentences grouped up to `max_chars`
    characters if not. InvalidRequest("text") if there are pauses and no words, or pauses that are too long together.
    """
    wanted = spec.split_granularity if granularity == "auto" else granularity
    found = Reading(spec.marks, spec.phonemes, lexicon).segments(text, min(max_chars, spec.max_text), wanted)
    if not found:
        raise InvalidRequest("text", "has no words besides its marks")
    return found


def continues(spec: ModelSpec, request: SpeechRequest) -> bool:
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

    def fits(self, spec: ModelSpec) -> bool:
        """Whether its length and level make it a reference."""
        shortest, longest = spec.reference_seconds
        peak = np.abs(self.samples).max(initial=0.0)
        in_range = shortest * spec.sample_rate <= len(self.samples) <= longest * spec.sample_rate
        return in_range and bool(REFERENCE_PEAK <= peak < np.inf)

    def recording(self, spec: ModelSpec) -> Recording:
        """It as a reference, which no other request will bring."""
        return Recording(self.samples, spec.sample_rate, kept=False)


class VoicesSoFar:
    """The generated segments whose voices the next one takes: the last one of each speaker, the latest at the end."""

    def __init__(self, spec: ModelSpec) -> None:
        self.spec = spec
        self._by_speaker: dict[str, GeneratedSegment] = {}

    def add(self, segment: GeneratedSegment) -> None:
        """Note a segment that has been generated, unless it is unfit as a reference."""
        if segment.fits(self.spec):
            for speaker in speakers(segment.text, self.spec.marks) or [""]:
                self._by_speaker.pop(speaker, None)
                self._by_speaker[speaker] = segment

    def of(self, text: str) -> tuple[GeneratedSegment, ...]:
        """Those that a text needs: the latest of each of its speakers, or the latest of all. None at first."""
        named = [self._by_speaker[s] for s in self._by_speaker if s in speakers(text, self.spec.marks)]
        found = {id(segment): segment for segment in named or list(self._by_speaker.values())[-1:]}
        return tuple(found.values())[-self.spec.max_references :]


def with_tail_reference(request: SpeechRequest, spec: ModelSpec, tails: tuple[GeneratedSegment, ...]) -> SpeechRequest:
    """The request with segments generated before as its prompt or its references."""
    given = [ReferenceAudio(t.recording(spec), t.text) for t in tails]
    if spec.takes_prompt:
        return replace(request, prompt=given[-1])
    return replace(request, reference=given[0], more_references=tuple(given[1:]))


class PieceQueue:
    """Submits the prompts of one request. Once the engine has taken one, the others are not refused, and each takes the
    place of one that has ended."""

    def __init__(self, streaming: bool) -> None:
        self.streaming = streaming
        self._admitted = False
        self._places = 0  # of prompts that have ended, for those that follow

    def submit(self, engine: Engine, prompt: Prompt, seed: int) -> AudioStream:
        """Give an engine a prompt. Overloaded if it is the first and the queue is full."""
        place = Place.NEXT if self._places else Place.ADMITTED if self._admitted else Place.NEW
        stream = engine.submit(prompt, seed, self.streaming, place)
        self._admitted, self._places = True, max(0, self._places - 1)
        return stream

    def admit(self) -> None:
        """Not even the first prompt is refused: it belongs to a call of which others have been taken."""
        self._admitted = True

    def left(self, stream: AudioStream) -> None:
        """A prompt has ended, or is not needed any more. The next one takes its place."""
        stream.cancel()
        self._places += 1
