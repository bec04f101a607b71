"""Voices of one request: who speaks which segment, and the generated audio that later segments take a voice from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from stentor.audio import Recording
from stentor.models.info import ModelInfo, ReferenceAudio, SpeechRequest
from stentor.silence import REFERENCE_PEAK
from stentor.text.marks import speakers
from stentor.text.sentences import Segment


def continues(spec: ModelInfo, request: SpeechRequest) -> bool:
    """Whether a later segment can take its voice from the one before, and needs to."""
    if request.voice is not None or request.speaker_embedding is not None:
        return False
    return spec.takes_prompt or (spec.takes_reference and request.reference is None)


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
        """The request for a segment, without the audio that it takes its voice from. A text that is one segment keeps
        the spaces around it."""
        request = self._requests[segment.voice]
        if request.text.strip() != segment.spoken:
            request = replace(request, text=segment.spoken)
        continued = self.carries_on(segment) and segment.voice in self._begun
        return replace(request, instructions=None) if continued else request  # the audio has the voice

    def tails(self, segment: Segment) -> tuple[GeneratedSegment, ...]:
        """The segments that it takes its voice from."""
        return self._so_far[segment.voice].of(segment.spoken)

    def spoken(self, segment: Segment, samples: np.ndarray) -> None:
        """Note a segment that has been spoken and that `carries_on`: float32 samples [n] at the model's rate."""
        self._begun.add(segment.voice)
        self._so_far[segment.voice].add(GeneratedSegment(samples, segment.spoken))


def with_tail_reference(request: SpeechRequest, spec: ModelInfo, tails: tuple[GeneratedSegment, ...]) -> SpeechRequest:
    """The request with segments generated before as its prompt or its references."""
    given = [ReferenceAudio(t.recording(spec), t.text) for t in tails]
    if spec.takes_prompt:
        return replace(request, prompt=given[-1])
    return replace(request, reference=given[0], more_references=tuple(given[1:]))
