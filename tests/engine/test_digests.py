"""An array that comes again is hashed once, and another never gets its digest."""

from __future__ import annotations

import gc

import numpy as np
import pytest

from stentor.audio import digest
from stentor.engine import digests
from stentor.engine.digests import Digests


def test_an_array_that_comes_again_is_hashed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    hashed: list[int] = []

    def counted(array: np.ndarray) -> str:
        hashed.append(len(array))
        return digest(array)

    monkeypatch.setattr(digests, "digest", counted)
    kept, a, b = Digests(2), np.arange(5), np.arange(5)
    assert kept.of(a) == kept.of(a) == kept.of(b) == digest(a)
    assert hashed == [5, 5]


def test_arrays_of_which_more_come_than_are_kept_have_their_own_digests() -> None:
    """Memory of an array that is gone is soon that of another, which then has its address."""
    kept = Digests(1)
    for number in range(50):
        array = np.full(3, number)
        assert kept.of(array) == digest(array)
        del array
        gc.collect()
