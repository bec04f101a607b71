"""The dictionaries of `sanotts`, which find a word with and without a capital without an entry for each.

`sanotts` makes and checks all those entries when it starts, which takes half a second and 30 MB.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from sanotts.nano_g2p import GOLD_PATH, SILVER_PATH, Lexicon, NanoG2P
from sanotts.nano_g2p import _NeuralFallback as Guesses

Entry = str | dict[str, Any] | None
"""Phonemes of a word, or phonemes by part of speech."""


class Dictionary(dict[str, Entry]):
    """Entries of a JSON file. A word that is not there may be there in small letters or with a capital. As a dict it
    holds what was added, which goes before the file's."""

    def __init__(self, file: Path) -> None:
        self._stored: dict[str, Entry] = json.loads(file.read_bytes())

    def _spelling(self, word: str) -> str | None:
        """The file's spelling of a word."""
        if word in self._stored:
            return word
        small = word.lower()
        if len(word) > 1 and small in self._stored and word == small.capitalize():
            return small
        capital = word.capitalize()
        return capital if len(word) > 1 and word == small and capital in self._stored else None

    def __missing__(self, word: str) -> Entry:
        spelling = self._spelling(word)
        if spelling is None:
            raise KeyError(word)
        return self._stored[spelling]

    def __contains__(self, word: object) -> bool:
        return super().__contains__(word) or (isinstance(word, str) and self._spelling(word) is not None)

    def get(self, word: str, default: Any = None) -> Any:
        """The entry of a word, `default` without one."""
        try:
            return self[word]
        except KeyError:
            return default

    def by_part(self) -> Iterator[tuple[str, dict[str, Any]]]:
        """Words of the file whose phonemes depend on the part of speech, in both spellings."""
        for word, entry in self._stored.items():
            if isinstance(entry, dict):
                yield from ((w, entry) for w in {word, word.capitalize(), word.lower()} if self.get(w) is entry)


def phonemizer() -> NanoG2P:
    """`sanotts` with these dictionaries: its own start would make and check all entries."""
    words, g2p = object.__new__(Lexicon), object.__new__(NanoG2P)
    words.golds, words.silvers = Dictionary(GOLD_PATH), Dictionary(SILVER_PATH)
    g2p.lexicon, g2p.unk, g2p.fallback = words, "", Guesses()
    return g2p
