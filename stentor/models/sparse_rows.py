"""Rows of a prompt that are zeros but at a few positions, such as a speaker vector: megabytes that nobody copies."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, eq=False)
class SparseRows:
    """An array [length, ...]: `values` [m, ...] at the positions `at` [m], which ascend, and zeros elsewhere.

    Of numpy's arrays it has what prompts need: a length, slices of neighbouring positions and `tobytes`.
    """

    length: int
    at: np.ndarray
    values: np.ndarray

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, part: slice) -> SparseRows:
        start, stop, step = part.indices(self.length)
        assert step == 1, "only neighbouring positions"
        first, last = np.searchsorted(self.at, (start, stop))
        return SparseRows(max(0, stop - start), self.at[first:last] - start, self.values[first:last])

    def tobytes(self) -> bytes:
        """A key of the content, not that of the whole array."""
        return self.at.tobytes() + self.values.tobytes()

    def dense(self) -> np.ndarray:
        """The whole array."""
        out = np.zeros((self.length, *self.values.shape[1:]), self.values.dtype)
        out[self.at] = self.values
        return out


def joined(parts: list[SparseRows]) -> SparseRows:
    """Arrays one after the other."""
    starts = np.cumsum([0, *(p.length for p in parts)])
    at = [p.at + start for p, start in zip(parts, starts[:-1], strict=True)]
    return SparseRows(int(starts[-1]), np.concatenate(at), np.concatenate([p.values for p in parts]))
