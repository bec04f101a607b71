"""Rows that are zeros but at a few positions stand for the whole array."""

from __future__ import annotations

import numpy as np
import pytest

from stentor.models.sparse_rows import SparseRows, joined

WHOLE = np.array([[0, 0], [1, 2], [0, 0], [0, 3], [0, 0]], np.float32)
ROWS = SparseRows(5, np.array([1, 3]), WHOLE[[1, 3]])


@pytest.mark.parametrize("part", [slice(0, 5), slice(1, 3), slice(2, 9), slice(3, 3), slice(7, 9)])
def test_a_part_is_that_part_of_the_whole(part: slice) -> None:
    found = ROWS[part]
    np.testing.assert_array_equal(found.dense(), WHOLE[part])
    assert len(found) == len(WHOLE[part])


def test_parts_one_after_the_other_are_the_whole() -> None:
    np.testing.assert_array_equal(joined([ROWS[:2], ROWS[2:3], ROWS[3:]]).dense(), WHOLE)


def test_the_same_values_elsewhere_have_another_key() -> None:
    parts = (ROWS, ROWS[:4], SparseRows(5, np.array([1, 2]), ROWS.values), SparseRows(5, ROWS.at, 2 * ROWS.values))
    assert [ROWS.tobytes() == part.tobytes() for part in parts] == [True, True, False, False]
