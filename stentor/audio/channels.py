"""One channel of several."""

from __future__ import annotations

import numpy as np

CANCELLED = 0.1
"""Energy of a mean of channels over that of unrelated ones, below which they cancel each other."""


class Mono:
    """Mixes the channels of a recording block by block: their mean, or one of them.

    Whether channels cancel each other, as two in antiphase do, is known at the end. The caller then
    goes through the audio once more with the loudest.
    """

    def __init__(self, channel: int | None = None) -> None:
        """channel: the one to pass, None for the mean."""
        self._channel = channel
        self._mean = Energy()
        self._each: list[Energy] = []

    def mix(self, block: np.ndarray) -> np.ndarray:
        """float32 [n] of a block float32 [n, channels]."""
        if block.shape[1] == 1 or self._channel is not None:
            return block[:, self._channel or 0]
        mean: np.ndarray = block.mean(axis=1)
        if not self._each:
            self._each = [Energy() for _ in range(block.shape[1])]
        self._mean.add(mean)
        for energy, samples in zip(self._each, block.T, strict=True):
            energy.add(samples)
        return mean

    @property
    def instead(self) -> int | None:
        """The channel to pass in place of the mean. None: the mean is good."""
        if not self._each:
            return None
        each = [energy.value for energy in self._each]
        unrelated = sum(each) / len(each) ** 2  # energy of the mean of unrelated channels
        if self._mean.value < CANCELLED * unrelated:
            return int(np.argmax(each))
        return None


class Energy:
    """Energy of samples without their offset."""

    def __init__(self) -> None:
        self._count = 0
        self._sum = 0.0
        self._squares = 0.0

    def add(self, samples: np.ndarray) -> None:
        self._count += len(samples)
        self._sum += float(samples.sum(dtype=np.float64))
        self._squares += float(np.einsum("n,n->", samples, samples, dtype=np.float64))

    @property
    def value(self) -> float:
        return max(0.0, self._squares - self._sum**2 / max(1, self._count))
