"""Phonemes that the English aligner tells apart, and the likeliest way of a text's through frames (Viterbi)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

GAP = 0
"""The class of silence and of what lies between words."""
_SAME = {"ɐ": "ə", "ᵊ": "ə", "ᵻ": "ɪ"}
SYMBOLS = "AIOTWYabdfhijklmnpstuvwzæðŋɑɔəɛɜɡɪɹʃʊʌʒʤʧθ"
"""Signs of `stentor.text.english.phonemes.ALPHABET`, with reduced vowels folded. Symbol i is class i + 1."""
_CLASSES = {s: i + 1 for i, s in enumerate(SYMBOLS)}
CLASSES = len(SYMBOLS) + 1

FLOOR = -9.0
"""Log-likelihood that a frame loses at most: what the text does not say, such as a laugh, costs no more."""
_ENDS = 12.0  # a way to the end of the text wins over one that is so much likelier and ends before
_SEEN = 512  # states around the likeliest one that are followed: 8 s of speech on either side
_NEVER = -1e30


def word_frames(scores: np.ndarray, words: Sequence[Sequence[int]]) -> list[tuple[float, float]]:
    """First frame of each word, and the first one behind it: infinity for a word that is not reached.

    scores: log-likelihoods [frames, classes]. words: the classes of each word, none empty.
    """
    states = [GAP]
    owner = [-1]
    for number, classes in enumerate(words):
        states += [*classes, GAP]
        owner += [*[number] * len(classes), -1]
    owners = np.array(owner)
    spoken = owners[_way(scores, np.array(states), owners < 0)]
    inside = np.flatnonzero(spoken >= 0)
    every = np.arange(len(words))
    first, behind = (np.searchsorted(spoken[inside], every, side) for side in ("left", "right"))
    reached = first < behind
    return [
        (float(inside[a]), float(inside[b - 1] + 1)) if there else (np.inf, np.inf)
        for a, b, there in zip(first, behind, reached, strict=True)
    ]


def _way(scores: np.ndarray, states: np.ndarray, gaps: np.ndarray) -> np.ndarray:
    """The states [frames] of the best way that begins in the first gap or word and ends anywhere.

    scores: [frames, classes]. states: the class of each. gaps: which of them may be passed over. Of a long text the
    states near the likeliest one are followed only, so memory grows with the audio alone.
    """
    frames, width = len(scores), min(len(states), _SEEN)
    skips = np.zeros(len(states), bool)  # states that are entered from two before
    skips[2:] = gaps[1:-1]
    steps = np.zeros((frames, width), np.int8)
    begins = np.zeros(frames, int)  # of the states that are followed
    best, one, two = (np.full(width, _NEVER) for _ in range(3))
    best[:2] = scores[0, states[:2]]
    begin = 0
    for t in range(1, frames):
        move = min(int(best.argmax()) - width // 2, len(states) - width - begin)
        if move > 0:
            best[:-move], best[-move:] = best[move:].copy(), _NEVER
            begin += move
        one[1:] = best[:-1]
        two[2:] = np.where(skips[begin + 2 : begin + width], best[:-2], _NEVER)
        came = (one > best).astype(np.int8)
        best = np.maximum(best, one)
        came[two > best] = 2
        steps[t], begins[t] = came, begin
        best = np.maximum(best, two) + np.maximum(scores[t, states[begin : begin + width]], FLOOR)
    if begin + width == len(states):
        best[-2:] += _ENDS
    way = np.empty(frames, int)
    way[-1] = state = begin + int(best.argmax())
    for t in range(frames - 1, 0, -1):
        state -= int(steps[t, state - begins[t]])
        way[t - 1] = state
    return way


def class_of(sign: str) -> int | None:
    """The class of a sign of a phoneme string. None: it has none (a stress mark)."""
    if sign in "ˈˌ":
        return None
    return _CLASSES.get(_SAME.get(sign, sign), GAP)
