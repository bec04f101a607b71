"""Codec calls that hold utterances as a whole. A few lengths are captured, to which others are padded."""

from __future__ import annotations

from collections.abc import Callable

from stentor.engine import capture_order
from stentor.engine.audio_scheduler import AudioJob
from stentor.engine.cuda_graphs import CudaGraphRunner
from stentor.engine.inflight import CodecOutput
from stentor.models.codec_timing import CodecTiming

MOST_FRAMES = 800
"""Of a call of several utterances. So many fill a GPU, and each length is captured for fewer numbers of rows."""


class WholeCalls:
    """Keys are (rows, frames). `fn` runs such a call and puts what it gives into `outputs`.

    chunks: the codec's other calls, on the same stream. frames: of the codec's calls at most.
    """

    def __init__(
        self, fn: Callable[[int, int], None], timing: CodecTiming, frames: int, chunks: CudaGraphRunner
    ) -> None:
        self.timing, self._frames = timing, min(frames, MOST_FRAMES)
        self.graphs = CudaGraphRunner("whole codec", fn, chunks.device, chunks.stream, chunks.required, chunks)
        self.outputs: dict[tuple[int, int], CodecOutput] = {}

    def plan(self, slots: int) -> list[Callable[[], None]]:
        """Choose the graphs. Returns calls that launch their kernels."""
        return self.graphs.plan(*capture_order.whole_calls(self.keys(slots)))

    def keys(self, slots: int) -> list[tuple[int, int]]:
        """(rows, frames), largest first: rows by powers of two, up to as many as one call holds."""
        rows = [1 << i for i in range(slots.bit_length()) if 1 << i <= slots]
        keys = [(b, n) for n in self.timing.wholes for b in rows if b == 1 or b * n <= self._frames]
        return sorted(keys, key=lambda k: k[0] * k[1], reverse=True)

    def size(self, count: int) -> int:
        """Frames of the call for an utterance of so many, its codec prefix among them."""
        need = self.timing.on_grid(count)
        return min((n for _, n in self.graphs.graphs if n >= need), default=need)

    def parts(self, jobs: list[AudioJob]) -> list[list[AudioJob]]:
        """Jobs of one size, by call."""
        size = self.size(jobs[0].count)
        captured = [b for b, n in self.graphs.graphs if n == size]
        most = max(captured, default=max(1, self._frames // size))
        return [jobs[at : at + most] for at in range(0, len(jobs), most)]

    def key(self, rows: int, count: int) -> tuple[int, int]:
        """The call of so many rows of one size."""
        size = self.size(count)
        return min((b for b, n in self.graphs.graphs if b >= rows and n == size), default=rows), size

    def __call__(self, key: tuple[int, int]) -> CodecOutput:
        """Run a call."""
        self.graphs(*key)
        return self.outputs[key]
