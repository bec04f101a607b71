"""Text as people paste it: pasted.txt has checked pairs of what is given and which words are spoken."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from stentor.text.segments import Reading
from tests.helpers.english import PHONEMES

KINDS = [
    "characters",
    "html",
    "markdown",
    "tables",
    "formulas",
    "notes",
    "cut words",
    "lines",
    "pause marks",
]
Pair = tuple[str, str, str | None]


def pairs() -> dict[str, list[Pair]]:
    pairs_by_kind: dict[str, list[Pair]] = {}
    for line in Path(__file__).with_name("pasted.txt").read_text(encoding="utf-8").splitlines():
        if line.startswith("[") and line.endswith("]"):
            pairs_by_kind[line.strip("[]")] = section = []
        elif " => " in line and not line.startswith("# "):
            pasted, spoken, *plain = line.split(" => ")
            pasted = re.sub(
                r"\\(u[0-9a-f]{4}|r)",
                lambda m: "\r" if m[1] == "r" else chr(int(m[1][1:], 16)),
                pasted,
            )
            section.append((pasted.replace("⏎", "\n"), spoken, plain[0] if plain else None))
    return pairs_by_kind


PAIRS = pairs()


def sounds(text: str, phonemes: bool = True) -> str:
    """Text that the built-in voice reads, without pauses."""
    cut = Reading(phonemes=phonemes).segments(text, 400, "sentence")
    return " ".join(re.sub(r"[.,;:!?]", " ", " ".join(PHONEMES(s.spoken) for s in cut)).split())


def words(text: str) -> list[str]:
    """Words of a text, without marks at their edges."""
    stripped = (w.strip("“”‘\"'.,;:!?—–-()") for w in text.casefold().replace("’", "'").split())
    return [w for w in stripped if w]


def plain(text: str) -> str:
    return " ".join(s.spoken for s in Reading().segments(text, 400, "auto"))


@pytest.mark.parametrize("kind", PAIRS)
def test_the_voice_speaks_the_words_of_a_pasted_text(kind: str) -> None:
    wrong = []
    for pasted, spoken, _ in PAIRS[kind]:
        got, want = sounds(pasted), sounds(spoken)
        if got != want:
            wrong.append(f"{pasted!r}: {plain(pasted)!r}, not {spoken!r}: {got} / {want}")
    assert wrong == []


@pytest.mark.parametrize("kind", KINDS)
def test_families_without_a_front_end_get_plain_text(kind: str) -> None:
    wrong = []
    for pasted, spoken, unread in PAIRS[kind]:
        if words(plain(pasted)) != words(unread or spoken):
            wrong.append(f"{pasted!r}: {plain(pasted)!r}, not {unread or spoken!r}")
    assert wrong == []


@pytest.mark.parametrize("kind", PAIRS)
def test_every_word_keeps_its_place_in_the_given_text(kind: str) -> None:
    for pasted, _, _ in PAIRS[kind]:
        at = 0
        for segment in Reading(phonemes=True, dashes=True).segments(pasted, 400, "sentence"):
            assert at <= segment.start < segment.end <= len(pasted), pasted
            for word in segment.words:
                assert at <= word.start < word.end <= segment.end, (pasted, word)
                letters = [c for c in word.text.casefold() if c.isalnum()]
                original = pasted[word.start : word.end].casefold()
                if (
                    "&" not in original
                    and "ﬁ" not in original
                    and "ﬂ" not in original
                    and "\\" not in original
                    and "$" not in original
                ):
                    assert not letters or letters[0] in original or not original.isascii(), (
                        pasted,
                        word,
                    )
                at = word.start


def test_every_kind_has_pairs() -> None:
    assert set(KINDS) <= set(PAIRS)
    assert min(map(len, PAIRS.values())) >= 10
    assert sum(map(len, PAIRS.values())) >= 400
