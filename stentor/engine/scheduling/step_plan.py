"""Plan of one step's launches, as plain data."""

from __future__ import annotations

from dataclasses import dataclass, field

from stentor.engine.scheduling.audio_scheduler import AudioJob
from stentor.engine.scheduling.sequence import Sequence


def by_num_evals(sequences: list[Sequence]) -> list[list[Sequence]]:
    """Rows whose `emit` loops equally often together, in their order, so that no row pays for another's choice."""
    return [[s for s in sequences if s.num_evals == n] for n in dict.fromkeys([s.num_evals for s in sequences])]


def by_prefill(sequences: list[Sequence]) -> list[list[Sequence]]:
    """Rows that are prefilled by one launch: pieces of prompts, as above, and last those that replay frames."""
    replays = [seq for seq in sequences if seq.replays]
    return by_num_evals([seq for seq in sequences if not seq.replays]) + ([replays] if replays else [])


@dataclass
class StepPlan:
    """One step. `admitted` and `resumed` begin a prefill. `regrown` have new pages for their table row."""

    admitted: list[Sequence] = field(default_factory=list)
    resumed: list[Sequence] = field(default_factory=list)
    prefill: list[Sequence] = field(default_factory=list)  # those and others go on with a piece of their prefill
    decode: list[Sequence] = field(default_factory=list)
    regrown: list[Sequence] = field(default_factory=list)
    audio: list[AudioJob] = field(default_factory=list)
    parked: list[Sequence] = field(default_factory=list)
    unparked: list[Sequence] = field(default_factory=list)
    dependent: list[Sequence] = field(default_factory=list)  # share pages that others of this plan are to write

    @property
    def launches(self) -> bool:
        """Whether the language model runs."""
        return bool(self.prefill or self.decode)

    @property
    def empty(self) -> bool:
        return not (self.launches or self.audio or self.parked)
