"""Voices of Kokoro: tables of styles, one for each length of a text, and what their names mean."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

import numpy as np

from stentor.errors import CheckpointError
from stentor.models.kokoro.tokenizer import MAX_SIGNS
from stentor.text.voice_mix import parse_mix

Read = Callable[[], np.ndarray]

FOLDER = "voices"
STYLE = 256  # numbers of a style: half for the decoder, half for the prosody
DEFAULT = "af_heart"

LANGUAGES = {
    "a": "english",
    "b": "british english",
    "e": "spanish",
    "f": "french",
    "h": "hindi",
    "i": "italian",
    "j": "japanese",
    "p": "portuguese",
    "z": "chinese",
}
"""Languages by the first letter of a voice's name."""
_ACCENTS = {
    **{letter: language.capitalize() for letter, language in LANGUAGES.items()},
    "a": "American",
    "b": "British",
    "p": "Brazilian",
}
_GENDERS = {"f": "woman", "m": "man"}


class Voices:
    """The style tables of a checkpoint, each read when it is first used."""

    def __init__(self, readers: Mapping[str, Read], source: str) -> None:
        """readers: read each voice's table [510, 256]. source: of the voices, for errors.
        CheckpointError if there are none."""
        if not readers:
            raise CheckpointError(f"{source} has no style tables in {FOLDER}/")
        self._readers = readers
        self._tables: dict[str, np.ndarray] = {}

    @property
    def names(self) -> tuple[str, ...]:
        """All names, the default voice first."""
        return tuple(sorted(self._readers, key=lambda name: (name != DEFAULT, name)))

    def style(self, voice: str, length: int) -> np.ndarray:
        """The style of a voice, or of a mix, for a text of `length` signs: float32 [256]."""
        mixed = np.zeros(STYLE, np.float32)
        parts = parse_mix(voice)
        total = sum(weight for _, weight in parts)
        for name, weight in parts:
            mixed += np.float32(weight / total) * self._table(name)[length - 1]
        return mixed

    def _table(self, name: str) -> np.ndarray:
        """float32 [510, 256]."""
        if name not in self._tables:
            self._tables[name] = self._readers[name]()
        return self._tables[name]


def of_folder(folder: Path) -> Voices:
    """The voices of a folder with little-endian float32 tables, `voices/*.bin`."""
    files = sorted((folder / FOLDER).glob("*.bin"))
    readers = {file.stem: partial(_read_table, file) for file in files}
    return Voices(readers, str(folder))


def _read_table(file: Path) -> np.ndarray:
    try:
        return checked_table(np.fromfile(file, "<f4"), file)
    except OSError as e:
        raise CheckpointError(f"{file} cannot be read: {e}") from None


def checked_table(table: np.ndarray, file: Path) -> np.ndarray:
    """The styles of one voice, float32 [510, 256], by the length of the text. CheckpointError if
    these numbers are something else."""
    if table.size != MAX_SIGNS * STYLE or not np.isfinite(table).all():
        raise CheckpointError(f"{file} is no table of {MAX_SIGNS} styles of {STYLE} numbers")
    return table.reshape(MAX_SIGNS, STYLE).astype(np.float32, copy=False)


def language_of(voice: str) -> str:
    """The language of a voice, or of the first one of a mix. English where its name has none."""
    first, _ = parse_mix(voice)[0]
    return LANGUAGES.get(first[:1], LANGUAGES["a"])


def descriptions(names: tuple[str, ...]) -> Mapping[str, str]:
    """Descriptions by name: "af_heart" is an American woman."""
    return {
        name: f"{_ACCENTS[name[0]]} {_GENDERS[name[1]]}"
        for name in names
        if name[2:3] == "_" and name[0] in _ACCENTS and name[1] in _GENDERS
    }
