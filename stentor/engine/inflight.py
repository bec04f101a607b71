"""Work that has been launched: what it is about, and where the host will find what came of it."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass

from torch import Tensor

from stentor.engine.device import Event
from stentor.engine.scheduler import AudioJob
from stentor.engine.sequence import Sequence


@dataclass
class Ticket:
    """A launched step: which requests it names, and where their report will be."""

    sequences: list[Sequence]
    report: Tensor  # host [2, slots + 1]: frames made, stop value
    done: Event
    prefill: bool
    launched: float  # time.monotonic()

    def result(self) -> list[tuple[int, int]]:
        """(made, stop) of each named request; waits until the step has run."""
        self.done.wait_host()
        made, stop = self.report.tolist()
        return [(made[s.slot], stop[s.slot]) for s in self.sequences]


@dataclass
class AudioTicket:
    """Launched codec work: `rows` of samples [B, n * hop] and frames [B, n, *frame] are those of `jobs`, on the host
    once `done`."""

    jobs: list[AudioJob]
    rows: Seq[int]
    samples: Tensor
    frames: Tensor
    done: Event
    staged: tuple[Tensor, ...]  # on the device, to be kept until `done`
