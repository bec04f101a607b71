"""Keys of a prompt's pages, and what is left of it behind them."""

from __future__ import annotations

import numpy as np
import pytest

from stentor.engine.running.prefill_batch import Piece
from stentor.engine.sequence_maker import prefix_keys
from stentor.models.base import Prompt
from stentor.models.info import Adapter


def prompt(
    tokens: list[int],
    frame_at: list[int] | None = None,
    frames: list[int] | None = None,
    voice: str = "",
) -> Prompt:
    at = np.array(frame_at or [], np.int64)
    given = np.array(frames or [], np.int64)[:, None]
    return Prompt({"token": np.array(tokens)}, given, at, {}, 8, 0, given[:0], voice)


def test_prompts_have_the_keys_of_what_they_begin_with_in_common():
    a, b = (prefix_keys(prompt([*range(10), *end]), 4) for end in ([1, 2, 3], [1, 7, 3]))
    assert len(a) == len(b) == 3
    assert a[:2] == b[:2]
    assert a[2] != b[2]
    assert len(set(a)) == 3


def test_a_page_is_known_by_all_that_stands_before_it():
    a, b = (prefix_keys(prompt([first, 0, 5, 5]), 2) for first in (1, 2))
    assert a[1] != b[1]


@pytest.mark.parametrize(
    ("frame_at", "voice", "same"),
    [([2, 3], "a", 2), ([2, 3], "b", 0), ([2], "a", 1), ([1, 3], "a", 0)],
    ids=["equal", "another voice", "one less", "another place"],
)
def test_the_voice_and_the_places_of_its_frames_are_part_of_the_content(
    frame_at: list[int], voice: str, same: int
):
    want = prefix_keys(prompt([0] * 5, [2, 3], [7, 8], "a"), 2)
    got = prefix_keys(prompt([0] * 5, frame_at, [7, 8][: len(frame_at)], voice), 2)
    assert [a == b for a, b in zip(want, got, strict=True)] == [i < same for i in range(2)]


@pytest.mark.parametrize(
    ("positions", "tokens", "frame_at", "frames"),
    [
        (range(2, 6), [2, 3, 4, 5], [1, 3], [30, 50]),
        (range(3, 4), [3], [0], [30]),
        (range(4, 5), [4], [], []),
        (range(6, 9), [], [], []),
    ],
    ids=["the rest", "a frame alone", "between frames", "behind the end"],
)
def test_a_part_of_a_prompt_is_counted_from_where_it_begins(
    positions: range, tokens: list[int], frame_at: list[int], frames: list[int]
):
    part = Piece(0, prompt(list(range(6)), [1, 3, 5], [10, 30, 50]), positions, False)
    assert part.rows("token").tolist() == tokens
    assert part.frame_at.tolist() == frame_at
    assert part.frames[:, 0].tolist() == frames


def test_the_weights_of_the_adapter_are_part_of_the_content_and_their_slot_is_not():
    def keys(lora: Adapter | None) -> tuple[bytes, ...]:
        given = prompt([0] * 5)
        given.lora = lora
        return prefix_keys(given, 2)

    first, again = Adapter("a", 1, b"weights", "a"), Adapter("b", 2, b"weights", "b")
    other = Adapter("a", 1, b"other weights", "a")
    assert keys(first) == keys(again)
    assert not {*keys(first)} & {*keys(other)}
    assert not {*keys(first)} & {*keys(None)}


def test_pages_that_are_known_keep_their_keys_and_those_behind_them_tell_voices_apart():
    known = prefix_keys(prompt([0] * 4), 2)
    a, again, b = (prefix_keys(prompt([0] * 8, voice=voice), 2, known) for voice in ("a", "a", "b"))
    assert a == again
    assert a[:2] == b[:2] == known
    assert not {*a[2:]} & {*b[2:]}


def test_rows_of_zeros_are_told_from_each_other():
    def keys(a: list[float], b: list[float]) -> tuple[bytes, ...]:
        rows = {"a": np.array(a), "b": np.array(b)}
        return prefix_keys(
            Prompt(rows, np.zeros((0, 1)), np.zeros(0, np.int64), {}, 8, 0, np.zeros((0, 1))), 2
        )

    assert (
        len(
            {
                keys(*rows)
                for rows in (([0, 0], [0, 0]), ([1, 0], [0, 0]), ([0, 0], [1, 0]), ([0, 1], [0, 0]))
            }
        )
        == 4
    )
