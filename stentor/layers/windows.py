"""A recording in pieces of few shapes, so that an engine can capture what an encoder computes of
each.

An encoder passes its work to a `Launch`: functions of tensors whose shapes come from a small set.
Causal convolutions take a recording a window at a time, in the memory that one window takes. What
sees all of a recording takes it padded to a whole number of steps.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import torch
import torch.nn.functional as F
from torch import Tensor

from stentor.layers.conv import StreamingState
from stentor.layers.types import Column, Launch

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
        x = F.pad(x, (0, sum(sizes) - count))
        state = x.new_zeros(len(x), sum(math.prod(c.shape) for c in self.columns.values()))
        for size in sizes:
            valid = torch.full((), min(size, count - at), dtype=torch.int64, device=x.device)
            y, state = launch(self._window, x[..., at : at + size], state, valid)
            parts.append(y.clone())
            at += size
        # as the kernels read it
        return torch.cat(parts, dim=1)[:, : -(-count // self.hop)].transpose(1, 2)

    def _window(self, x: Tensor, state: Tensor, count: Tensor) -> tuple[Tensor, Tensor]:
        """One window. The state is one tensor, so that one copy carries it to the next."""
        streaming = StreamingState({})
        at = 0
        for name, column in self.columns.items():
            size = math.prod(column.shape)
            streaming.old[name] = (
                state[:, at : at + size].reshape(len(x), *column.shape).contiguous()
            )
            at += size
        y = self.run(x, streaming, count).transpose(1, 2)
        return y, torch.cat(
            [state[:, :0], *(streaming.new[name].flatten(1) for name in self.columns)], dim=1
        )


def window_sizes(count: int, hop: int, most: int) -> list[int]:
    """Samples of the windows of a recording, in whole hops, which are `count` or a little more
    together. most: columns of the largest."""
    allowed = [n for n in COLUMNS if n <= most]
    full, rest = divmod(-(-count // hop), allowed[0])
    if rest:
        last = [min(n for n in allowed if n >= rest)]
    else:
        last = []
    return [hop * n for n in [allowed[0]] * full + last]


def step_of(hop: int, multiple: int = 1) -> int:
    """Columns of `hop` samples in a step, a multiple of `multiple`."""
    return -(-STEP // (hop * multiple)) * multiple


def padded(x: Tensor, step: int) -> Tensor:
    """x [B, C, n] with zeros behind it, to a whole number of steps. C is innermost in memory, as
    kernels read it."""
    return F.pad(x.transpose(1, 2), (0, 0, 0, -x.shape[-1] % step)).transpose(1, 2)
