"""The English front end: notations are read as people read them, and nothing that people type breaks it."""

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stentor.text import front_end, reads, unread
from stentor.text.english.notations import MAX_PARTS, MAX_WORD, WINDOW, spoken, windows
from stentor.text.english.numbers import cardinal, ordinal, year
from stentor.text.english.phonemes import plain_marks
from stentor.text.english.scripts import has_english
from stentor.text.trace import Trace
from tests.helpers.english import PHONEMES

READINGS = [
    ("It is 5:30pm.", "It is five thirty P M."),
    ("Dr. Smith lives on Main St.", "Doctor Smith lives on Main Street"),
    ("It cost $3.50.", "It cost three dollars and fifty cents."),
    ("on 3/4/2021", "on March fourth, twenty twenty-one"),
    ("on 2024-07-01", "on July first, twenty twenty-four"),
    ("1,234 men", "one thousand two hundred thirty-four men"),
    ("the 21st time", "the twenty-first time"),
    ("Henry VIII", "Henry the eighth"),
    ("Chapter IV", "Chapter four"),
    ("5°C outside", "five degrees Celsius outside"),
    ("10% off", "ten percent off"),
    ("version 2.3.1", "version two point three point one"),
    ("No. 7", "Number seven"),
    ("salt & pepper", "salt and pepper"),
    ("Smith, S-M-I-T-H", "Smith, S, M, I, T, H"),
    ("It says M A C K I E, Ann.", "It says M, A, C, K, I, E, Ann."),
    ("L-I-N-D-Q-V-I-S-T", "L, I, N, D, Q, V, I, S, T"),
    ("the F B I", "the F B I"),
    ("HTML", "HTML"),
    ("TCP/IP", "T C P I P"),
    ("J. R. R. Tolkien", "J R R Tolkien"),
    ("3.14", "three point one four"),
    ("1 km", "one kilometer"),
    ("2 km", "two kilometers"),
    ("1½ cups", "one and a half cups"),
    ("a naïve café in Łódź", "a naive cafe in Lodz"),
]


@pytest.mark.parametrize(("written", "read"), READINGS)
def test_notations_are_read_as_words(written: str, read: str):
    assert spoken(written).strip().rstrip(".") == read.rstrip(".")


def test_number_words():
    assert cardinal("305") == "three hundred five"
    assert ordinal("12") == "twelfth"
    assert [year(y) for y in ("1807", "2005", "1900")] == [
        "eighteen oh seven",
        "two thousand five",
        "nineteen hundred",
    ]


def test_plain_words_stay_as_they_are():
    text = "The birch canoe slid on the smooth planks."
    assert spoken(text) == text


@settings(max_examples=150, deadline=None)
@given(st.text(max_size=80))
def test_any_text_can_be_read(text: str):
    assert not any(c.isascii() and c.isdigit() for c in spoken(text))


def test_phonemes_of_known_and_unknown_words():
    assert PHONEMES("Hello there.") == "həlˈO ðˈɛɹ."
    assert PHONEMES("A blorfing snazzle.").count("ˈ") >= 2


@pytest.mark.parametrize(
    ("written", "read"),
    [
        ("həlˈO", "həlˈO."),
        ("“həlˈO,” hˌi sˈɛd.", "həlˈO, hˌi sˈɛd."),
        ("wˈAt — wˌʌt?", "wˈAt, wˌʌt?"),
        ("wˈɛl… nˈO...", "wˈɛl, nˈO."),
        ("jˈɛs (ɔɹ nˌɑt).", "jˈɛs, ɔɹ nˌɑt."),
        ("— nˈO?!", "nˈO?"),
        ("“…”", ""),
    ],
)
def test_only_marks_of_the_training_reach_the_voice(written: str, read: str):
    assert plain_marks(Trace.of(written)).text == read


@settings(max_examples=60, deadline=None)
@given(st.text(max_size=60))
def test_no_text_makes_signs_that_the_voice_never_read(text: str):
    phonemes = PHONEMES(text)
    assert phonemes == plain_marks(Trace.of(phonemes)).text
    assert (phonemes == "") == (not has_english(text))
    assert phonemes == "" or phonemes[-1] in ".?!"


@pytest.mark.parametrize("text", ["Привет", "qwrtz", "𝔘", "ɕ", "α", "ー"])
def test_what_is_no_english_word_is_spelled(text: str):
    assert any(c.isalpha() for c in PHONEMES(text))


@pytest.mark.parametrize(
    ("text", "read"),
    [
        *(
            (sign, False)
            for sign in (
                "…",
                "...",
                "😀 🎉",
                "—",
                "_",
                "***",
                "```",
                "你好。",
                "\u200b",
                "\x07",
                "، ؟",
                "===",
            )
        ),
        *(
            (text, True)
            for text in (
                "Hello.",
                "é",
                "1",
                "½",
                "&",
                "50%",
                "$",
                "Привет!",
                "안녕",
                "北京 is big",
                "😀 x",
            )
        ),
    ],
)
def test_signs_and_ideographs_alone_are_nothing_to_read(text: str, read: bool):
    """Emoji are left to the cutter, which puts a silence in their place. They are never described aloud."""
    assert reads("english-phonemes")(text) is read
    assert PHONEMES(text) or not read
    assert reads(None)(text) == any(c.isalnum() for c in text)


def test_only_white_space_is_empty():
    assert PHONEMES(" \n\u3000") == ""


NOTATIONS = ("{}", "${}", "£{}.99", "€{} million", "{}th", "{}%", "1 {}/4", "1/{}", "{}/{}", "version {}.1", "{}.{}.{}",
             "{}:30", "{}-{}", "{} km", "{}s", "-{}", "Chapter {}", "May {}", "{}-01-01", "1,{}", "No. {}")  # fmt: skip


@pytest.mark.parametrize("digits", [15, 16, 17, 40, 300])
def test_numbers_of_any_length_are_read_in_every_notation(digits: int):
    for number in ("9" * digits, "1" + "0" * (digits - 1), "0" * digits):
        for notation in NOTATIONS:
            words = spoken(notation.replace("{}", number))
            assert words, notation
            assert not any(c.isdigit() for c in words), notation


def test_an_unknown_front_end_is_named():
    with pytest.raises(ValueError, match="'klingon'"):
        front_end("klingon")


HOSTILE = [
    "q" * 9990,
    "1" * 9990,
    "a." * 4995,
    "a-" * 4995,
    "1," * 4995,
    "A." * 4995,
    "a/" * 4995,
    "1-" * 4995,
    "Aa " * 3330,
    " " * 9990 + "x",
    "* " * 4995,
]


@settings(max_examples=100, deadline=None)
@given(
    st.one_of(st.sampled_from(HOSTILE), st.text(max_size=3000), st.text("ab1.-, ", max_size=3000))
)
def test_rules_and_dictionary_see_bounded_parts_of_any_text(text: str):
    parts = [part.text for part in windows(Trace.of(text))]
    assert all(0 < len(part) <= WINDOW for part in parts)
    words = [word for part in parts for word in part.split(" ")]
    assert all(0 < len(word) <= MAX_WORD for word in words)
    assert all(len(re.findall(r"[^\W_]+[^\w\s]", word)) <= MAX_PARTS for word in words)
    assert "".join(words) == "".join(text.split())


def test_a_long_text_is_cut_behind_a_sentence():
    text = "The birch canoe slid on the smooth planks, said Dr. Smith. " * 20
    parts = [part.text for part in windows(Trace.of(text))]
    assert len(parts) > 2
    assert all(part.endswith("Smith.") for part in parts)


def test_reading_stops_where_the_check_says_so():
    class GoneError(Exception):
        pass

    def check():
        checked.append(1)
        if len(checked) == 3:
            raise GoneError

    checked: list[int] = []
    with pytest.raises(GoneError):
        PHONEMES("blorfing snazzle " * 500, check)
    assert len(checked) == 3


@pytest.mark.parametrize(
    ("text", "read", "left_out"),
    [
        ("Hello 你好 world", "Hello world", ["你好"]),
        ("私は学生です and 東京タワー", "and", ["私は学生です", "東京タワー"]),
        ("مرحبا بك, friend", ", friend", ["مرحبا بك"]),
        ("נמל and ท่าเรือ", "and", ["נמל", "ท่าเรือ"]),
        ("Москва, 안녕, かな and α", "Moskva, annyeong, kana and alpha", []),
        ("room १२", "room twelve", []),
    ],
)
def test_scripts_that_english_has_no_sounds_for_are_left_out(
    text: str, read: str, left_out: list[str]
):
    assert PHONEMES(text) == PHONEMES(read)
    assert re.findall(unread("english-phonemes"), text) == left_out
    assert unread(None) == unread("other")
    assert not re.findall(unread(None), text)
