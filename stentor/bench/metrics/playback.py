"""Playback figures: pure functions of chunk arrivals and samples.

Chunk k of a stream brings `counts[k]` samples at `times[k]` (seconds, any fixed origin). Definitions:
docs/benchmarking.md, "Playback". The detector and the resetting underrun rule follow the public method of
nari-labs' tts_bench, the non-resetting rule that of vLLM-Omni's `audio_underrun`.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from stentor.silence import AUDIBLE_DBFS

Samples = NDArray[np.float32]
Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

FRAME_S = 0.020
HOP_S = 0.010
FRAMES_IN_A_ROW = 2
_CELL_S = 0.001


@dataclass(frozen=True)
class PlaybackTimes:
    """How a stream plays, in seconds. `stalls` holds only chunks that came after the buffer had run dry."""

    starts: Floats
    """When each chunk begins to play with no start buffer, the clock resetting after a stall. Shape [chunks]."""
    stalls: Floats
    """Length of each stall under that rule. Shape [stalls]."""
    start_buffer: float
    """Largest lateness against a player that never resets: waiting this long before playing removes every stall."""
    gaps: Floats
    """Time between consecutive chunks. Shape [chunks - 1]."""


def play(times: Floats, counts: Ints, rate: int) -> PlaybackTimes:
    """Play the stream with no buffer, from the arrival of its first chunk. Needs at least one chunk."""
    lengths = counts / rate
    before = np.concatenate([[0.0], np.cumsum(lengths)[:-1]])
    # Chunk k starts at max over j <= k of (arrival_j + audio between j and k): the recursion
    # start_k = max(arrival_k, start_{k-1} + length_{k-1}) without its loop.
    starts = np.maximum.accumulate(times - before) + before
    idle = starts[1:] - (starts[:-1] + lengths[:-1])
    return PlaybackTimes(
        starts=starts,
        # Rounding in the sums above is far below a sample. A "stall" of a nanosecond is not one.
        stalls=idle[idle > 1e-9],
        start_buffer=float(max(0.0, np.max(times - times[0] - before))),
        gaps=np.diff(times),
    )


def onset(samples: Samples, rate: int) -> int | None:
    """Index of the first audible sample, or None if there is none.

    Audible: two 20 ms frames in a row, 10 ms apart, whose RMS is at least -45 dBFS (RMS 1.0 = 0 dBFS). Within the
    first of them the onset is the first millisecond that reaches that level, since a frame's start alone would put
    an abrupt onset up to 20 ms too early.
    """
    cell = max(1, round(rate * _CELL_S))
    cells = samples.size // cell
    power = np.mean(np.square(samples[: cells * cell].reshape(cells, cell), dtype=np.float64), axis=1)
    frame, hop = round(FRAME_S / _CELL_S), round(HOP_S / _CELL_S)
    if cells < frame + hop * (FRAMES_IN_A_ROW - 1):
        return None
    total = np.concatenate([[0.0], np.cumsum(power)])
    loud = (total[frame::hop] - total[: total.size - frame : hop]) / frame >= _AUDIBLE_POWER
    both = loud[:-1] & loud[1:]
    if not both.any():
        return None
    first = int(np.argmax(both)) * hop
    # Some millisecond reaches the mean of its frame. The factor absorbs the rounding of the running sum.
    inside = power[first : first + frame] >= _AUDIBLE_POWER * (1 - 1e-9)
    return (first + int(np.argmax(inside))) * cell


_AUDIBLE_POWER = 10 ** (AUDIBLE_DBFS / 10)


def played_at(index: int, starts: Floats, counts: Ints, rate: int) -> float:
    """When sample `index` plays, on the time line of `PlaybackTimes.starts`."""
    ends = np.cumsum(counts)
    chunk = int(np.searchsorted(ends, index, side="right"))
    offset = index - (ends[chunk] - counts[chunk])
    return float(starts[chunk] + offset / rate)
