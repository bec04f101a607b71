"""Transcripts of a recogniser, against what a voice was to say: digits and letters, and many utterances in one clip.

Digits and letters are compared as signs: "555-0132", "five five five, oh one three two" and "5 5 5 0 1 3 2" are all
5550132, and "FBI", "F-B-I" and "eff bee eye" are all FBI. The letter O and the digit 0 are one sign.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import jiwer
import numpy as np

from stentor.bench.load.record import Samples
from stentor.score.measures import AnswerAudio, at_16k

RATE = 16_000
CLIP = 28.0
"""Seconds of a clip. Whisper's cost is per window of 30 s, however much of it is speech."""
SPELLED = "5 5 5 0 1 3 2, S M I T H"
"""A prompt that makes whisper write every sign apart. Without it "000" is often heard as "00" or "0000"."""
GAP = 0.8
"""Seconds of silence between two utterances of a clip."""
_UNITS = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"]
_TEENS = [
    "ten",
    "eleven",
    "twelve",
    "thirteen",
    "fourteen",
    "fifteen",
    "sixteen",
    "seventeen",
    "eighteen",
    "nineteen",
]
_TENS = ["twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety"]
_BELOW_20 = {word: i for i, word in enumerate(_UNITS + _TEENS)}
_MULTIPLES = {word: 10 * i + 20 for i, word in enumerate(_TENS)}
_SOUNDS = {
    "0": "oh owe",
    "1": "won",
    "2": "to too",
    "4": "for fore",
    "8": "ate",
    "A": "ay eh",
    "B": "be bee",
    "C": "see sea cee",
    "D": "dee",
    "F": "ef eff",
    "G": "gee",
    "H": "aitch",
    "I": "eye",
    "J": "jay",
    "K": "kay",
    "L": "el ell",
    "M": "em",
    "N": "en",
    "P": "pea pee",
    "Q": "cue queue",
    "R": "are ar",
    "S": "ess",
    "T": "tea tee",
    "U": "you",
    "V": "vee",
    "X": "ex",
    "Y": "why",
    "Z": "zee zed",
}
_SIGN = {word: sign for sign, words in _SOUNDS.items() for word in words.split()}
_TOKEN = re.compile(r"\d+|[A-Z]{2,}(?=\b|\d)|[A-Za-z]+")
_TIMES = {"double": 2, "triple": 3}


def signs(text: str) -> str:
    """The digits and letters that a text names, in order. Other words are left out.

    A word that sounds like a sign ("for", "see") is one, so a text must have no other use for such words.
    """
    text = re.sub(r"['\u2019][a-z]+\b|(?<=[A-Z]{2})s\b", "", text)
    text = re.sub(r"(?i)\bdouble[ -](?:you|u)\b", "W", text)
    tokens = _TOKEN.findall(text)
    found, at = [], 0
    while at < len(tokens):
        sign, used = _next(tokens, at)
        found.append(sign)
        at += used
    return "".join(found).replace("O", "0")


def around(text: str) -> tuple[int, int]:
    """How many words of a text stand before its first sign, and how many behind its last one."""
    named = [bool(signs(word)) for word in text.split()]
    if True not in named:
        raise ValueError(f"{text!r} names neither a digit nor a letter")
    return named.index(True), named[::-1].index(True)


def _next(tokens: list[str], at: int) -> tuple[str, int]:
    """The signs of the token at a place, and how many tokens they took."""
    token, word = tokens[at], tokens[at].lower()
    if word in _BELOW_20 or word in _MULTIPLES:
        number, used = _number([t.lower() for t in tokens[at : at + 8]])
        return str(number), used
    if word in _TIMES and at + 1 < len(tokens):
        sign, used = _next(tokens, at + 1)
        return (sign * _TIMES[word], used + 1) if len(sign) == 1 else (sign, used + 1)
    if word in _SIGN and not (token.isupper() and len(token) > 1):
        return _SIGN[word], 1
    if token.isdecimal() or len(token) == 1 or token.isupper():
        return token.upper(), 1
    return "", 1


def _number(words: list[str]) -> tuple[int, int]:
    """The number at the beginning of some words, which begin with one, and how many words it took."""
    total, used = _below_100(words)
    for name, factor in (("hundred", 100), ("thousand", 1000)):
        if used < len(words) and words[used] == name:
            total, used = total * factor, used + 1
            rest = words[used:]
            if rest and (rest[0] in _BELOW_20 or rest[0] in _MULTIPLES) and rest[0] != "zero":
                more, took = _below_100(rest) if factor == 100 else _number(rest)
                total, used = total + more, used + took
    return total, used


def _below_100(words: list[str]) -> tuple[int, int]:
    if words[0] in _BELOW_20:
        return _BELOW_20[words[0]], 1
    unit = _BELOW_20.get(words[1], 0) if len(words) > 1 else 0
    return (_MULTIPLES[words[0]] + unit, 2) if 0 < unit < 10 else (_MULTIPLES[words[0]], 1)


@dataclass(frozen=True)
class Faults:
    """Edits between the signs that a text names and those that were heard."""

    repeats: int
    """Signs heard once more than they stand there: an addition that equals a neighbour."""
    additions: int
    losses: int
    swaps: int
    """One sign heard as another. Recognisers mix up letters such as B and P, so it is told apart."""

    @property
    def wrong(self) -> bool:
        """Whether a sign was repeated, added or lost."""
        return self.repeats + self.additions + self.losses > 0

    @property
    def edits(self) -> int:
        return self.repeats + self.additions + self.losses + self.swaps


def faults(expected: str, heard: str) -> Faults:
    """The fewest edits from one sequence of signs to the other."""
    ops = list(_edits(expected, heard))
    added = [j for kind, j in ops if kind == "insert"]
    repeats = sum(
        heard[j] in (heard[j - 1 : j] or " ") + (heard[j + 1 : j + 2] or " ") for j in added
    )
    losses = sum(kind == "delete" for kind, _ in ops)
    return Faults(repeats, len(added) - repeats, losses, len(ops) - len(added) - losses)


def heard_faults(text: str, expected: str, heard: str) -> Faults:
    """The faults of a transcript of `text`, whose words around the signs may have been heard as anything.

    "Our branch: 733" heard as "R Branch 733" has no fault: as many words as stand around the signs are no signs, if
    that leaves fewer edits. The signs themselves are one run, of which nothing is left out.
    """
    before, behind = around(text)
    words = heard.split()
    ways = [
        faults(expected, signs(" ".join(words[first : len(words) - last])))
        for first in range(before + 1)
        for last in range(behind + 1)
        if first + last <= len(words)
    ]
    return min(ways, key=lambda f: (f.edits, f.swaps))


def _edits(expected: str, heard: str) -> Iterator[tuple[str, int]]:
    """(kind, place in `heard`) of every edit, from the end."""
    cost = np.zeros((len(expected) + 1, len(heard) + 1), int)
    cost[:, 0], cost[0] = np.arange(len(expected) + 1), np.arange(len(heard) + 1)
    for i, a in enumerate(expected, 1):
        for j, b in enumerate(heard, 1):
            cost[i, j] = min(cost[i - 1, j - 1] + (a != b), cost[i - 1, j] + 1, cost[i, j - 1] + 1)
    i, j = len(expected), len(heard)
    while i or j:
        if i and j and cost[i, j] == cost[i - 1, j - 1] + (expected[i - 1] != heard[j - 1]):
            i, j = i - 1, j - 1
            if expected[i] != heard[j]:
                yield "replace", j
        elif i and cost[i, j] == cost[i - 1, j] + 1:
            i -= 1
            yield "delete", j
        else:
            j -= 1
            yield "insert", j


def sign_faults(
    texts: Sequence[str], expected: Sequence[str], transcripts: Sequence[str]
) -> dict[str, Any]:
    """How many utterances have a repeated, added or lost sign, how many only one taken for another, and which."""
    rows = []
    for i, (text, want, transcript) in enumerate(zip(texts, expected, transcripts, strict=True)):
        found = heard_faults(text, want, transcript)
        if found.edits:
            rows.append(
                {
                    "sentence": i,
                    "expected": want,
                    "heard": transcript,
                    "wrong": found.wrong,
                    **asdict(found),
                }
            )
    wrong = [row for row in rows if row["wrong"]]
    count = {
        f"with_{name}": sum(row[name] > 0 for row in rows)
        for name in ("repeats", "additions", "losses")
    }
    share = 1 / max(len(expected), 1)
    return {
        "wrong": round(len(wrong) * share, 4),
        "swapped": round((len(rows) - len(wrong)) * share, 4),
        **count,
        "edited": rows,
    }


Listener = Callable[[Sequence[AnswerAudio]], list[str]]
"""The transcript of each utterance."""
Doubt = Callable[[int, str], float]
"""How far the transcript of utterance n is from its text: 0 is not at all."""


def first_word_lost(text: str, heard: str) -> bool:
    """Whether fewer words were heard before the first right one than stand there: it was lost, or ran into the next.

    Both are normalised, with words parted by spaces.
    """
    if not text:
        return False
    for part in jiwer.process_words(text, heard).alignments[0]:
        if part.type == "equal":
            return bool(part.hyp_start_idx < part.ref_start_idx)
    return len(heard.split()) < len(text.split())


def clips(lengths: Sequence[float], longest: float = CLIP) -> list[list[int]]:
    """Utterances of given seconds in clips of at most `longest` seconds, gaps included. A longer one stands alone."""
    found: list[list[int]] = []
    used = longest
    for i, seconds in enumerate(lengths):
        if used + GAP + seconds > longest:
            found.append([])
            used = 0.0
        found[-1].append(i)
        used += GAP + seconds
    return found


def by_time(words: Sequence[tuple[float, str]], ends: Sequence[float]) -> list[str]:
    """Words of a clip, each with a time, for each utterance, given where the utterances end.

    The time is shortly before a word's end: a recogniser lets words after silence begin in the silence.
    """
    out = [""] * len(ends)
    for time, word in words:
        out[min(int(np.searchsorted(np.asarray(ends) + GAP / 2, time)), len(ends) - 1)] += word
    return [text.strip() for text in out]


def heard_again(
    spoken: Sequence[AnswerAudio], heard: Sequence[str], listeners: Sequence[Listener], doubt: Doubt
) -> list[str]:
    """The transcripts, and of utterances in doubt that of `listeners` which leaves the least doubt.

    A recogniser now and then drops an utterance of a clip, a whole clip, or one of several equal signs. No listener
    knows the text, so what one of them hears is in the audio.
    """
    out = list(heard)
    for listen in listeners:
        which = [i for i, text in enumerate(out) if doubt(i, text)]
        again = listen([spoken[i] for i in which]) if which else []
        for i, text in zip(which, again, strict=True):
            out[i] = min(out[i], text, key=lambda t, i=i: doubt(i, t))
    return out


def alone(engine: Any, prompt: str | None = None, beam: int = 1) -> Listener:
    """A listener that gives each utterance a window of its own."""

    def listen(spoken: Sequence[AnswerAudio]) -> list[str]:
        options = {"language": "en", "beam_size": beam, "initial_prompt": prompt}
        found = [engine.transcribe(at_16k(item), **options)[0] for item in spoken]
        return [" ".join(segment.text.strip() for segment in segments) for segments in found]

    return listen


def in_clips(engine: Any) -> Listener:
    """A listener that puts several utterances into one window of whisper, and tells their words apart by the times."""

    def clip(parts: list[Samples]) -> list[str]:
        gap = np.zeros(round(GAP * RATE), np.float32)
        joined = np.concatenate([x for part in parts for x in (part, gap)][:-1])
        ends = np.cumsum([len(part) + len(gap) for part in parts]) / RATE - GAP
        segments, _ = engine.transcribe(
            joined,
            language="en",
            beam_size=1,
            word_timestamps=True,
            condition_on_previous_text=False,
        )
        return by_time([(w.end - 0.1, w.word) for s in segments for w in s.words], ends)

    def listen(spoken: Sequence[AnswerAudio]) -> list[str]:
        samples = [at_16k(item) for item in spoken]
        groups = clips([len(s) / RATE for s in samples])
        return [text for group in groups for text in clip([samples[i] for i in group])]

    return listen
