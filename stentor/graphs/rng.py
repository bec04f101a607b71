"""Draws of `layers.rng` in numpy: a pure function of (seed, frame, draw). SplitMix64 finaliser
(Steele et al., 2014)."""

from __future__ import annotations

import math

import numpy as np

GOLDEN = np.uint64(0x9E3779B97F4A7C15)
MIX1 = np.uint64(0xBF58476D1CE4E5B9)
MIX2 = np.uint64(0x94D049BB133111EB)
STEP = np.float32(2.0**-24)


def _mix(z: np.ndarray) -> np.ndarray:
    z = (z ^ (z >> np.uint64(30))) * MIX1
    z = (z ^ (z >> np.uint64(27))) * MIX2
    mixed: np.ndarray = z ^ (z >> np.uint64(31))
    return mixed


def uniform(seed: int, step: int, draws: int) -> np.ndarray:
    """Uniforms in (0, 1): float32 [draws]."""
    index = np.arange(1, draws + 1, dtype=np.uint64)
    with np.errstate(over="ignore"):
        seeds = np.array([seed], np.int64).astype(np.uint64)
        key = _mix(_mix(seeds) + GOLDEN * np.uint64(step + 1))
        bits = _mix(key + GOLDEN * index) >> np.uint64(40)  # 24 bits: exact in float32
    drawn: np.ndarray = np.minimum((bits.astype(np.float32) + np.float32(0.5)) * STEP, 1 - STEP)
    return drawn


def grid_normal(u: np.ndarray, outer: int, scale: float) -> np.ndarray:
    """Standard normals [n / outer, outer] from uniforms u [n], times `scale` (Box-Muller, both
    branches)."""
    a, b = np.split(u, 2)
    radius = np.sqrt(np.float32(-2) * np.log(a))
    angle = np.float32(2 * math.pi) * b
    drawn = np.concatenate((radius * np.cos(angle), radius * np.sin(angle)))
    return np.ascontiguousarray(drawn.reshape(outer, -1).T) * np.float32(scale)
