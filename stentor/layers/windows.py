"""A recording in pieces of few shapes, so that an engine can capture what an encoder computes of
each.

An encoder passes its work to a `Launch`: functions of tensors whose shapes come from a small set.
Causal convolutions take a recording a window at a time, in the memory that one window takes. What
sees all of a recording takes it padded to a whole number of steps.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
import torch.nn.functional as F
from torch import Tensor

from stentor.layers.conv import StreamingState, join_state, split_state, state_size
from stentor.layers.types import Column, Launch, State

COLUMNS = (1024, 768, 512, 256, 128, 64)
"""Output columns of a window, largest first. The last one of a recording is the smallest that holds
the rest, filled up with zeros. Deep layers have few rows: a window of 256 takes a GPU as long as
one of 64."""
STEP = 1 << 18
"""Samples by which the lengths of what sees all of a recording differ."""


Run = Callable[[Tensor, StreamingState, Tensor], Tensor]


class Windows:
    """Causal convolutions over whole recordings.

    run(x, state, count): x [B, C, n] and the state before it -> one output column of every `hop`
    inputs. Of x, `count` [] inputs are of the recording, and zeros follow. columns: `state_columns`
    of the convolutions.
    """

    def __init__(self, run: Run, hop: int, columns: Mapping[str, Column]) -> None:
        self.run = run
        self.hop = hop
        self.columns = columns

    def __call__(self, x: Tensor, launch: Launch) -> Tensor:
        """x [B, C, n] -> [B, C', ceil(n / hop)]."""
        count = x.shape[-1]
        at = 0
        parts = []
        sizes = window_sizes(count, self.hop, launch.columns)
        padding = sum(sizes) - count
        x = F.pad(x, (0, padding))
        state = x.new_zeros(len(x), state_size(self.columns))
        for size in sizes:
            num_valid = min(size, count - at)
            valid = torch.full((), num_valid, dtype=torch.int64, device=x.device)
            window = x[..., at : at + size]
            y, state = launch(self._window, window, state, valid)
            parts.append(y.clone())
            at += size
        num_columns = -(-count // self.hop)
        columns = torch.cat(parts, dim=1)
        columns = columns[:, :num_columns]
        return columns.transpose(1, 2)  # as the kernels read it

    def _window(self, x: Tensor, state: Tensor, count: Tensor) -> tuple[Tensor, Tensor]:
        old: State = {}
        for name, part in split_state(state, self.columns).items():
            old[name] = part.contiguous()
        streaming = StreamingState(old)
        y = self.run(x, streaming, count)
        columns = y.transpose(1, 2)
        if not self.columns:
            return columns, state
        return columns, join_state(streaming.new, self.columns)


def window_sizes(count: int, hop: int, most: int) -> list[int]:
    """Samples of the windows of a recording, in whole hops, which are `count` or a little more
    together. most: columns of the largest."""
    allowed = [n for n in COLUMNS if n <= most]
    largest = allowed[0]
    num_columns = -(-count // hop)
    full, rest = divmod(num_columns, largest)
    columns = [largest] * full
    if rest:
        smallest = min(n for n in allowed if n >= rest)
        columns.append(smallest)
    return [hop * n for n in columns]


def step_of(hop: int, multiple: int = 1) -> int:
    """Columns of `hop` samples in a step, a multiple of `multiple`."""
    return -(-STEP // (hop * multiple)) * multiple


def padded(x: Tensor, step: int) -> Tensor:
    """x [B, C, n] with zeros behind it, to a whole number of steps. C is innermost in memory, as
    kernels read it."""
    padding = -x.shape[-1] % step
    rows = F.pad(x.transpose(1, 2), (0, 0, 0, padding))
    return rows.transpose(1, 2)
