"""Checked pairs of written and spoken text: readings.txt has more than 300, for every class of notation."""

# ruff: noqa: SIM905
import re
from pathlib import Path

import pytest

from stentor.text.cleanup import cleaned
from tests.helpers.english import PHONEMES

SENTENCES = Path(__file__).parents[2] / "training" / "test_sentences.txt"
CLASSES = (
    "numbers, ordinals, decimals, fractions, money, dates, years, times, phone, codes, units, temperatures, "
    "roman numerals, versions, scores, ranges, percent, abbreviations, acronyms, initialisms, e-mails, URLs, file names, "
    "code identifiers, math signs, hashtags, names, heteronyms, other scripts"
).split(", ")


def pairs() -> dict[str, list[tuple[str, str]]]:
    lines = Path(__file__).with_name("readings.txt").read_text(encoding="utf-8").splitlines()
    found: dict[str, list[tuple[str, str]]] = {}
    for line in lines:
        if line.startswith("["):
            name = line.strip("[]")
            found[name] = []
        elif " | " in line and not re.match(r"# ", line):
            written, _, spoken = line.partition(" | ")
            found[name].append((written, spoken))
    return found


PAIRS = pairs()


def without_pauses(phonemes: str) -> str:
    return " ".join(re.sub(r"[.,;:!?]", " ", phonemes).split())


def test_every_class_of_notation_has_pairs():
    assert list(PAIRS) == CLASSES
    assert min(len(found) for found in PAIRS.values()) >= 5
    assert sum(len(found) for found in PAIRS.values()) >= 300


@pytest.mark.parametrize("name", CLASSES)
def test_notations_of_a_class_are_read_as_people_read_them(name: str):
    wrong = []
    for written, spoken in PAIRS[name]:
        got = without_pauses(PHONEMES(written))
        want = spoken.strip("/") if spoken.startswith("/") else without_pauses(PHONEMES(spoken))
        if (want not in got) if spoken.startswith("/") else (want != got):
            wrong.append(f"{written} | {spoken}: {got} is not {want}")
    assert wrong == []


def test_plain_sentences_keep_the_phonemes_that_the_voice_was_trained_on():
    written = SENTENCES.read_text(encoding="utf-8").splitlines()
    phonemes = Path(__file__).with_name("phonemes.txt").read_text(encoding="utf-8").splitlines()
    assert [PHONEMES(sentence) for sentence in written if sentence] == phonemes


def test_capitals_of_a_whole_text_are_words():
    assert without_pauses(PHONEMES("TELL US WHO IT IS")) == without_pauses(
        PHONEMES("tell us who it is")
    )


def test_a_full_stop_of_an_abbreviation_ends_its_sentence():
    assert PHONEMES("He left the U.S. She stayed.").count(".") == 2
    assert PHONEMES("It is 5 p.m. She left.").count(".") == 2


@pytest.mark.parametrize(
    ("written", "spoken"),
    [
        ("He said...nothing.", "He said, nothing."),
        ("yes,no", "yes, no"),
        ("He left(early) today.", "He left, early, today."),
        ('print("hello")', "print, hello"),
        ("the item(s)", "the items"),
    ],
)
def test_a_mark_without_a_space_is_a_pause_too(written: str, spoken: str):
    assert PHONEMES(written) == PHONEMES(spoken)


@pytest.mark.parametrize(
    ("written", "spoken"),
    [
        ("I want:\n- a pear\n- two plums\n", "I want: a pear. two plums"),
        ("* a pear\n* two plums", "a pear. two plums"),
        ("1. a pear\n2. two plums", "one. a pear. two. two plums"),
        (
            "# A heading\nSome text.\n\n## Another\nMore text",
            "A heading. Some text. Another. More text",
        ),
        ("(a) Buy milk\n(b) Buy eggs", "(A) Buy milk. (B) Buy eggs"),
        ("a) first b) second", "(A) first, B, second"),
        ("Either a) go or b) stay.", "Either A, go or B, stay."),
        ("1) speed 2) cost (of 2)", "one, speed, two, cost, of two"),
        ("f(a) is 2", "f (A) is two"),
        ("a line that goes\non and on", "a line that goes on and on"),
    ],
)
def test_items_of_a_list_and_headings_are_sentences(written: str, spoken: str):
    assert PHONEMES(cleaned(written).text) == PHONEMES(spoken)


def test_a_guess_is_made_once_for_a_word():
    assert PHONEMES("blorfing " * 40).count("blˈ") == 40
