"""Interface of a family that runs by graphs of onnxruntime: functions over one row, on the host.

    prompt -> read_prompt -> emit(frame 0) -> read_frame -> emit(frame 1) -> ...

As with tensors, the engine owns every row and every decision. Rows never share a call: the
activations of a product in 8 bits have one scale per call, so a row would depend on its neighbours.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np

from stentor.models.base import HostModel, Prompt

if TYPE_CHECKING:
    from stentor.graphs.sessions import Value


MASKED = np.float32(-1e30)


class TextMasks(NamedTuple):
    """Additive attention masks over all positions [S + 1], 0 or MASKED: of layers that see part of
    the text, and of the text alone."""

    near: np.ndarray
    inside: np.ndarray


@dataclass(frozen=True)
class Reading:
    """Output of the backbone for the last position, for `emit`.

    hidden: what the family's `emit` reads. attention: weights on all positions, of the alignment
    heads, over the text.
    """

    hidden: tuple[Value, ...]
    attention: np.ndarray
    memory: list[Value]


@dataclass(eq=False)
class GraphRow:
    """One request's state. The engine writes it, the family reads it.

    frames [*frame] and attended [ATTENDED_WIDTH] are of all frames so far, `place` is the text
    position of the last. `memory` holds keys and values, `codec` the histories of the decoder.
    """

    prompt: Prompt
    seed: int
    previous: np.ndarray
    columns: dict[str, Any]
    codec: list[Value]
    step: int = 0
    stop: int = 0
    text_place: int = 0
    read: Reading | None = None  # of its last position, until a frame is made from it
    memory: list[Value] = field(default_factory=list)
    positions: int = 0  # that `memory` holds
    frames: list[np.ndarray] = field(default_factory=list)
    attended: list[np.ndarray] = field(default_factory=list)


class GraphFrame(NamedTuple):
    """A frame, and whether it is the last."""

    frame: np.ndarray
    stop: bool


class GraphModel(HostModel, Protocol):
    """A loaded family as graphs. Every member is required. All but `silence` may run in several
    threads at once."""

    def read_prompt(self, row: GraphRow, inside: np.ndarray) -> Reading:
        """Run the whole prompt, which sees all of its text. inside [S]: mask of `attention`."""
        ...

    def read_frame(self, row: GraphRow, masks: TextMasks) -> Reading:
        """Run the last frame, `row.previous`, behind `row.memory`."""
        ...

    def emit(self, row: GraphRow, reading: Reading, u: np.ndarray) -> GraphFrame:
        """Make frame `row.step` from uniforms u [draws] in (0, 1)."""
        ...

    def silence(self) -> list[Value]:
        """The decoder's histories before frame 0."""
        ...

    def decode(
        self, frames: Sequence[np.ndarray], states: list[Value]
    ) -> tuple[np.ndarray, list[Value]]:
        """Consecutive frames -> float32 samples [n * hop] in [-1, 1], and the next histories."""
        ...
