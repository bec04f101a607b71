"""The list of six kinds and its halves: no training text is made from it, and a text stays in its half."""

from __future__ import annotations

from pathlib import Path

import pytest

from training.halves import HALVES, half, kinds, spreads
from training.texts import evaluation_texts

LIST = Path(__file__).parents[2] / "training" / "evaluation" / "kinds.txt"


def test_the_list_has_fifty_sentences_of_each_of_six_kinds_and_none_twice() -> None:
    found = kinds(LIST)
    assert list(found) == ["plain", "questions", "dialogue", "names", "numbers", "clusters"]
    assert [len(lines) for lines in found.values()] == [50] * 6
    assert len({line.lower() for lines in found.values() for line in lines}) == 300
    assert all(
        line.isascii() and not any(c.isdigit() for c in line)
        for lines in found.values()
        for line in lines
    )
    assert {line for lines in found.values() for line in lines} <= set(evaluation_texts())


def test_halves_are_equal_and_share_nothing() -> None:
    for lines in kinds(LIST).values():
        one, other = (half(lines, name) for name in HALVES)
        assert len(one) == len(other) == 25
        assert sorted(one + other) == sorted(lines)


def test_the_order_of_a_list_moves_no_sentence_to_the_other_half() -> None:
    lines = kinds(LIST)["plain"]
    assert set(half(lines[::-1], "release")) == set(half(lines, "release"))
    assert half(lines, "choosing")[0] == "The harbor was quiet before the first ferry arrived."


def test_spreads_are_of_seeds_and_of_all_kinds_together() -> None:
    found = {
        f"{kind}, choosing, seed {seed}": {"wer": wer}
        for kind, seed, wer in [("a", 1, 0.01), ("a", 2, 0.03), ("b", 1, 0.03), ("b", 2, 0.05)]
    }
    made = spreads({**found, "digits, seed 1": {"faults": 3}})
    assert made["a, choosing"] == {"wer": pytest.approx(0.02), "least": 0.01, "most": 0.03}
    assert made["mean"] == {
        "wer": pytest.approx(0.03),
        "least": pytest.approx(0.02),
        "most": pytest.approx(0.04),
    }
