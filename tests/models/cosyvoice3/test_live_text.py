"""Feeding of a text that goes on, and when codes are drawn, by the rule of the original."""

from __future__ import annotations

import numpy as np
import pytest

from stentor.errors import InvalidRequest
from stentor.models.cosyvoice3.builder import dummy_ids
from stentor.models.cosyvoice3.live_text import (
    AGAIN,
    DRAW,
    FEED,
    LAST,
    NEXT,
    Arrivals,
    Mixing,
    encoded,
)
from tests.helpers.released import released

TASK = -7
CODES = [100 + i for i in range(20)]


def rows(first: int, *counts: int) -> list[int]:
    return [first + i for i in range(*counts)]


def fed(mixing: Mixing, tokens: range) -> list[list[tuple[int, int]]]:
    return [mixing.add(token) for token in tokens]


def test_five_tokens_go_before_fifteen_codes_and_the_last_code_of_the_voice_before_the_first_one_drawn():
    mixing = Mixing([1, 2], CODES)
    assert mixing.before() == []
    *none, first = fed(mixing, range(3, 6))
    assert none == [[], []]
    assert first == [(row, NEXT) for row in [1, 2, 3, 4, 5, *CODES[:15]]]
    *none, second = fed(mixing, range(6, 11))
    assert second == [*((row, NEXT) for row in [*range(6, 11), *CODES[15:19]]), (CODES[19], DRAW)]
    *none, third = fed(mixing, range(11, 16))
    assert none == [[]] * 4
    assert third == [*((row, NEXT) for row in range(11, 15)), (15, DRAW)]
    assert fed(mixing, range(16, 18)) == [[], []]
    assert mixing.end(TASK) == [(AGAIN, NEXT), (16, NEXT), (17, NEXT), (TASK, LAST)]


def test_a_token_that_arrives_brings_one_block_at_most():
    mixing = Mixing(list(range(12)), CODES[:15])
    assert mixing.before() == []  # the last codes wait for text
    first, second, third = fed(mixing, range(12, 15))
    assert [row for row, _ in first] == [0, 1, 2, 3, 4, *CODES[:15]]
    assert [row for row, _ in second] == [5, 6, 7, 8, 9]
    assert [row for row, _ in third] == [10, 11, 12, 13, 14]


def test_blocks_of_the_voice_alone_are_the_same_for_every_text():
    mixing = Mixing(list(range(12)), CODES)
    assert mixing.before() == [0, 1, 2, 3, 4, *CODES[:15]]


def test_a_text_that_ends_before_the_voice_drops_the_rest_of_its_codes():
    mixing = Mixing([1, 2], CODES)
    assert mixing.add(3) == []
    assert mixing.end(TASK) == [(1, NEXT), (2, NEXT), (3, NEXT), (TASK, LAST)]


def arrivals() -> Arrivals:
    return Arrivals(
        dummy_ids(released("cosyvoice3", "cosyvoice3").words).encode, Mixing([], CODES), TASK
    )


def test_values_do_not_depend_on_how_the_text_is_split():
    text = "Hello there, [laughter] this is [vocalized-noise] a text <strong>that</strong> goes on and on, 1 2 3."
    whole = arrivals()(text, True)
    for size in (1, 2, 7):
        pieces = arrivals()
        parts = [
            pieces(text[at : at + size], at + size >= len(text)) for at in range(0, len(text), size)
        ]
        assert np.concatenate(parts).tolist() == whole.tolist()


def test_nothing_follows_the_last_text_and_the_column_holds_so_much():
    ended = arrivals()
    ended("a", True)
    with pytest.raises(InvalidRequest, match="nothing may follow"):
        ended("b", False)
    with pytest.raises(InvalidRequest, match="too long for one request"):
        arrivals()("a " * FEED, True)


def test_a_value_is_a_row_and_what_follows_it():
    values = encoded([(5, DRAW), (AGAIN, NEXT), (300, LAST)])
    assert (values >> 2).tolist() == [5, AGAIN, 300]
    assert (values & 3).tolist() == [DRAW, NEXT, LAST]
