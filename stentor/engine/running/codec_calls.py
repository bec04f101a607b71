"""Grouping of audio jobs into codec calls, and the shapes of the calls that are captured."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from itertools import groupby
from operator import attrgetter
from typing import NamedTuple, Protocol

from stentor.engine.scheduling.audio_scheduler import AudioJob
from stentor.models.codec_timing import UtteranceTiming

SMALL_CALL = 32  # rows times frames of a codec call that takes no longer when padded


class CallShape(NamedTuple):
    """Rows of a call, the frames that it reads of each, and the frames that it decodes to audio."""

    rows: int
    reads: int
    decodes: int


Jobs = list[AudioJob]
Shapes = Collection[CallShape]


class CodecCalls(Protocol):
    """How a kind of codec is called."""

    def captured_shapes(self, slots: int) -> list[CallShape]:
        """Return the shapes of all calls to capture, largest first."""
        ...

    def group(self, jobs: Jobs, captured: Shapes) -> list[Jobs]:
        """Return the jobs of each call, chunks of one request in order."""
        ...

    def shape(self, jobs: Jobs, captured: Shapes) -> CallShape:
        """Return the shape of the call that decodes `jobs`."""
        ...

    def first_read(self, job: AudioJob) -> int:
        """Return the number of the first frame that a call reads for `job`."""
        ...


class ChunkCalls:
    """Calls of a codec with state: rows are chunks of equal length, of which it reads each frame
    once.

    counts: frames of the chunks that streams usually have. max_frames: rows times frames of a call.
    """

    def __init__(self, counts: Iterable[int], max_frames: int) -> None:
        self.counts = sorted(set(counts))
        self.max_frames = max_frames

    def captured_shapes(self, slots: int) -> list[CallShape]:
        """Return rows by powers of two, up to as many as one call holds, for each chunk length."""
        shapes = set()
        for count in self.counts:
            max_rows = max(1, min(slots, self.max_frames // count))
            for rows in powers_of_two(max_rows):
                shapes.add(CallShape(rows, count, count))
        return sorted(shapes, key=lambda shape: shape.rows * shape.decodes, reverse=True)

    def group(self, jobs: Jobs, captured: Shapes) -> list[Jobs]:
        calls = []
        for same_round in rounds(jobs):
            same_round.sort(key=attrgetter("count"))
            for count, equal in groupby(same_round, key=attrgetter("count")):
                sizes = {shape.rows for shape in captured if shape.decodes >= count}
                calls += split_rows(list(equal), count, sizes)
        return calls

    def shape(self, jobs: Jobs, captured: Shapes) -> CallShape:
        rows = len(jobs)
        count = max(job.count for job in jobs)
        # After a stream's last chunk its state is never read again, so that chunk may be padded.
        may_pad_time = all(job.last for job in jobs)
        fitting = [
            shape
            for shape in captured
            if shape.rows >= rows
            and (shape.decodes == count or (may_pad_time and shape.decodes > count))
        ]
        if not fitting:
            return CallShape(rows, count, count)
        return min(fitting, key=lambda shape: (shape.decodes, shape.rows))

    def first_read(self, job: AudioJob) -> int:
        return job.start


class UtteranceCalls:
    """Calls of a codec that decodes each chunk from its whole utterance so far.

    A stream's calls decode as many frames as its longest chunk has, those of other requests all
    frames. max_rows: of one call.
    """

    def __init__(self, timing: UtteranceTiming, max_frames: int, max_rows: int) -> None:
        self.timing = timing
        self.max_frames = min(max_frames, timing.chunk)
        self.max_rows = max_rows

    def captured_shapes(self, slots: int) -> list[CallShape]:
        """Return rows by powers of two for each length, for streams and for other requests."""
        shapes = set()
        for length in self.timing.lengths:
            for rows in powers_of_two(self._max_rows(length, slots)):
                shapes.add(CallShape(rows, length, length))
                shapes.add(CallShape(rows, length, min(length, self.timing.longest)))
        return sorted(
            shapes, key=lambda shape: (shape.rows * shape.reads, shape.decodes), reverse=True
        )

    def group(self, jobs: Jobs, captured: Shapes) -> list[Jobs]:
        def kind(job: AudioJob) -> tuple[bool, int]:
            return not job.seq.streaming, self._length(job, captured)

        calls: list[Jobs] = []
        for same_round in rounds(jobs):
            same_round.sort(key=kind)
            for (_, length), alike in groupby(same_round, key=kind):
                rows = list(alike)
                size = self._max_rows(length, len(rows))
                for first in range(0, len(rows), size):
                    calls.append(rows[first : first + size])
        return calls

    def shape(self, jobs: Jobs, captured: Shapes) -> CallShape:
        length = max(self._length(job, captured) for job in jobs)
        decodes = length
        exact = length
        if jobs[0].seq.streaming:
            decodes = min(self.timing.longest, length)
            exact = max(job.count for job in jobs)
        fitting = [
            shape
            for shape in captured
            if shape.reads == length and shape.decodes == decodes and shape.rows >= len(jobs)
        ]
        if not fitting:
            return CallShape(len(jobs), length, exact)
        return min(fitting)

    def first_read(self, job: AudioJob) -> int:
        return -job.seq.codec_prefix

    def _length(self, job: AudioJob, captured: Shapes) -> int:
        """Frames of the shortest captured call that can read what `job` needs.

        Without one, lengths are multiples of the first hop, so that rows share calls.
        """
        fitting = [shape.reads for shape in captured if shape.reads >= job.reads]
        if not fitting:
            step = self.timing.hops[0]
            return -(-job.reads // step) * step
        return min(fitting)

    def _max_rows(self, frames: int, rows: int) -> int:
        """Rows of one call with `frames` frames each, at most `rows`."""
        return max(1, min(rows, self.max_rows, self.max_frames // frames))


def powers_of_two(limit: int) -> list[int]:
    """1, 2, 4 and so on up to `limit`, which is one of them whatever it is."""
    return sorted({min(1 << i, limit) for i in range(limit.bit_length() + 1)})


def rounds(jobs: Jobs) -> list[Jobs]:
    """The first job of each request, then the second of each that has two, and so on."""
    result: list[Jobs] = []
    number: dict[int, int] = {}
    for job in jobs:
        at = number.get(job.seq.id, 0)
        number[job.seq.id] = at + 1
        if at == len(result):
            result.append([])
        result[at].append(job)
    return result


def split_rows(jobs: Jobs, count: int, sizes: set[int]) -> list[Jobs]:
    """Jobs of equal length in parts, chosen so that the captured calls hold few rows of padding."""
    parts = []
    at = 0
    while at < len(jobs):
        rows = rows_of_call(len(jobs) - at, count, sizes)
        parts.append(jobs[at : at + rows])
        at += rows
    return parts


def rows_of_call(waiting: int, frames: int, sizes: set[int]) -> int:
    """Return how many of the `waiting` rows the next call takes: all if a captured call holds them
    with little padding, else as many as fill the largest captured call.

    frames: of each row. sizes: rows of captured calls. Padding is at most a quarter of the call,
    unless the call has at most SMALL_CALL frames.
    """
    fitting = min((b for b in sizes if b >= waiting), default=0)
    if not sizes or (fitting and (3 * fitting <= 4 * waiting or fitting * frames <= SMALL_CALL)):
        return waiting
    return max((b for b in sizes if b <= waiting), default=waiting)
