"""Perth, a watermark by Resemble AI, for streams: `--watermark stentor.output.perth:Perth`.

The package `resemble-perth` (MIT, weights inside) marks whole signals. Here it marks blocks of half a second with what
is around them, so that the result does not depend on how audio is cut. It needs the extra `perth`.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

BLOCK_SECONDS = 0.5
CONTEXT_SECONDS = 0.25  # around a block: 5 convolutions over 7 frames of 10 ms, windows of 64 ms
FADE_SECONDS = 0.02  # from one block to the next, whose masks differ


class Perth:
    """The watermark of one file or stream."""

    def __init__(self, rate: int) -> None:
        """rate: samples per second."""
        self._rate = rate
        self._block = round(BLOCK_SECONDS * rate)
        self._context = round(CONTEXT_SECONDS * rate)
        self._fade = round(FADE_SECONDS * rate)
        self.look_ahead = self._block + self._fade + self._context
        # from the context of the next block on
        self._waiting = np.zeros(self._context, np.float32)
        self._tail = np.zeros(0, np.float32)  # of the block before, under the next one's start

    def process(self, samples: np.ndarray) -> np.ndarray:
        """float32 [n] -> float32 [m]: the blocks that are complete, and known on both sides."""
        self._waiting = np.concatenate((self._waiting, samples))
        size = self._context + self.look_ahead
        parts = [np.zeros(0, np.float32)]
        while len(self._waiting) >= size:
            marked = self._marked(self._waiting[:size], self._block + self._fade)
            parts.append(marked[: self._block])
            self._tail = marked[self._block :]
            self._waiting = self._waiting[self._block :]
        return np.concatenate(parts)

    def flush(self) -> np.ndarray:
        """float32: the rest."""
        size = len(self._waiting) - self._context
        if not size:
            return np.zeros(0, np.float32)
        return self._marked(np.pad(self._waiting, (0, self._context)), size)

    def _marked(self, window: np.ndarray, size: int) -> np.ndarray:
        """`size` marked samples behind the context of a window, faded in over the block before."""
        marked = network().apply_watermark(window, sample_rate=self._rate)
        marked = marked[self._context : self._context + size]
        marked = np.pad(marked, (0, size - len(marked))).astype(np.float32)
        count = min(len(self._tail), size)
        share = np.arange(count, dtype=np.float32) / max(count, 1)
        marked[:count] = share * marked[:count] + (1 - share) * self._tail[:count]
        return marked


def detect(samples: np.ndarray, rate: int) -> float:
    """The detector's confidence that samples [n] bear the mark, 0 to 1. Perth's own threshold is
    0.5."""
    confidence = network().get_watermark(samples, sample_rate=rate, round=False)
    return float(np.mean(confidence))


@cache
def network() -> Any:
    """Load the network once for all streams of the process."""
    from perth.perth_net.perth_net_implicit.perth_watermarker import PerthImplicitWatermarker

    return PerthImplicitWatermarker()
