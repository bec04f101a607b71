"""A user's own pronunciations: words to phonemes, or to other words."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from stentor.arguments.untrusted import Unreadable, read_bytes
from stentor.errors import InvalidRequest

MAX_ENTRIES = 10_000
MAX_WORD = 80
MAX_READING = 200
MAX_BYTES = 2**20
_TOKEN = re.compile(r"[^\s,;:!?()\"“”\[\]<>\U000f0000-\U0010ffff]+")  # private characters are marks
_EDGES = ".'’*_"


class Lexicon:
    """Words and their pronunciations: phonemes between slashes, or words. InvalidRequest("lexicon")
    names a wrong entry.

    A word in small letters is found in any case, another one as it is written.
    """

    def __init__(self, entries: Mapping[object, object]) -> None:
        if len(entries) > MAX_ENTRIES:
            raise InvalidRequest(
                "lexicon", f"has {len(entries)} words, at most {MAX_ENTRIES} are allowed"
            )
        self._readings = dict(_checked(word, reading) for word, reading in entries.items())

    @classmethod
    def read(cls, path: str | Path) -> Lexicon:
        """A YAML file with one mapping: `Siobhan: /ʃəvˈɔn/`, `SQL: sequel`."""
        import yaml

        from stentor.arguments.untrusted_yaml import parse_yaml

        try:
            # BaseLoader makes nothing but strings, so that "no" and "1e3" stay words
            entries = parse_yaml(read_bytes(Path(path), MAX_BYTES), yaml.BaseLoader)
        except Unreadable as e:
            raise InvalidRequest("lexicon", f"{str(path)!r} {e}") from None
        if not isinstance(entries, dict):
            raise InvalidRequest(
                "lexicon", f"{str(path)!r} must hold a mapping of words to readings"
            )
        return cls(entries)

    @classmethod
    def of(cls, given: Lexicon | Mapping[object, object] | str | Path | None) -> Lexicon | None:
        """A lexicon, from itself, a mapping or the path of a file."""
        if given is None or isinstance(given, Lexicon):
            return given
        if isinstance(given, Mapping):
            return cls(given)
        return cls.read(given)

    def reading(self, word: str) -> str | None:
        """A word's pronunciation: "/phonemes/" or words. None: as it is written."""
        return self._readings.get(word) or self._readings.get(word.lower())

    def words(self, text: str) -> list[tuple[int, int, str]]:
        """(start, end, reading) of the words in a text that it holds, in order."""
        words = []
        for m in _TOKEN.finditer(text):
            for start, end in _within(m):
                reading = self.reading(text[start:end])
                if reading is not None:
                    words.append((start, end, reading))
                    break
        return words


def _within(m: re.Match[str]) -> list[tuple[int, int]]:
    """The token, without marks at its edges, and without the 's of an owner."""
    token = m[0]
    start = m.start()
    end = m.end()
    word_start = start + len(token) - len(token.lstrip(_EDGES))
    word_end = max(word_start, start + len(token.rstrip(_EDGES)))
    if m.string[word_start:word_end].endswith(("'s", "’s")):
        owner_end = word_end - 2
    else:
        owner_end = word_end
    return [(start, end), (word_start, word_end), (word_start, owner_end)]


def _checked(word: object, reading: object) -> tuple[str, str]:
    if not isinstance(word, str) or not 1 <= len(word) <= MAX_WORD or not _TOKEN.fullmatch(word):
        raise InvalidRequest(
            "lexicon", f"{str(word)[:MAX_WORD]!r} must be one word of at most {MAX_WORD} characters"
        )
    if (
        not isinstance(reading, str)
        or not 1 <= len(reading.strip()) <= MAX_READING
        or "\n" in reading.strip()
    ):
        raise InvalidRequest(
            "lexicon", f"the reading of {word!r} must be one line of 1 to {MAX_READING} characters"
        )
    return word, reading.strip()
