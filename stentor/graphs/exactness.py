"""Whether this CPU adds products of 8 bits exactly."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import numpy as np

from stentor.graphs.sessions import Session, value_of

PROBE = Path(__file__).parent / "probe.onnx"
"""A product of 8 bits, from `python -m tools.graphs`: its largest activations times its largest
weights."""
INPUTS = 64
LARGEST = 127
TOLERANCE = 0.01


@cache
def adds_exactly() -> bool:
    """Run the largest product of 8 bits. A CPU without VNNI may add pairs in 16 bits, which
    saturate: the audio would be wrong, and a model is loaded in float32 instead."""
    session = Session(PROBE.read_bytes(), {}, threads=1)
    (product,) = session({"x": value_of(np.ones((1, INPUTS), np.float32))})
    exact = INPUTS * LARGEST
    return bool(np.abs(product.numpy() - exact).max() <= TOLERANCE * exact)
