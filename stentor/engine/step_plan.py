"""What one step launches, as plain data."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from stentor.engine.audio_scheduler import AudioJob
from stentor.engine.sequence import Sequence


def by_num_evals(sequences: list[Sequence]) -> list[list[Sequence]]:
    """Rows whose `emit` loops equally often together, in their order, so that no row pays for another's choice."""
    groups: dict[int, list[Sequence]] = {}
    for seq in sequences:
        groups.setdefault(seq.num_evals, []).append(seq)
    return list(groups.values())


class StepKind(Enum):
    """What a step launches besides audio."""

    BOTH = "both"
    PREFILL = "prefill"
    DECODE = "decode"
    WAIT = "wait"


@dataclass
class StepPlan:
    """One step. `admitted` and `resumed` are prefilled together. `regrown` have new pages for their table row."""

    admitted: list[Sequence] = field(default_factory=list)
    resumed: list[Sequence] = field(default_factory=list)
    decode: list[Sequence] = field(default_factory=list)
    regrown: list[Sequence] = field(default_factory=list)
    audio: list[AudioJob] = field(default_factory=list)
    parked: list[Sequence] = field(default_factory=list)
    unparked: list[Sequence] = field(default_factory=list)
    dependent: list[Sequence] = field(default_factory=list)  # share pages that others of this plan are to write

    @property
    def launches(self) -> bool:
        """Whether the language model runs."""
        return bool(self.admitted or self.resumed or self.decode)

    @property
    def empty(self) -> bool:
        return not (self.launches or self.audio or self.parked)
