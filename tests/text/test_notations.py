"""Written forms and what a person says: notations.txt by kind, formulas.txt by command."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from stentor.text.cleanup.formulas import tables
from stentor.text.segments import Reading
from tests.helpers.english import PHONEMES

HERE = Path(__file__).parent


def rows(name: str) -> list[tuple[str, str]]:
    """The pairs of a file, split at the last bar."""
    lines = (HERE / name).read_text(encoding="utf-8").splitlines()
    return [
        tuple(line.rsplit(" | ", 1))  # type: ignore[misc]
        for line in lines
        if " | " in line and not line.startswith("# ")
    ]


def sounds(text: str) -> str:
    """Phonemes of the whole path without pauses and stress."""
    pieces = Reading(phonemes=True, dashes=True).segments(text, 400, "sentence")
    spoken = " ".join(PHONEMES(piece.spoken) for piece in pieces)
    return " ".join(re.sub("[ˈˌ.,;:!?]", "", spoken).split())


def written(text: str) -> str:
    """The text with its escapes: ⏎ for the end of a line, \\u and a number for a character."""
    text = re.sub(r"\\u([0-9a-f]{4})", lambda m: chr(int(m[1], 16)), text)
    return text.replace("⏎", "\n")


@pytest.mark.parametrize("pair", rows("notations.txt"), ids=lambda pair: pair[0][:40])
def test_a_notation_sounds_like_its_words(pair: tuple[str, str]) -> None:
    assert sounds(written(pair[0])) == sounds(pair[1])


@pytest.mark.parametrize("pair", rows("formulas.txt"), ids=lambda pair: pair[0][:40])
def test_a_formula_sounds_like_its_words(pair: tuple[str, str]) -> None:
    assert sounds(f"So ${pair[0]}$ here.") == sounds(f"So {pair[1]} here.")


def test_there_are_pairs_of_every_kind() -> None:
    assert len(rows("notations.txt")) + len(rows("formulas.txt")) >= 280


@pytest.mark.parametrize("kind", ["signs", "words", "around", "two", "large"])
def test_no_command_vanishes(kind: str) -> None:
    silent = [
        name
        for name, text in tables()[kind].items()
        if text != "{}" and sounds(f"So $\\{name}{{q}}{{r}} = 4$.") == sounds("So $q r = 4$.")
    ]
    assert silent == []
