"""Numbers of the Euler solver that do not depend on weights: times, step sizes and evaluations. No
torch."""

from __future__ import annotations

import math

import numpy as np

MAX_STEPS = 100


def cfg_zero_steps(steps: int) -> int:
    """First Euler steps whose velocity CFG-Zero* (Fan et al., 2025) sets to zero, of `steps`."""
    return max(1, int((steps + 1) * 0.04))


def evaluations(steps: int) -> int:
    """Network evaluations that `steps` Euler steps take."""
    return steps - cfg_zero_steps(steps)


def euler(steps: int) -> tuple[np.ndarray, np.ndarray]:
    """Time and step size of each evaluation, float32 [evaluations(steps)] both.

    The times are sway-sampled. As in the reference, they are accumulated and step sizes derived
    from them.
    """
    even = np.linspace(1, 0, steps + 1, dtype=np.float32)
    quarter = np.float32(math.pi / 2)
    sway = np.cos(quarter * even) - np.float32(1) + even
    grid = even + sway
    times = []
    deltas = []
    t = grid[0]
    dt = grid[0] - grid[1]
    for k in range(1, steps + 1):
        times.append(t)
        deltas.append(dt)
        t = t - dt
        if k < steps:
            dt = t - grid[k + 1]

    first = cfg_zero_steps(steps)
    solved_times = np.array(times[first:], np.float32)
    solved_deltas = np.array(deltas[first:], np.float32)
    return solved_times, solved_deltas
