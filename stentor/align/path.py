"""Phonemes that the English aligner distinguishes, and the likeliest path of a text through the
frames (Viterbi)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

GAP = 0
"""The class of silence and of what lies between words."""
_SAME = {"ɐ": "ə", "ᵊ": "ə", "ᵻ": "ɪ"}
SYMBOLS = "AIOTWYabdfhijklmnpstuvwzæðŋɑɔəɛɜɡɪɹʃʊʌʒʤʧθ"
"""Signs of `text.english.accents.AMERICAN_SIGNS`, with reduced vowels folded. Symbol i is class
i + 1."""
_CLASSES = {s: i + 1 for i, s in enumerate(SYMBOLS)}
CLASSES = len(SYMBOLS) + 1

FLOOR = -9.0
"""Log-likelihood that a frame loses at most: what the text does not say, such as a laugh, costs no
more."""
_ENDS = 12.0  # a way to the end of the text wins over one that is so much likelier and ends before
_BLOCK = 1024  # frames that are gone through at once, 20 s
# states near the likeliest one that are followed from there: 14 s of speech behind it, 40 s ahead
_SEEN = 1024
_NEVER = -1e30


def word_frames(scores: np.ndarray, words: Sequence[Sequence[int]]) -> list[tuple[float, float]]:
    """First frame of each word, and the first one behind it: infinity for a word that is not
    reached.

    scores: log-likelihoods [frames, classes]. words: the classes of each word, none empty.
    """
    states = [GAP]
    owner = [-1]
    for number, classes in enumerate(words):
        states += [*classes, GAP]
        owner += [*[number] * len(classes), -1]
    owners = np.array(owner)
    way = _way(scores, np.array(states), gaps=owners < 0)
    spoken = owners[way]
    inside = np.flatnonzero(spoken >= 0)
    numbers = np.arange(len(words))
    first = np.searchsorted(spoken[inside], numbers, "left")
    behind = np.searchsorted(spoken[inside], numbers, "right")
    frames = []
    for start, stop in zip(first, behind, strict=True):
        if start < stop:
            frames.append((float(inside[start]), float(inside[stop - 1] + 1)))
        else:
            frames.append((np.inf, np.inf))
    return frames


def _way(scores: np.ndarray, states: np.ndarray, gaps: np.ndarray) -> np.ndarray:
    """The states [frames] of the best way that begins in the first gap or word and ends anywhere.

    scores: [frames, classes]. states: the class of each. gaps: which of them may be passed over. Of
    a long text the states near the likeliest one are followed only, so memory grows with the audio
    alone.
    """
    frames = len(scores)
    width = min(len(states), _SEEN)
    skips = np.zeros(len(states), bool)  # states that are entered from two before
    skips[2:] = gaps[1:-1]
    best = np.full(len(states), _NEVER)  # of each state at the last frame so far
    blocks: list[tuple[int, np.ndarray]] = []
    for first in range(0, frames, _BLOCK):
        if first:
            likeliest = int(best.argmax())
        else:
            likeliest = 0
        begin = max(likeliest - width // 4, 0)
        begin = min(begin, len(states) - width)
        part = slice(begin, begin + width)
        block = scores[first : first + _BLOCK]
        best[:begin] = _NEVER
        steps = _follow(
            block,
            states[part],
            skips[part],
            best[part],
            from_start=first == 0,
        )
        blocks.append((begin, steps))
        best[part.stop :] = _NEVER
    best[-2:] += _ENDS
    way = np.empty(frames, int)
    state = int(best.argmax())
    for t in range(frames - 1, -1, -1):
        way[t] = state
        begin, steps = blocks[t // _BLOCK]
        state -= int(steps[state - begin, t % _BLOCK])
    return way


def _follow(
    scores: np.ndarray,
    states: np.ndarray,
    skips: np.ndarray,
    best: np.ndarray,
    from_start: bool,
) -> np.ndarray:
    """How many states before each state [states, frames] the best way to it came from. Updates
    `best` [states].

    States are followed one after another, each with all frames at once. With upto[t] the sum of its
    likelihoods up to frame t: A way that entered it at frame e, with the likelihood L of the states
    before, has L - upto[e - 1] + upto[t] at frame t. So the best entry for t is a running maximum.
    """
    n = len(scores)
    likelihoods = np.maximum(scores, FLOOR)
    upto = np.zeros((scores.shape[1], n + 1))
    np.cumsum(likelihoods.T, 1, out=upto[:, 1:])
    # of each state, behind two that cannot be
    entry, now = np.empty((2, len(states) + 2, n + 1))
    now[:2] = _NEVER
    entered = np.empty(n + 1)
    kinds = zip(states.tolist(), skips.tolist(), strict=True)
    for i, (kind, skip) in enumerate(kinds, start=2):
        before = now[i - 1, :-1]
        entered[0] = best[i - 2]
        if skip:
            np.maximum(before, now[i - 2, :-1], out=entered[1:])
        else:
            entered[1:] = before
        if from_start and i < 4:  # the first gap or word
            entered[1] = 0.0
        entered[1:] -= upto[kind, :-1]
        np.maximum.accumulate(entered, out=entry[i])
        np.add(entry[i], upto[kind], out=now[i])
    best[:] = now[2:, -1]
    is_entry = entry[2:, 1:] > entry[2:, :-1]
    steps = is_entry.astype(np.int8)
    from_two_before = now[:-2, :-1] > now[1:-1, :-1]
    steps[skips] *= 1 + from_two_before[skips]
    return steps


def class_of(sign: str) -> int | None:
    """The class of a sign of a phoneme string. None: it has none (a stress mark)."""
    if sign in "ˈˌ":
        return None
    return _CLASSES.get(_SAME.get(sign, sign), GAP)
