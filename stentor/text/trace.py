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
            start, end = m.span()
            words[start:end] = [number] * (end - start)
        return cls.of_words(text, words)

    @classmethod
    def of_words(cls, text: str, words: Iterable[int]) -> Self:
        """A text with the word of each of its characters."""
        starts, ends = _spans(list(words))
        return cls(text, starts, ends)

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
        words = self.words
        for at, word in enumerate(words):
            if word != NO_WORD:
                words[at] = word + first
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
        text = "".join(self.text[at] for at in places)
        starts = [self.starts[at] for at in places]
        ends = [self.ends[at] for at in places]
        return type(self)(text, starts, ends)

    def strip(self, left: str | None = None, right: str | None = None) -> Self:
        """Without those characters at its ends. None: without white space."""
        without_left = self.text.lstrip(left)
        without_right = self.text.rstrip(right)
        start = len(self.text) - len(without_left)
        end = max(start, len(without_right))
        return self[start:end]

    def spaced(self) -> Self:
        """With a single space for all white space, and none at its ends."""
        return self.sub(_UNUSUAL_SPACE, " ").strip()

    def ended(self, mark: str) -> Self:
        """With a mark behind it, which is of no word."""
        starts = [*self.starts, 0]
        ends = [*self.ends, 0]
        return type(self)(self.text + mark, starts, ends)

    def rewritten(self, start: int, end: int, new: str) -> Self:
        """A text that text[start:end] has become. What replaces several words is theirs in the same
        order."""
        words = self.words_of(start, end, new)
        return self.of_words(new, words)

    def words_of(self, start: int, end: int, new: str) -> list[int]:
        """The words from which the characters of `new` came, which text[start:end] has become."""
        starts = self.starts[start:end]
        ends = self.ends[start:end]
        size = len(starts)
        if size and starts[0] < ends[0]:
            word = starts[0]
            is_in_word = starts.count(word) == size
            if is_in_word and min(ends) > word:
                return [word] * len(new)
        return _spread(self[start:end], new)

    def _written(self, m: re.Match[str], new: str) -> tuple[list[int], list[int]]:
        start, end = m.span()
        words = self.words_of(start, end, new)
        return _spans(words)

    def places(self, sounds: Callable[[str], bool]) -> tuple[range, ...]:
        """Where the characters of each word stand that sound. A word without any has an empty
        range."""
        starts: dict[int, int] = {}
        ends: dict[int, int] = {}
        for at, (c, word) in enumerate(zip(self.text, self.words, strict=True)):
            if word != NO_WORD and sounds(c):
                starts.setdefault(word, at)
                ends[word] = at + 1
        num_words = max(starts, default=-1) + 1
        places = [range(0)] * num_words
        for word, start in starts.items():
            places[word] = range(start, ends[word])
        return tuple(places)


def _spans(words: list[int]) -> tuple[list[int], list[int]]:
    """The first word of each character, and the one behind its last. NO_WORD (-1) becomes an empty
    span."""
    ends = [word + 1 for word in words]
    starts = words
    if NO_WORD in words:
        starts = [0 if word == NO_WORD else word for word in words]
    return starts, ends


def is_sound(sign: str) -> bool:
    """Whether a phoneme or a character is spoken: neither white space nor punctuation. Stress marks
    are spoken."""
    category = unicodedata.category(sign)
    return category[0] not in "PZ"


def _spread(old: Trace, new: str) -> list[int]:
    """The words from which the characters of `new` came, which replaces `old`."""
    old_words = old.words
    present = dict.fromkeys(old_words)
    present.pop(NO_WORD, None)
    old_owners = list(present)
    size = len(new)
    if not old_owners:
        return [NO_WORD] * size
    if len(old_owners) == 1:
        return old_owners * size

    matches = list(WORD.finditer(new))
    if len(matches) < len(old_owners):  # letters by themselves are one word of the dictionary
        return [old_owners[at * len(old_owners) // size] for at in range(size)]

    before: list[str] = []
    sources: list[int] = []
    for m in WORD.finditer(old.text):
        source = old_words[m.start()]
        if source == NO_WORD:
            continue
        tokens = _read_as(_plain(m[0]), new)
        before += tokens
        sources += [source] * len(tokens)

    after = [_plain(m[0]) for m in matches]
    owners = _owners(before, sources, after)
    words = [NO_WORD] * size
    for m, owner in zip(matches, owners, strict=True):
        start, end = m.span()
        words[start:end] = [owner] * (end - start)
    return words


def _plain(token: str) -> str:
    folded = token.casefold()
    return "".join(filter(str.isalnum, folded))


def _read_as(token: str, new: str) -> list[str]:
    """A token, or its letters where `new` has them one by one: "pm" where it has "P M"."""
    if token and " ".join(token.upper()) in new:
        return list(token)
    return [token]


def _owners(before: list[str], sources: list[int], after: list[str]) -> list[int]:
    """Find which of `sources` each of the tokens `after` came from: those that stayed, and in order
    between them."""
    owners: list[int] = []
    matcher = SequenceMatcher(None, before, after, autojunk=False)
    for kind, start, end, new_start, new_end in matcher.get_opcodes():
        replaced = sources[start:end]
        size = new_end - new_start
        if kind == "equal":
            owners += replaced
        elif replaced:
            owners += [replaced[at * len(replaced) // size] for at in range(size)]
        else:
            last = owners[-1] if owners else sources[0]
            owners += [last] * size
    return owners
