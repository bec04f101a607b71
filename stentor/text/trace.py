"""A text that is being rewritten, and the word of the original that each of its characters came
from."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from difflib import SequenceMatcher
from typing import Self

from stentor.text.draft import Draft

NO_WORD = -1
# No dash inside the first part ends a word. The group must not be possessive: Python 3.11.2, which
# Debian 12 has, matches such groups wrongly, and never leaves `finditer`.
WORD = re.compile(
    r"\S(?:[^\s—-]|—+(?![\w—])|(?<!\w)-+|-(?!-)|--+(?![\w-]))*"
    r"(?:—+|--+)?"
)
"""Text between white space, which ends behind a dash too: "it—went" is two words."""
_UNUSUAL_SPACE = re.compile(r"\s{2,}|[^\S ]")


@dataclass(frozen=True)
class Trace(Draft):
    """A draft that counts words: `text[i]` came from word `starts[i]` of the original, or from none
    where `ends[i]` is not above it. Words of the original are those of `WORD`."""

    @classmethod
    def of(cls, text: str) -> Self:
        """A text that nothing has changed."""
        words = [NO_WORD] * len(text)
        for number, m in enumerate(WORD.finditer(text)):
            words[m.start() : m.end()] = [number] * len(m[0])
        return cls(text, *_spans(words))

    @classmethod
    def of_words(cls, text: str, words: Iterable[int]) -> Self:
        """A text with the word of each of its characters."""
        return cls(text, *_spans(list(words)))

    @classmethod
    def joined(cls, parts: Iterable[Self], gap: str = " ") -> Self:
        """Parts with `gap` between them, which is of no word."""
        texts: list[str] = []
        starts: list[int] = []
        ends: list[int] = []
        for part in parts:
            if texts:
                starts += [0] * len(gap)
                ends += [0] * len(gap)
            texts.append(part.text)
            starts += part.starts
            ends += part.ends
        return cls(gap.join(texts), starts, ends)

    @property
    def words(self) -> list[int]:
        """The word of each character, NO_WORD for none."""
        spans = zip(self.starts, self.ends, strict=True)
        return [start if end > start else NO_WORD for start, end in spans]

    def numbered_from(self, first: int) -> Self:
        """Count the words from `first` on, not from 0."""
        if not first:
            return self
        words = [NO_WORD if word == NO_WORD else word + first for word in self.words]
        return self.of_words(self.text, words)

    def each(self, rewrite: Callable[[str], str]) -> Self:
        """Rewrite every word, and all between words, each by itself."""
        if rewrite(self.text) == self.text:
            return self
        return self.sub(re.compile(r"\S+|\s+"), lambda m: rewrite(m[0]))

    def translate(self, table: Mapping[int, str]) -> Self:
        """With some characters replaced."""
        return self.each(lambda text: text.translate(table))

    def only(self, kept: Callable[[str], bool]) -> Self:
        """The characters that are kept."""
        dropped = {c for c in set(self.text) if not kept(c)}
        if not dropped:
            return self
        places = [at for at, c in enumerate(self.text) if c not in dropped]
        return type(self)(
            "".join(self.text[at] for at in places),
            [self.starts[at] for at in places],
            [self.ends[at] for at in places],
        )

    def strip(self, left: str | None = None, right: str | None = None) -> Self:
        """Without those characters at its ends. None: without white space."""
        start = len(self.text) - len(self.text.lstrip(left))
        return self[start : max(start, len(self.text.rstrip(right)))]

    def spaced(self) -> Self:
        """With a single space for all white space, and none at its ends."""
        return self.sub(_UNUSUAL_SPACE, " ").strip()

    def ended(self, mark: str) -> Self:
        """With a mark behind it, which is of no word."""
        return type(self)(self.text + mark, [*self.starts, 0], [*self.ends, 0])

    def rewritten(self, start: int, end: int, new: str) -> Self:
        """A text that text[start:end] has become. What replaces several words is theirs in the same
        order."""
        words = self.words_of(start, end, new)
        return type(self)(new, *_spans(words))

    def words_of(self, start: int, end: int, new: str) -> list[int]:
        """The words from which the characters of `new` came, which text[start:end] has become."""
        starts = self.starts[start:end]
        ends = self.ends[start:end]
        size = len(starts)
        if size and starts[0] < ends[0]:
            word = starts[0]
            is_one_word = starts.count(word) == size and min(ends) > word
            if is_one_word:
                return [word] * len(new)
        return _spread(self[start:end], new)

    def _written(self, m: re.Match[str], new: str) -> tuple[list[int], list[int]]:
        return _spans(self.words_of(*m.span(), new))

    def places(self, sounds: Callable[[str], bool]) -> tuple[range, ...]:
        """Where the characters of each word stand that sound. A word without any has an empty
        range."""
        spans: dict[int, tuple[int, int]] = {}
        for at, (c, word) in enumerate(zip(self.text, self.words, strict=True)):
            if word != NO_WORD and sounds(c):
                spans[word] = (spans.get(word, (at, at))[0], at + 1)
        return tuple(range(*spans.get(word, (0, 0))) for word in range(max(spans, default=-1) + 1))


def _spans(words: list[int]) -> tuple[list[int], list[int]]:
    """The first word of each character, and the one behind its last. NO_WORD (-1) becomes an empty
    span."""
    ends = [word + 1 for word in words]
    if NO_WORD not in words:
        return words, ends
    return [0 if word == NO_WORD else word for word in words], ends


def is_sound(sign: str) -> bool:
    """Whether a phoneme or a character is spoken: neither white space nor punctuation. Stress marks
    are spoken."""
    return unicodedata.category(sign)[0] not in "PZ"


def _spread(old: Trace, new: str) -> list[int]:
    """The words from which the characters of `new` came, which replaces `old`."""
    old_words = old.words
    old_owners = [w for w in dict.fromkeys(old_words) if w != NO_WORD]
    if len(old_owners) < 2 or not new:
        return [old_owners[0] if old_owners else NO_WORD] * len(new)
    tokens = [
        (token, old_words[m.start()])
        for m in WORD.finditer(old.text)
        if old_words[m.start()] != NO_WORD
        for token in _read_as(_plain(m[0]), new)
    ]
    before = [token for token, _ in tokens]
    sources = [source for _, source in tokens]
    matches = list(WORD.finditer(new))
    if len(matches) < len(old_owners):  # letters by themselves are one word of the dictionary
        return [old_owners[at * len(old_owners) // len(new)] for at in range(len(new))]
    owners = _owners(before, sources, [_plain(m[0]) for m in matches])
    words = [NO_WORD] * len(new)
    for m, owner in zip(matches, owners, strict=True):
        words[m.start() : m.end()] = [owner] * len(m[0])
    return words


def _plain(token: str) -> str:
    return "".join(c for c in token.casefold() if c.isalnum())


def _read_as(token: str, new: str) -> list[str]:
    """A token, or its letters where `new` has them one by one: "pm" where it has "P M"."""
    if token and " ".join(token.upper()) in new:
        return list(token)
    return [token]


def _owners(before: list[str], sources: list[int], after: list[str]) -> list[int]:
    """Find which of `sources` each of the tokens `after` came from: those that stayed, and in order
    between them."""
    owners: list[int] = []
    for kind, i, j, k, n in SequenceMatcher(None, before, after, autojunk=False).get_opcodes():
        if kind == "equal":
            owners += sources[i:j]
        elif j > i:
            owners += [sources[i + at * (j - i) // (n - k)] for at in range(n - k)]
        else:
            owners += [owners[-1] if owners else sources[0]] * (n - k)
    return owners
