"""The sentences that are made for training: what they must not share with the evaluation, and that they come out again."""

from __future__ import annotations

import itertools
import random
import re
from pathlib import Path

import pytest

from stentor.text.front_end import proceed
from stentor.text.trace import Trace
from tests.helpers.english import FRONT_END, PHONEMES
from training.grammar import Grammar, ordinal, read_lists
from training.sentences import FIRST_ID, held_out
from training.texts import (
    CLASSES,
    MOST_SYMBOLS,
    Checker,
    Overlap,
    evaluation_texts,
    joinable,
    new_sentences,
    vocabulary,
)
from training.tokenizer import SYMBOLS

BASE = [
    {"id": 1, "text": "The river froze before the first snow.", "src": "wn"},
    {"id": 2, "text": "He leaned his rifle against the wall of the barn.", "src": "wn"},
    {"id": 3, "text": "She said it was late.", "src": "web"},
    {
        "id": 4,
        "text": "They walked home along the quiet canal, and the lamps were lit.",
        "src": "web",
    },
    {"id": 5, "text": "My uncle collects old maps of the northern islands.", "src": "wn"},
    {"id": 15_300, "text": "This one is kept for validation.", "src": "wn"},
]
WORDS = [
    "river",
    "snow",
    "wall",
    "late",
    "canal",
    "lamp",
    "uncle",
    "island",
    "x-ray",
    "Paris",
    "of",
]
COUNTS = dict.fromkeys(CLASSES, 3)
FOLDER = Path(__file__).parents[2] / "training" / "evaluation"


def made(seed: int) -> list[dict[str, object]]:
    return new_sentences(BASE, WORDS, COUNTS, Checker(FRONT_END, Overlap(evaluation_texts())), seed)


@pytest.fixture(scope="module")
def rows() -> list[dict[str, object]]:
    return made(1)


def test_every_class_has_as_many_sentences_as_wanted_and_ids_go_on(rows):
    assert sorted(r["src"] for r in rows) == sorted(name for name in CLASSES for _ in range(3))
    assert [r["id"] for r in rows] == list(range(FIRST_ID, FIRST_ID + len(rows)))


def test_phonemes_are_those_that_serving_makes_and_fit_the_tokenizer(rows):
    assert all(r["phonemes"] == PHONEMES(r["text"]) for r in rows)
    assert all(
        set(r["phonemes"]) <= set(SYMBOLS) and len(r["phonemes"]) <= MOST_SYMBOLS for r in rows
    )


def test_a_seed_gives_the_same_sentences_again(rows):
    assert made(1) == rows
    assert {r["text"] for r in made(2)} != {r["text"] for r in rows}


def test_a_class_without_enough_different_sentences_is_refused():
    mute = Checker(
        lambda text, check=proceed: Trace.of(""), Overlap([])
    )  # nothing can be trained on
    with pytest.raises(ValueError, match="'names' has 0 sentences, 2 are wanted"):
        new_sentences(BASE, WORDS, {"names": 2}, mute, 1)


@pytest.mark.parametrize(
    ("text", "shared"),
    [
        ("Call 911!", True),  # whole, however it is written
        ("call nine one one", True),
        ("Please call nine one one now.", False),
        ("We know that a small brown dog sat on it.", True),  # six successive words
        ("A small brown dog sat down.", False),
        ("5, 5, 5, 0, 1, 3", True),  # digits count as they are spoken
        ("0132-555", False),
    ],
)
def test_texts_are_compared_with_the_evaluation_as_they_are_spoken(text, shared):
    assert (
        Overlap(["Call 911.", "A small brown dog sat on my hat.", "Ring 555-0132."])(text) is shared
    )


def test_validation_sentences_of_the_base_stand_in_no_new_sentence():
    assert "This one is kept for validation" not in joinable(BASE)
    assert "The river froze before the first snow" in joinable(BASE)
    assert [held_out(i) for i in (15_299, 15_300, 16_809, 20_000, 20_001, 20_050)] == [
        0,
        1,
        1,
        1,
        0,
        1,
    ]


def test_single_words_are_plain_words_of_the_dictionary():
    assert set(vocabulary(BASE, WORDS, random.Random(1))) == set(WORDS) - {"x-ray", "Paris", "of"}


def test_every_slot_of_the_grammars_can_be_filled():
    lists, rng = read_lists(), random.Random(1)
    for name, items in lists.items():
        for item in items:
            text = Grammar({**lists, name: [item]}, WORDS[:8], joinable(BASE), rng).sentence(name)
            assert not re.search(r"[{}*%_]{2}|\{", text), (name, item, text)


def test_articles_and_ordinals():
    grammar = Grammar({"S": ["a {w} and an NBA game"], "w": ["apple"]}, [], [], random.Random(1))
    assert grammar.sentence("S") == "An apple and an NBA game"
    assert Grammar({"S": ["it is an CEO, a unit, a FAQ"]}, [], [], random.Random(1)).sentence(
        "S"
    ) == ("It is a CEO, a unit, an FAQ")
    assert [ordinal(n) for n in (1, 2, 3, 11, 12, 21, 113)] == [
        "1st",
        "2nd",
        "3rd",
        "11th",
        "12th",
        "21st",
        "113th",
    ]


def test_patterns_repeat_digits_more_often_than_chance():
    grammar = Grammar({"S": ["{%####}"]}, [], [], random.Random(1))
    codes = [grammar.sentence("S") for _ in range(400)]
    repeats = sum(a == b for code in codes for a, b in itertools.pairwise(code)) / (3 * len(codes))
    assert 0.2 < repeats < 0.5
    assert {c for code in codes for c in code} == set("0123456789")


def test_the_lists_for_evaluation_share_nothing_with_each_other():
    for path in sorted(FOLDER.glob("*.txt")):
        own = [
            line
            for line in path.read_text(encoding="utf-8").splitlines()
            if line and not line.startswith("#")
        ]
        texts = [line.partition("\t")[0] for line in own]
        rest = [text for text in evaluation_texts() if text not in texts]
        assert (
            len(texts)
            == len(set(texts))
            == {"hard": 100, "digits": 300, "words": 60, "kinds": 300}[path.stem]
        )
        assert not any(map(Overlap(rest), texts))
