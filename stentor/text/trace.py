"""A text that is being rewritten, and the word of the original that each of its characters came
from."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from difflib import SequenceMatcher

NO_WORD = -1
Action = str | Callable[[re.Match[str]], str]
# No dash inside the first part ends a word. The group must not be possessive: Python 3.11.2, which
# Debian 12 has, matches such groups wrongly, and never leaves `finditer`.
WORD = re.compile(
    r"\S(?:[^\s—-]|—+(?![\w—])|(?<!\w)-+|-(?!-)|--+(?![\w-]))*"
    r"(?:—+|--+)?"
)
"""Text between white space, which ends behind a dash too: "it—went" is two words."""
_UNUSUAL_SPACE = re.compile(r"\s{2,}|[^\S ]")


@dataclass(frozen=True)
class Trace:
    """`words[i]` is the number of the word that `text[i]` came from. Words of the original are
    those of `WORD`."""

    text: str
    words: list[int]

    @classmethod
    def of(cls, text: str) -> Trace:
        """An original."""
        words = [NO_WORD] * len(text)
        for number, m in enumerate(WORD.finditer(text)):
            words[m.start() : m.end()] = [number] * len(m[0])
        return cls(text, words)

    @classmethod
    def joined(cls, parts: Iterable[Trace]) -> Trace:
        """Parts with a space between them."""
        texts = []
        words = []
        for part in parts:
            texts.append(part.text)
            words += [*part.words, NO_WORD]
        return cls(" ".join(texts), words[:-1])

    def __getitem__(self, part: slice) -> Trace:
        return Trace(self.text[part], self.words[part])

    def sub(self, pattern: re.Pattern[str], action: Action) -> Trace:
        """Rewrite as `pattern.sub`. What replaces several words is theirs in the same order."""
        texts: list[str] = []
        words: list[int] = []
        at = 0
        fixed = isinstance(action, str) and "\\" not in action
        for m in pattern.finditer(self.text):
            start, end = m.span()
            if callable(action):
                new = action(m)
            elif fixed:
                new = action
            else:
                new = m.expand(action)
            if new != m[0]:
                texts += (self.text[at:start], new)
                words += self.words[at:start]
                words += self.sources(start, end, new)
                at = end
        if texts:
            return Trace("".join(texts) + self.text[at:], words + self.words[at:])
        return self

    def each(self, rewrite: Callable[[str], str]) -> Trace:
        """Rewrite every word, and all between words, each by itself."""
        if rewrite(self.text) == self.text:
            return self
        return self.sub(re.compile(r"\S+|\s+"), lambda m: rewrite(m[0]))

    def translate(self, table: Mapping[int, str]) -> Trace:
        """With some characters replaced."""
        return self.each(lambda text: text.translate(table))

    def only(self, kept: Callable[[str], bool]) -> Trace:
        """The characters that are kept."""
        pairs = [(c, w) for c, w in zip(self.text, self.words, strict=True) if kept(c)]
        return Trace("".join(c for c, _ in pairs), [w for _, w in pairs])

    def strip(self, left: str | None = None, right: str | None = None) -> Trace:
        """Without those characters at its ends. None: without white space."""
        start = len(self.text) - len(self.text.lstrip(left))
        return self[start : max(start, len(self.text.rstrip(right)))]

    def spaced(self) -> Trace:
        """With a single space for all white space, and none at its ends."""
        return self.sub(_UNUSUAL_SPACE, " ").strip()

    def sources(self, start: int, end: int, new: str) -> list[int]:
        """The words from which the characters of `new` came, which a part of this text has
        become."""
        words = self.words[start:end]
        if words and words[0] == words[-1] != NO_WORD and len(set(words)) == 1:
            return [words[0]] * len(new)
        return _spread(self[start:end], new)

    def replaced(self, start: int, end: int, new: str) -> Trace:
        """A text that a part of this one has become."""
        return Trace(new, self.sources(start, end, new))

    def places(self, sounds: Callable[[str], bool]) -> tuple[range, ...]:
        """Where the characters of each word stand that sound. A word without any has an empty
        range."""
        spans: dict[int, tuple[int, int]] = {}
        for at, (c, word) in enumerate(zip(self.text, self.words, strict=True)):
            if word != NO_WORD and sounds(c):
                spans[word] = (spans.get(word, (at, at))[0], at + 1)
        return tuple(range(*spans.get(word, (0, 0))) for word in range(max(spans, default=-1) + 1))


def is_sound(sign: str) -> bool:
    """Whether a phoneme or a character is spoken: neither white space nor punctuation. Stress marks
    are spoken."""
    return unicodedata.category(sign)[0] not in "PZ"


def _spread(old: Trace, new: str) -> list[int]:
    """The words from which the characters of `new` came, which replaces `old`."""
    old_owners = [w for w in dict.fromkeys(old.words) if w != NO_WORD]
    if len(old_owners) < 2 or not new:
        return [old_owners[0] if old_owners else NO_WORD] * len(new)
    tokens = [
        (token, old.words[m.start()]) for m in _tokens(old) for token in _read_as(_plain(m[0]), new)
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


def _tokens(old: Trace) -> list[re.Match[str]]:
    return [m for m in WORD.finditer(old.text) if old.words[m.start()] != NO_WORD]


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
