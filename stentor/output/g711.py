"""G.711: 16-bit samples as µ-law and A-law codes, by the decision values of ITU-T G.711.

Both laws work on magnitudes, so x and -x have the same code but for the sign, as in libsndfile.
FFmpeg's encoder takes the nearest decoded value instead, which differs at the edges of segments.
"""

from __future__ import annotations

from functools import cache

import numpy as np

MU_BIAS = 33  # added to a 14-bit magnitude, so that segments begin at powers of two
MU_LARGEST = 8158
A_LARGEST = 2047


@cache
def codes(law: str) -> np.ndarray:
    """The code of every sample: uint8 [65536], by the sample as uint16. law: "ulaw" or "alaw"."""
    samples = np.arange(65536, dtype=np.uint16).view(np.int16).astype(np.int32)
    if law == "ulaw":
        return _mu_law(samples)
    return _a_law(samples)


def _mu_law(samples: np.ndarray) -> np.ndarray:
    """Codes of int32 samples [n] by table 2 of the recommendation."""
    # a shift of a negative sample would floor it: -1 would become -4
    magnitude = np.abs(samples) >> 2  # 14 bits with the sign
    biased = np.minimum(magnitude, MU_LARGEST) + MU_BIAS
    segment = np.frexp(biased)[1] - 6
    step = biased >> (segment + 1)
    code = (segment << 4) | (step & 15)

    inverted = np.where(samples < 0, 0x7F, 0xFF)
    codes: np.ndarray = (code ^ inverted).astype(np.uint8)
    return codes


def _a_law(samples: np.ndarray) -> np.ndarray:
    """Codes of int32 samples [n] by table 1 of the recommendation."""
    magnitude = np.abs(samples) >> 4
    magnitude = np.minimum(magnitude, A_LARGEST) << 1  # 13 bits with the sign
    segment = np.frexp(magnitude)[1] - 5
    segment = np.maximum(segment, 0)
    step = magnitude >> np.maximum(segment, 1)
    code = (segment << 4) | (step & 15)

    # every other bit is inverted
    inverted = np.where(samples < 0, 0x55, 0xD5)
    codes: np.ndarray = (code ^ inverted).astype(np.uint8)
    return codes
