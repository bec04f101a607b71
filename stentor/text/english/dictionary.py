"""The dictionaries of `sanotts`, of which a word's entry is read at its first use.

`sanotts` makes and checks all entries, in two spellings each, when it starts. That takes half a
second and 30 MB.
"""

from __future__ import annotations

import json
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

Readings = dict[str, str | None]
"""Phonemes by part of speech and by DEFAULT."""
Entry = str | Readings | None
"""Phonemes of a word, or its readings."""
KEPT = 8192
"""Words whose entries, or that they have none, are remembered."""
BLOCK = 1024
"""Bytes that are searched from end to end. More are halved."""
_ENDINGS = ("'s", "’s", "s", "es", "d", "ed", "ing", "ly", "er", "ers", "ness")
_ENTRY = b'\n  "'  # in front of a word, between it and its entry, behind the last
_VALUE = b'": '
_END = b"\n}"


def read_entries(file: Path) -> bytes:
    """A JSON object of words as `Entries` reads it: one entry after the other in the order of the
    words, each on a line of its own. The files of `sanotts` are written so."""
    data = file.read_bytes()
    if data.startswith(b"{" + _ENTRY) and data.endswith(_END):
        return data
    return json.dumps(json.loads(data), indent=2, sort_keys=True, ensure_ascii=False).encode()


class Entries:
    """A JSON object of words, of which an entry is read at its word's first use."""

    def __init__(self, data: bytes) -> None:
        """data: as `read_entries` has it."""
        self._data = data

    def find(self, word: str) -> Entry:
        """The entry of a word as it is spelled there. None if there is none."""
        key_bytes = word.encode(errors="surrogatepass")
        if b'"' in key_bytes:
            return None
        start, end = self._around(key_bytes)
        key = _ENTRY + key_bytes + _VALUE
        at = self._data.find(key, start, end)
        if at < 0:
            return None
        return self._value(at + len(key))

    def _around(self, wanted: bytes) -> tuple[int, int]:
        """The bytes between which a word's entry is, if it has one: halved until they are few."""
        data = self._data
        start = 0
        end = len(data)
        while end - start > BLOCK:
            middle = data.find(_ENTRY, (start + end) // 2, end)
            if middle < 0:
                return start, end
            at = middle + len(_ENTRY)
            if data[at : data.index(b'"', at)] <= wanted:
                start = middle
            else:
                end = middle
        return start, end

    def _value(self, start: int) -> Entry:
        """The entry whose value starts there."""
        end = self._data.find(_ENTRY, start)
        value: Entry = json.loads(
            self._data[start : end if end >= 0 else -len(_END)].removesuffix(b",")
        )
        return value


class Dictionary(dict[str, Entry]):
    """Entries of a file. A word that is not there may be there in small letters or with a capital.
    As a dict it holds what was added, which goes before the file's."""

    def __init__(self, file: Path) -> None:
        self._find = lru_cache(KEPT)(Entries(read_entries(file)).find)

    def stored(self, word: str) -> Entry:
        """The file's entry of a word, in the spellings above. None if there is none."""
        entry = self._find(word)
        small = word.lower()
        capital = word.capitalize()
        if entry is not None or len(word) < 2:
            return entry
        if word != small and word == small.capitalize():
            return self._find(small)
        if word == small and word != capital:
            return self._find(capital)
        return None

    def __missing__(self, word: str) -> Entry:
        entry = self.stored(word)
        if entry is None:
            raise KeyError(word)
        return entry

    def __contains__(self, word: object) -> bool:
        return super().__contains__(word) or (
            isinstance(word, str) and self.stored(word) is not None
        )

    def get(self, word: str, default: Any = None) -> Any:
        """The entry of a word, `default` without one."""
        try:
            return self[word]
        except KeyError:
            return default

    def readings(self, word: str) -> Readings:
        """The file's phonemes of a word by part of speech. Empty where they do not depend on it."""
        entry = self.stored(word)
        if isinstance(entry, dict):
            return entry
        return {}


@cache
def _dictionaries() -> tuple[Dictionary, Dictionary]:
    from sanotts.nano_g2p import GOLD_PATH, SILVER_PATH

    return Dictionary(GOLD_PATH), Dictionary(SILVER_PATH)


def is_word(word: str) -> bool:
    """Whether a dictionary has a word, or it without an ending."""
    small = word.lower()
    stems = [
        small,
        *(
            small.removesuffix(end)
            for end in _ENDINGS
            if small.endswith(end) and len(small) > len(end) + 2
        ),
    ]
    return any(stem in words for stem in stems for words in _dictionaries())
