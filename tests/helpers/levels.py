"""Frames of latents, seen from outside: whether each follows from those before it, and what levels were near a half.

Where a model rounds to levels (finite scalar quantisation), a value that lies within rounding of the middle between two
of them falls on either side, as a draw does near a tie. And rounding grows from frame to frame, in some requests some
hundredfold within a dozen: so frames are compared one by one, each given the frames that were spoken before it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from stentor.engine.scheduling.sequence import RUNNING, STOPPED
from stentor.models.voxcpm2.modules import FSQ
from tests.helpers.tiny import Bench

STEP = 3e-4  # a frame given those before it: rounding off 2e-6 of every product moves one by up to 1.3e-4
FLIPS = 3  # levels of one frame that may have fallen on the other side
Round = Callable[[Tensor, int], Tensor]
"""(soft * scale [N, dim], scale) -> levels."""


@dataclass(frozen=True)
class Step:
    """By the plain formulas: the frame, whether it is the last, and how far each value lay from the middle between its
    level and the next, [dim], of the largest value."""

    frame: np.ndarray
    last: bool
    distance: np.ndarray


@contextmanager
def rounding(take: Round) -> Iterator[None]:
    """Levels are what `take` makes of values."""

    def forward(self: FSQ, x: Tensor) -> Tensor:
        levels: Tensor = self.out_proj(
            take(torch.tanh(self.in_proj(x)) * self.scale, self.scale) / self.scale
        )
        return levels

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(FSQ, "forward", forward)
        yield


class Followed:
    """A request on a CPU, told before each step which frames [n, *frame] were spoken; behind them it speaks on."""

    def __init__(
        self, path: Path, family: str, text: str, options: dict[str, Any], frames: np.ndarray
    ) -> None:
        self.bench = Bench(path, "cpu", torch.float32, slots=1)
        self.frames = torch.as_tensor(frames)
        self.group = [self.bench.admit(family, 0, text=text, **options)]
        self.seed = options["seed"]
        self.flips: dict[int, list[int]] = {}  # channels that fell on the other side, by frame

    def _levels(self, value: Tensor, scale: int) -> Tensor:
        level = value.round()
        self.distance = ((value - value.floor() - 0.5).abs() / scale)[-1]
        for channel in self.flips.get(self.at, []):
            level[-1, channel] = (
                value[-1, channel].floor() + value[-1, channel].ceil() - level[-1, channel]
            )
        return level

    def steps(self, count: int | None = None) -> list[Step]:
        """The first `count`, or one for each frame that was spoken."""
        w = self.bench.runner
        out = []
        with torch.inference_mode(), rounding(self._levels):
            w.admit([(*self.group[0], self.seed)])
            for at in range(len(self.frames) if count is None else count):
                self.at = at
                self._step()
                last = bool(w.slots.table["stop"][0] == STOPPED)
                w.slots.table["stop"][0] = RUNNING
                # What a frame 0 is made from was rounded only where audio was given; here it is not.
                distance = self.distance if at else torch.full_like(self.distance, torch.inf)
                out.append(Step(w.slots.frames[0, at].numpy().copy(), last, distance.numpy()))
                if at < len(self.frames):
                    w.slots.frames[0, at] = w.slots.table["prev"][0] = self.frames[at]
        return out

    def _step(self) -> None:
        bench, w = self.bench, self.bench.runner
        if self.at == 0:
            w.prefill(self.group)
        else:
            w.idx[:1] = 0
            w._decode(1, bench.sizes.max_pages, self.group[0][0].num_evals)

    def wrong(self, steps: list[Step]) -> int | None:
        """The first frame that does not follow from those before it."""
        return next((i for i, s in enumerate(steps) if _error(s, self.frames[i]) > STEP), None)

    def explained(self) -> tuple[list[Step], float]:
        """Steps whose levels fell, where they must for the frames to follow, on the other side; and how far the farthest
        of them was from it (infinite: that explains no frame)."""
        steps, farthest = self.steps(), 0.0
        while (at := self.wrong(steps)) is not None:
            nearest = np.argsort(steps[at].distance)[:FLIPS]
            for channel in nearest if at else ():
                self.flips.setdefault(at, []).append(int(channel))
                farthest = max(farthest, float(steps[at].distance[channel]))
                trial = self.steps()
                if _error(trial[at], self.frames[at]) <= STEP:
                    steps = trial
                    break
            else:
                return steps, float("inf")
        return steps, farthest


def _error(s: Step, frame: Tensor) -> float:
    return float(np.abs(s.frame - frame.numpy()).max())


def unlike(
    path: Path, family: str, text: str, options: dict[str, Any], want: np.ndarray, got: np.ndarray
) -> tuple[float, int, str]:
    """(how near a half the levels were that must have been rounded otherwise for the frames `got` to follow from one
    another, how many of them equal `want`, what it is).

    0 where none need have been, and `got` differs only by what rounding grew to; infinite where no level explains it,
    or it ends where it should not.
    """
    both = min(len(want), len(got))
    far = np.abs(want[:both] - got[:both]).reshape(both, -1).max(1) > STEP
    same = int(far.argmax()) if far.any() else both
    followed = Followed(path, family, text, options, got)
    steps, by = followed.explained()
    errors = [_error(s, f) for s, f in zip(steps, followed.frames, strict=True)]
    if by == float("inf"):
        at = followed.wrong(steps)
        return by, same, f"frame {at} does not follow ({errors[at or 0]:.0e})"
    early = len(got) < len(want) and not steps[-1].last
    late = len(got) > len(want) and same == both
    if early or late or any(s.last for s in steps[:-1]):
        return float("inf"), same, "an end where there is none, or none where there is one"
    flips = "".join(
        f", level {c} of frame {at}" for at, found in followed.flips.items() for c in found
    )
    return (
        by,
        same,
        f"from frame {same} on, each following from the last to {max(errors):.0e}{flips}",
    )
