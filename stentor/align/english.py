"""The aligner that ships: English words in 16 kHz audio, by their phonemes."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path

import numpy as np
import soxr
from safetensors.numpy import load_file

from stentor.align.network import FRAME_SECONDS, RATE, LogMelStream, Network, Weights
from stentor.align.path import class_of, word_frames
from stentor.text.english.phonemes import EnglishPhonemes
from stentor.text.trace import is_sound

# samples that are waited for: chunks of a stream are short at first, and a call takes 1 ms
_AT_ONCE = RATE // 2
_NOTHING = np.zeros(0, np.float32)
_PACKAGE = Path(__file__).parents[1]
_FILE = _PACKAGE / "assets" / "aligner" / "english.safetensors"
_Span = tuple[float, float]


class EnglishAlignment:
    """One segment's audio, and when its words are spoken in it. rate: Hz of the samples."""

    def __init__(self, rate: int) -> None:
        weights = _weights()
        if rate != RATE:
            self._resampled = soxr.ResampleStream(rate, RATE, 1, "float32", quality="MQ")
        else:
            self._resampled = None
        self._mel = LogMelStream()
        self._network = Network(weights)
        self._waiting: list[np.ndarray] = []
        self._scores: list[np.ndarray] = []

    def add(self, samples: np.ndarray) -> None:
        """Add float32 samples [n]."""
        samples = samples.astype(np.float32, copy=False)
        if self._resampled is not None:
            samples = self._resampled.resample_chunk(samples)
        self._waiting.append(samples)
        sizes = map(len, self._waiting)
        num_waiting = sum(sizes)
        if num_waiting >= _AT_ONCE:
            waiting = np.concatenate(self._waiting)
            frames = self._mel.feed(waiting)
            scores = self._network.feed(frames)
            self._scores.append(scores)
            self._waiting.clear()

    def spans(self, words: Sequence[str]) -> list[_Span | None]:
        """When each word is spoken in what was added, in seconds. None for one that is not, such as
        a dash."""
        return self.spans_of(word_classes(words))

    def spans_of(self, sounds: Sequence[Sequence[int]]) -> list[_Span | None]:
        """When words of these classes are spoken."""
        waiting = np.concatenate((_NOTHING, *self._waiting))
        frames_left = self._mel.finish(waiting)
        scores_left = self._network.finish(frames_left)
        scores = np.concatenate((*self._scores, scores_left))
        spans: list[_Span | None] = [None] * len(sounds)
        spoken = [at for at, classes in enumerate(sounds) if classes]
        if not len(scores) or not spoken:
            return spans

        classes_spoken = [sounds[at] for at in spoken]
        frames = word_frames(scores, classes_spoken)
        for at, (start, end) in zip(spoken, frames, strict=True):
            spans[at] = (start * FRAME_SECONDS, end * FRAME_SECONDS)
        return spans


def word_classes(words: Sequence[str]) -> list[list[int]]:
    """The classes of the phonemes of each word."""
    classes: list[list[int]] = [[] for _ in words]
    stripped = [word.strip() for word in words]
    written = [i for i, word in enumerate(stripped) if word]
    text = " ".join(stripped[i] for i in written)
    read = _front_end()(text)
    places = read.places(is_sound)
    # those at the end may be marks
    for i, place in zip(written, places, strict=False):
        signs = read.text[place.start : place.stop]
        kinds = map(class_of, signs)
        classes[i] = [kind for kind in kinds if kind]
    return classes


@cache
def _weights() -> Weights:
    weights = {}
    for name, stored in load_file(_FILE).items():
        weights[name] = stored.astype(np.float32)
    return weights


_front_end = cache(EnglishPhonemes)
