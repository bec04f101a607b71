"""Keys of prompts in a known voice are those that hashing gives, whatever the last prompt in it was."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stentor.engine import known_prefixes
from stentor.engine.known_prefixes import KnownPrefixes
from stentor.engine.prefix import chained, frame_digests, prefix_keys
from stentor.models.base import Prompt
from stentor.models.lora import Adapter
from stentor.models.sparse_rows import SparseRows

PAGE = 4


def prompt(tokens: list[int], frame_at: list[int], frames: list[int], speaker: int = 0) -> Prompt:
    at, given = np.array(frame_at, np.int64), np.array(frames, np.int64)[:, None]
    rows = {"token": np.array(tokens), "voice": SparseRows(len(tokens), np.array([1]), np.array([[speaker]]))}
    return Prompt(rows, given, at, {}, 8, 0, given[:0])


@st.composite
def prompts(draw: st.DrawFn) -> Prompt:
    """Prompts of few values, so that many have beginnings in common, and the first and the last frame."""
    length = draw(st.integers(2, 20))
    tokens = draw(st.lists(st.integers(0, 1), min_size=length, max_size=length))
    count = draw(st.integers(0, min(4, length)))
    at = sorted(draw(st.sets(st.integers(0, length - 1), min_size=count, max_size=count)))
    frames = draw(st.lists(st.integers(0, 1), min_size=count, max_size=count))
    return prompt(tokens, at, frames, draw(st.integers(0, 1)))


@given(st.lists(prompts(), min_size=2, max_size=8))
def test_keys_are_those_of_hashing(asked: list[Prompt]) -> None:
    known = KnownPrefixes(PAGE)
    for one in asked:
        assert known.keys(one) == prefix_keys(one, PAGE)


@pytest.mark.parametrize(
    "other",
    [
        prompt([0] * 12, [2, 3, 9], [1, 2, 3]),
        prompt([0] * 12, [2, 3, 4], [1, 2, 3], speaker=1),
        prompt([0] * 12, [2, 3, 4], [1, 5, 3]),
        prompt([0, 0, 1, *[0] * 9], [2, 3, 4], [1, 2, 3]),
        prompt([0] * 7, [2, 3, 4], [1, 2, 3]),
        prompt([0] * 16, [2, 3, 4], [1, 2, 3]),
    ],
    ids=["another place", "another speaker", "another frame", "another token", "shorter", "longer"],
)
def test_a_prompt_that_differs_from_the_last_one_in_its_voice_has_keys_of_its_own(other: Prompt) -> None:
    known = KnownPrefixes(PAGE)
    known.keys(prompt([0] * 12, [2, 3, 4], [1, 2, 3]))
    assert known.keys(other) == prefix_keys(other, PAGE)


def test_an_adapter_makes_other_keys() -> None:
    known, plain, adapted = KnownPrefixes(PAGE), *(prompt([0] * 12, [2, 3], [1, 2]) for _ in range(2))
    adapted.lora = Adapter("anna", 1, b"weights", "")
    assert known.keys(plain) != known.keys(adapted) == prefix_keys(adapted, PAGE)


def test_what_is_known_is_not_hashed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    hashed: list[int] = []

    def counted(known: tuple[bytes, ...], contents: list[bytes], identity: bytes) -> tuple[bytes, ...]:
        hashed.append(len(contents))
        return chained(known, contents, identity)

    def digests(asked: Prompt, page_size: int, first: int) -> list[bytes]:
        frames.append(asked.length // page_size - first)
        return frame_digests(asked, page_size, first)

    frames: list[int] = []
    monkeypatch.setattr(known_prefixes, "chained", counted)
    monkeypatch.setattr(known_prefixes, "frame_digests", digests)
    known = KnownPrefixes(PAGE)
    for end in (1, 2, 2):
        known.keys(prompt([*[0] * 17, end, 0, 0], [2, 3], [7, 8]))
    known.keys(prompt([*[0] * 17, 2, *[0] * 6], [2, 3], [7, 8]))  # a page more
    assert hashed == [5, 1, 0, 1]
    assert frames == [5, 1]
