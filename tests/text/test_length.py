"""Long text is cut by how long it takes to speak, and no word of it is lost."""

from __future__ import annotations

import re

import pytest

from stentor.text.length import spoken_length
from stentor.text.segments import Reading
from stentor.text.sentences import split
from tests.helpers.english import PHONEMES

LIMIT = 400
KEY = "5083 1179 6240 8856 3391 7702 4618 9935 2054 8167 7349 1526".replace(" ", "") * 2
CODE = "".join("89ab0123cdef4567"[(i * 5 + i // 7) % 16] for i in range(300))
LONG = {
    "amounts": "It adds up to "
    + ", ".join(f"€{i * 1318 + 927:,}.{i % 90 + 10}" for i in range(9))
    + ".",
    "a key": f"Type {KEY} now.",
    "an address": f"Go to https://files.example.net/get?token={CODE} first.",
    "a row": ";".join(str(4000 + i * 977) for i in range(70)),
    "a table": "Sums: " + " ".join(f"{90 + i * 1409:,}" for i in range(50)),
    "capitals": "WORD " * 120,
    "initialisms": "BVN TRW XQZ " * 30,
    "letters without a vowel": "xkcdqwrtz " * 40,
    "a key in letters": "".join("aQzKpLmXwVtR"[(i * 7 + i // 5) % 12] for i in range(390)),
    "Chinese": "他们昨天晚上一起去了那家新开的饭店" * 20,
    "no spaces": "supercalifragilistic" * 60,
}


@pytest.mark.parametrize("name", LONG)
def test_no_piece_of_a_long_text_takes_longer_than_the_limit(name: str) -> None:
    pieces = Reading(phonemes=True, dashes=True).segments(LONG[name], LIMIT, "sentence")
    assert len(pieces) > 1
    for piece in pieces:
        assert spoken_length(piece.text) <= LIMIT


@pytest.mark.parametrize(
    "name", ["amounts", "a key", "an address", "a row", "a table", "initialisms"]
)
def test_digits_and_signs_become_no_more_phonemes_than_a_piece_may_have(name: str) -> None:
    for piece in Reading(phonemes=True, dashes=True).segments(LONG[name], LIMIT, "sentence"):
        assert len(PHONEMES(piece.spoken)) <= LIMIT


@pytest.mark.parametrize("name", LONG)
def test_pieces_of_a_long_text_hold_all_of_its_signs(name: str) -> None:
    text = LONG[name]
    pieces = split(text, LIMIT, "auto")
    assert "".join(p.text for p in pieces).replace(" ", "") == text.replace(" ", "")


def test_amounts_are_cut_behind_commas() -> None:
    pieces = split(LONG["amounts"], LIMIT, "sentence")
    assert all(p.text.endswith(",") for p in pieces[:-1])


def test_an_address_is_cut_between_its_groups() -> None:
    first = split("See " + "https://a.example.org/" + "path/to-some/page?x=1&" * 20, 200, "auto")[0]
    assert re.search(r"[/?&=-]$", first.text)


def test_a_number_is_cut_into_parts_of_the_same_length() -> None:
    sizes = [len(re.sub(r"\D", "", p.text)) for p in split(LONG["a key"], LIMIT, "auto")]
    assert len(sizes) > 1
    assert max(sizes) - min(sizes) <= 3


@pytest.mark.parametrize(
    ("text", "times"), [("7", 5), ("$", 5), ("語", 3), ("か", 2), ("한", 2), ("e", 1), (" ", 1)]
)
def test_what_takes_longer_than_a_letter_counts_more(text: str, times: int) -> None:
    assert spoken_length(text * 10) >= times * 10


def test_a_text_counts_at_least_its_characters() -> None:
    text = "e\u0301\u200b a\n"
    assert spoken_length(text) >= len(text)
