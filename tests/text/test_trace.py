"""Tracing of each sign that is read to the word of the text that it came from."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stentor.text.segments import Reading
from stentor.text.trace import NO_WORD, Trace, is_sound
from tests.helpers.english import FRONT_END, PHONEMES


def read(text: str) -> list[tuple[str, str]]:
    """Each word that is spoken, and what is read for it."""
    found = FRONT_END(text)
    words = text.split()
    return [
        (words[i], found.text[at.start : at.stop])
        for i, at in enumerate(found.places(is_sound))
        if at
    ]


def words_of(trace: Trace) -> list[str]:
    """The characters of each word, in order."""
    return [
        "".join(c for c, w in zip(trace.text, trace.words, strict=True) if w == i) for i in range(9)
    ]


def test_words_are_cut_at_white_space():
    trace = Trace.of(" a bc\n d")
    assert trace.words == [NO_WORD, 0, NO_WORD, 1, 1, NO_WORD, NO_WORD, 2]


@pytest.mark.parametrize(
    ("text", "pattern", "new", "owned"),
    [
        ("pay $5 now", r"\$(\d)", r"\1 dollars", ["pay", "5 dollars", "now"]),
        ("5 kg of it", r"5 kg", "five kilograms", ["five", "kilograms", "of", "it"]),
        ("$5 million", r".+", "five million dollars", ["five", "milliondollars"]),
        ("on May 5, then", r"May 5", "May fifth", ["on", "May", "fifth,", "then"]),
        ("A W S", r".+", "A.W.S", ["A.", "W.", "S"]),
        ("6 p.m.", r".+", "six P M", ["six", "PM"]),
        ("so -- what", r"--", " — ", ["so", " — ", "what"]),
        ("a, b", r"x*", "", ["a,", "b"]),
    ],
)
def test_what_replaces_words_is_theirs(text: str, pattern: str, new: str, owned: list[str]):
    changed = Trace.of(text).sub(re.compile(pattern), new)
    assert changed.text == re.sub(pattern, new, text)
    assert [w for w in words_of(changed) if w] == owned


@settings(max_examples=40, deadline=None)
@given(st.text(max_size=60))
def test_every_sign_has_a_word_or_none_and_words_stay_in_order(text: str):
    found = FRONT_END(text)
    assert len(found.words) == len(found.text)
    assert all(NO_WORD <= w < len(text.split()) for w in found.words)
    starts = [place.start for place in found.places(is_sound) if place]
    assert starts == sorted(starts)


@pytest.mark.parametrize(
    ("text", "spoken"),
    [
        ("Call 555-0132 now.", ["call", "five five five, zero one three two", "now"]),
        ("It costs $3.50 — really!", ["it", "costs", "three dollars and fifty cents", "really"]),
        (
            "At 10:30 on 5/12/2024, okay?",
            ["at", "ten thirty", "on", "May twelfth twenty twenty-four", "okay"],
        ),
        ("An FBI and NASA", ["an", "FBI", "and", "NASA"]),
        ("naïve “café”\n— Привет", ["naive", "cafe", "Privet"]),
    ],
)
def test_a_words_phonemes_are_those_of_what_is_spoken_for_it(text: str, spoken: list[str]):
    found = read(text)
    assert len(found) == len(spoken)
    for (word, got), said in zip(found, spoken, strict=True):
        want = re.sub(r"[ˈˌ.,?!]", "", PHONEMES(said))
        assert re.sub(r"[ˈˌ.,?!]", "", got).split() == want.split(), word


@pytest.mark.parametrize(
    "text", ["From 5 a.m. to 6 p.m.", "At 4 p.m. PT today", "Call A W S.", "He works at the F B I."]
)
def test_letters_that_end_a_sentence_have_a_place_for_each_word(text: str):
    assert [word for word, _ in read(text)] == text.split()


def test_a_dash_splits_words_and_a_hyphen_does_not():
    text = "She—of all people—knew the well-known--man's -- name. London–Paris"
    want = [
        "She—",
        "of",
        "all",
        "people—",
        "knew",
        "the",
        "well-known--",
        "man's",
        "--",
        "name.",
        "London–Paris",
    ]
    segments = Reading(phonemes=True).segments(text, 400, "none")
    assert [w.text for s in segments for w in s.words] == want
    places = FRONT_END(text).places(is_sound)
    assert [bool(place) for place in places] == [word != "--" for word in want]


def test_phonemes_in_a_text_are_those_of_their_word():
    assert read("Go to [New_York](/nˌu_jˈɔɹk/), now.")[2] == (
        "[New_York](/nˌu_jˈɔɹk/),",
        "nˌu jˈɔɹk",
    )
