"""The Euler schedule of the flow: sway-sampled times, step sizes, and the steps that CFG-Zero*
leaves out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from threading import Lock

import torch
from torch import Tensor

from stentor.models.voxcpm2.steps import MAX_STEPS, cfg_zero_steps, evaluations


def time_grid(steps: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Times [steps + 1] from 1 to 0 with sway sampling, in the model's own dtype as the reference
    rounds them."""
    t = torch.linspace(1, 0, steps + 1, device=device, dtype=dtype)
    sway = torch.cos(torch.pi / 2 * t) - 1 + t
    return t + 1.0 * sway


@dataclass(frozen=True)
class EulerSchedule:
    """Numbers that the solver reads per row and evaluation.

    Rows are the numbers of steps 0..MAX_STEPS, or the rows of one batch.
    """

    dt: Tensor
    """Step size [rows, evaluations]; 0 after the row's last evaluation."""
    at: Tensor
    """Row of `times` [rows, evaluations], int64."""
    times: Tensor
    """Time tokens [evaluations of all numbers of steps, hidden]."""


class TimeTokens:
    """The schedules of all numbers of steps. On a CPU the time tokens of a number are computed at
    its first use: those of all take 40 ms. A GPU has all from the start, since its graphs read
    them."""

    def __init__(
        self, time_tokens: Callable[[Tensor], Tensor], dtype: torch.dtype, device: torch.device
    ) -> None:
        """time_tokens: turns times [K] into tokens [K, hidden], from the present weights."""
        dt = torch.zeros(MAX_STEPS + 1, MAX_STEPS, dtype=dtype, device=device)
        at = torch.zeros(MAX_STEPS + 1, MAX_STEPS, dtype=torch.int64, device=device)
        times = []
        self._rows = [slice(0, 0)]
        all_t, all_dt = _euler(dtype, device)
        for steps in range(1, MAX_STEPS + 1):
            solved = slice(cfg_zero_steps(steps), steps)
            count = evaluations(steps)
            start = self._rows[-1].stop
            end = start + count
            dt[steps, :count] = all_dt[steps, solved]
            at[steps, :count] = torch.arange(start, end, device=device)
            times.append(all_t[steps, solved])
            self._rows.append(slice(start, end))
        self._times = torch.cat(times)
        self._tokens = time_tokens
        self._missing = set(range(1, MAX_STEPS + 1))
        self._lock = Lock()
        one = time_tokens(self._times[:1])
        # Zeros, since a row that needs no further evaluation looks at tokens that may not be there
        # yet.
        tokens = one.new_zeros(len(self._times), *one.shape[1:])
        self.schedule = EulerSchedule(dt, at, tokens)
        if device.type != "cpu":
            self.prepare_all()

    @torch.no_grad()
    def prepare(self, steps: int) -> None:
        """Compute and cache the tokens of this number of steps. Thread-safe."""
        with self._lock:
            if steps in self._missing:
                rows = self._rows[steps]
                tokens = self._tokens(self._times[rows])
                self.schedule.times[rows] = tokens
                self._missing.remove(steps)

    @torch.no_grad()
    def prepare_all(self) -> None:
        """Compute and cache the tokens of every number of steps at once. Thread-safe."""
        with self._lock:
            if self._missing:
                self.schedule.times.copy_(self._tokens(self._times))
                self._missing.clear()


def _euler(dtype: torch.dtype, device: torch.device) -> tuple[Tensor, Tensor]:
    """(t, dt) [MAX_STEPS + 1, MAX_STEPS] of Euler step k for each number of steps.

    The reference accumulates t and derives dt from it, in the model's dtype. The same additions are
    done here.
    """
    grid = torch.zeros(MAX_STEPS + 1, MAX_STEPS + 1, dtype=dtype, device=device)
    for steps in range(1, MAX_STEPS + 1):
        grid[steps, : steps + 1] = time_grid(steps, dtype, device)
    t = grid[:, 0]
    dt = grid[:, 0] - grid[:, 1]
    times = []
    deltas = []
    for k in range(1, MAX_STEPS + 1):
        times.append(t)
        deltas.append(dt)
        t = t - dt
        if k < MAX_STEPS:
            dt = t - grid[:, k + 1]
    return torch.stack(times, dim=1), torch.stack(deltas, dim=1)
