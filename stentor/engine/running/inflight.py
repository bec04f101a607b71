"""Work that has been launched: which requests it serves, and where the host will find its result."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor

from stentor.engine.running.device import Event
from stentor.engine.scheduling.audio_scheduler import AudioJob
from stentor.engine.scheduling.sequence import Sequence


@dataclass
class InFlightStep:
    """A launched step: the requests that it names, and where their report will be."""

    sequences: list[Sequence]
    report: Tensor  # host [2, slots + 1]: frames generated, stop value. Or [4, slots + 1]: also positions, frames heard
    done: Event
    prefill: bool
    launched_at: float  # time.monotonic()
    prefilled_at: float = 0.0  # when its prompts were launched, before their first frames

    def result(self) -> tuple[list[int], list[int], list[int]]:
        """Frames generated, stop value and frames heard of every slot. Waits until the step has run."""
        self.done.wait_host()
        generated, stop, *rest = self.report.tolist()
        return generated, stop, rest[-1] if rest else generated


class CodecOutput(NamedTuple):
    """Output of a codec call: samples [B, n * hop], their frames [B, n, *frame], and where in the text these are
    [B, n, alignment.WIDTH], or [B, n, 0] where nothing says it."""

    samples: Tensor
    frames: Tensor
    attended: Tensor


@dataclass
class InFlightAudio:
    """A launched codec call. `rows` of its output belong to `jobs`. They are on the host once `done` is ready. They
    begin `delay` frames before the chunks."""

    jobs: list[AudioJob]
    rows: Seq[int]
    output: CodecOutput
    done: Event
    staged: tuple[Tensor, ...]  # device tensors that must live until `done`
    delay: int

    def first_frame(self, job: AudioJob) -> int:
        """The frame of the stream with which its row of samples and frames begins."""
        return job.start - self.delay
