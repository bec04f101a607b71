"""Interface of a family without steps: it makes all frames of a piece of text in one go.

    prompt -> plan (which frames, for which place in the text) -> speak (their samples)

The engine sees a plan as a prefill that makes all frames at once, and `speak` as the codec call of
a request that has ended. So slots, queue, urgency and cancellation are those of every family.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np

from stentor.models.base import HostModel, Prompt


class Planned(NamedTuple):
    """Output of the first half of a family for one piece.

    frames: [n, *frame]. places: the text position [n] that each frame speaks, never descending.
    features: what `speak` reads. The engine does not look inside.
    """

    frames: np.ndarray
    places: np.ndarray
    features: tuple[Any, ...]


@dataclass(eq=False)
class PieceRow:
    """One request's state. planned: None until its plan has been made."""

    prompt: Prompt
    seed: int
    planned: Planned | None = None


class PieceModel(HostModel, Protocol):
    """A loaded family without steps. `spec.codec_timing` is a PieceTiming, which bounds the calls.

    A row's result does not depend on the rows beside it. `plan` and `speak` may run in several
    threads at once.
    """

    def warm_up(self) -> None:
        """Run what the first calls on a GPU would otherwise run cold."""
        ...

    def plan(self, rows: Sequence[PieceRow]) -> list[Planned]:
        """Find which frames each row has."""
        ...

    def speak(self, rows: Sequence[PieceRow]) -> list[np.ndarray]:
        """Make the samples [n * hop] of each planned row: float32 in [-1, 1]."""
        ...
