"""Measures of what a batch has spoken: models that write down audio, compare voices and predict
opinions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import soundfile

from stentor.batch.fields import listed
from stentor.batch.item import BatchItem, ItemOutcome
from stentor.batch.verify import Checks, code_of
from stentor.config import path_of
from stentor.errors import InvalidRequest
from stentor.score import measures as score
from stentor.score.measures import AnswerAudio, Transcriber


class Meters:
    """The measures of a run. Models are loaded here. inputs: the folder of files that items
    name."""

    def __init__(self, checks: Checks, inputs: Path) -> None:
        self._checks = checks
        self._inputs = inputs
        self._transcribe = None
        if "wer" in checks.measures:
            self._transcribe = _recogniser(checks.recogniser)
        self._opinion = None
        if "mos" in checks.measures:
            self._opinion = score.opinion()
        self._speakers = None
        if "similarity" in checks.measures:
            self._speakers = Speakers()

    def __call__(self, item: BatchItem, outcome: ItemOutcome) -> dict[str, Any]:
        """Measure the audio of an item."""
        assert outcome.path is not None
        samples, rate = soundfile.read(outcome.path, dtype="float32")
        audio = AnswerAudio(0, " ".join(s["text"] for s in outcome.row["segments"]), samples, rate)
        measures: dict[str, Any] = {}
        if self._transcribe is not None:
            measures |= self._words(audio, self._language(item))
        reference = item.fields.get("reference")
        if self._speakers is not None and reference is not None:
            path = self._inputs / path_of("reference", listed(reference)[0])
            measures["similarity"] = self._speakers.similarity(audio, path)
        if self._opinion is not None:
            measures["mos"] = round(self._opinion(audio), 3)
        return measures

    def _language(self, item: BatchItem) -> str | None:
        return code_of(item.fields.get("language", "")) or self._checks.language

    def _words(self, audio: AnswerAudio, language: str | None) -> dict[str, Any]:
        assert self._transcribe is not None
        transcript = self._transcribe(score.at_16k(audio), language)
        wrong = score.word_errors(audio.text, transcript, language or "en")
        return {
            "wer": round(wrong.rate, 4),
            "errors": wrong.errors,
            "words": wrong.words,
            "transcript": transcript,
        }


def _recogniser(model: str) -> Transcriber:
    """Load a recogniser. InvalidRequest("recogniser") where that fails, for whatever reason."""
    try:
        return score.whisper(model)
    except Exception as e:  # neither faster-whisper nor the Hub has a class for it
        raise InvalidRequest("recogniser", f"{model!r} cannot be loaded: {e}") from e


class Speakers:
    """Voices as vectors, by Resemblyzer."""

    def __init__(self) -> None:
        from resemblyzer import VoiceEncoder

        self._encoder = VoiceEncoder("cpu", verbose=False)
        self._references: dict[Path, np.ndarray] = {}

    def similarity(self, audio: AnswerAudio, reference: Path) -> float:
        """The cosine between the voice of audio and that of a file."""
        if reference not in self._references:
            samples, rate = soundfile.read(reference, dtype="float32", always_2d=True)
            spoken = AnswerAudio(0, "", samples.mean(axis=1), rate)
            self._references[reference] = self._vector(spoken)
        return round(float(self._references[reference] @ self._vector(audio)), 4)

    def _vector(self, audio: AnswerAudio) -> np.ndarray:
        vector: np.ndarray = self._encoder.embed_utterance(score.at_16k(audio))
        return vector
