"""Draws of `layers.rng` in numpy: a pure function of (seed, frame, draw). SplitMix64 finaliser
(Steele et al., 2014)."""

from __future__ import annotations

import math

import numpy as np

U64 = np.uint64
F32 = np.float32
GOLDEN = U64(0x9E3779B97F4A7C15)
MIX1 = U64(0xBF58476D1CE4E5B9)
MIX2 = U64(0x94D049BB133111EB)
STEP = F32(2.0**-24)
BELOW_ONE = 1 - STEP


def _shifted(z: np.ndarray, bits: int) -> np.ndarray:
    """z with its upper bits folded onto its lower ones."""
    folded: np.ndarray = z ^ (z >> U64(bits))
    return folded


def _mix(z: np.ndarray) -> np.ndarray:
    z = _shifted(z, 30)
    z = _shifted(z * MIX1, 27)
    return _shifted(z * MIX2, 31)


def uniform(seed: int, step: int, draws: int) -> np.ndarray:
    """Uniforms in (0, 1): float32 [draws]."""
    index = np.arange(1, draws + 1, dtype=U64)
    seeds = np.array([seed], np.int64)

    with np.errstate(over="ignore"):
        key = _mix(seeds.astype(U64))
        key = _mix(key + GOLDEN * U64(step + 1))
        bits = _mix(key + GOLDEN * index)

    high = bits >> U64(40)  # 24 bits: exact in float32
    drawn = high.astype(F32) + F32(0.5)
    bounded: np.ndarray = np.minimum(drawn * STEP, BELOW_ONE)
    return bounded


def grid_normal(u: np.ndarray, outer: int, scale: float) -> np.ndarray:
    """Standard normals [n / outer, outer] from uniforms u [n], times `scale`.

    Box-Muller, both branches.
    """
    a, b = np.split(u, 2)
    radius = np.sqrt(F32(-2) * np.log(a))
    angle = F32(2 * math.pi) * b

    cosines = radius * np.cos(angle)
    sines = radius * np.sin(angle)
    drawn = np.concatenate((cosines, sines))

    grid = drawn.reshape(outer, -1).T
    return np.ascontiguousarray(grid) * F32(scale)
