"""Names of people and places: names.txt has 300 by their syllables, which those that are read for them must have."""

from __future__ import annotations

import re
from pathlib import Path

from tests.helpers.english import FRONT_END, PHONEMES

VOWELS = re.compile("[AIOWYaiuæɐɑəɛɜɪɔʊʌᵊᵻ]")
SPELLED = re.compile("ˌ[^ ]*ˌ[^ ]*ˌ")


def names() -> list[tuple[int, str]]:
    lines = Path(__file__).with_name("names.txt").read_text(encoding="utf-8").splitlines()[1:]
    return [(int(count), name) for count, *found in map(str.split, lines) for name in found]


def test_names_have_their_syllables_and_a_stress() -> None:
    assert len({name for _, name in names()}) >= 300
    wrong = []
    for count, name in names():
        phonemes = PHONEMES(f"We met {name}.").split(" ", 2)[2]
        if (
            len(VOWELS.findall(phonemes)) != count
            or "ˈ" not in phonemes
            or SPELLED.search(phonemes)
        ):
            wrong.append(f"{name} {phonemes}")
    assert len(wrong) <= 0.02 * len(names()), wrong


def test_a_name_that_no_dictionary_has_gets_its_syllables() -> None:
    """Phonemes by the fallback for the same names, as if nobody had ever written them down."""
    guess = FRONT_END._pronounced.guess._guess
    wrong = [name for count, name in names() if len(VOWELS.findall(guess(name)[0] or "")) != count]
    assert len(wrong) <= 0.06 * len(names()), wrong
