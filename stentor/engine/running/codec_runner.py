"""The codec on the device: state of every slot, calls for audio chunks, and their copies to the
host.

Nothing here waits for the device.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from stentor.config import EngineConfig
from stentor.engine.running.codec_state import CodecPages, CodecStateTable, SavedCodec
from stentor.engine.running.cuda_graphs import CudaGraphRunner
from stentor.engine.running.device import CODEC, CudaStream, Device, Event
from stentor.engine.running.slot_table import SlotTable
from stentor.engine.scheduling.audio_scheduler import AudioJob, chunk_sizes
from stentor.engine.scheduling.sequence import RUNNING, Phase, Sequence
from stentor.engine.sizes import BufferSizes
from stentor.errors import EngineError
from stentor.layers.types import NO_END, CodecCall, CodecPageTable, State
from stentor.models.base import Prompt, SpeechModel

SMALL_CALL = 32  # rows times frames of a codec call that takes no longer when padded
WHOLE_FRAMES = 800
"""Frames in a call of several whole utterances. So many fill a GPU, and longer ones are captured
for fewer rows."""
BESIDE = 8
"""Rows of a call at most where each is decoded alone, and beside the others: more would gain
nothing."""


class CodecOutput(NamedTuple):
    """Output of a codec call: samples [B, n * hop], their frames [B, n, *frame], and where in the
    text these are [B, n, ATTENDED_WIDTH], or [B, n, 0] without alignment."""

    samples: Tensor
    frames: Tensor
    attended: Tensor


@dataclass
class InFlightAudio:
    """A launched codec call. `rows` of its output belong to `jobs`. They are on the host once
    `done` is ready. They begin `delay` frames before the chunks."""

    jobs: list[AudioJob]
    rows: Seq[int]
    output: CodecOutput
    done: Event
    staged: tuple[Tensor, ...]  # device tensors that must live until `done`
    delay: int

    def arrays(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Samples, frames and text positions, once `done` is ready."""
        samples, frames, attended = (part.numpy() for part in self.output)
        return samples, frames, attended

    def first_frame(self, job: AudioJob) -> int:
        """The frame of the stream with which its row of samples and frames begins."""
        return job.start - self.delay


class CodecRunner:
    """Owns the codec's buffers and streams. Every method is called from the engine's thread.

    slots: where the language model leaves frames. lm_stream: the stream on which it does.
    """

    def __init__(
        self,
        model: SpeechModel,
        sizes: BufferSizes,
        config: EngineConfig,
        device: Device,
        slots: SlotTable,
        lm_stream: CudaStream,
    ) -> None:
        self.model = model
        self.sizes = sizes
        self.device = device
        self.slots = slots
        self.lm_stream = lm_stream
        where = device.torch
        self.states = CodecStateTable(model.codec.columns, sizes.slots + 1, where)
        self._padding = torch.tensor([sizes.slots], device=where)
        self.timing = model.spec.codec_timing.for_engine(config.deterministic)
        self.pages = CodecPages(model.codec.pages, self.timing, sizes.slots, device)
        self.stream = device.stream(CODEC)
        self.copies = device.stream(CODEC)  # copies audio to the host beside the codec's next call
        self._beside = [device.stream(CODEC) for _ in range(BESIDE if self.timing.alone else 0)]
        of_stream = (device, self.stream, config.require_graphs)
        whole = partial(self._decode_call, whole=True)
        self.graphs = CudaGraphRunner("codec", self._decode_call, *of_stream)
        self.whole_graphs = CudaGraphRunner(
            "whole codec", whole, *of_stream, shares_pool_of=self.graphs
        )
        self._whole_frames = min(sizes.codec_frames, WHOLE_FRAMES)
        chunk, ramp = chunk_sizes(config.policy, self.timing)
        if self.timing.chunks:
            self.counts = sorted({*ramp, chunk})
        else:
            self.counts = []
        if self.pages.width:
            self.numbers = 4 + self.pages.width
        else:
            self.numbers = 3
        # while calls are captured, slot 0 and page 0 are free
        if self.pages.width:
            idle = 0
        else:
            idle = sizes.slots
        self.inputs = torch.full(
            (self.numbers * sizes.slots,), idle, dtype=torch.int64, device=where
        )
        """Numbers of a call with B rows: B slots, B first frames and B ends of streams, one after
        the other. With pages also B numbers of filled pages and B rows of the page table."""
        self.outputs: dict[
            tuple[int, int, bool], CodecOutput
        ] = {}  # of the last run, by rows, frames, whether whole
        self.moved_on = (
            False  # whether a call has written the codec's state, so that it cannot be tried again
        )
        self._first_frames: dict[
            int, tuple[InFlightAudio, int]
        ] = {}  # by request: its row of a call

    @property
    def graph_runners(self) -> tuple[CudaGraphRunner, ...]:
        """Graphs that the engine's thread replays."""
        return self.graphs, self.whole_graphs

    def capture(self) -> None:
        """Capture every graph."""
        slots = self.sizes.slots
        with self.stream.active():
            self.graphs.capture(self.graph_keys(slots))
            self.whole_graphs.capture(self.whole_keys(slots))

    def graph_keys(self, slots: int) -> list[tuple[int, int]]:
        """(rows, frames), largest first: rows by powers of two, up to as many as one call holds."""
        if self.timing.alone:
            most = min(slots, BESIDE)
        else:
            most = slots
        keys = set()
        for frames in self.counts:
            max_rows = max(1, min(most, self.sizes.codec_frames // frames))
            keys |= {(min(1 << i, max_rows), frames) for i in range(max_rows.bit_length() + 1)}
        return sorted(keys, key=lambda k: k[0] * k[1], reverse=True)

    def whole_keys(self, slots: int) -> list[tuple[int, int]]:
        """(rows, frames) of calls that hold whole utterances, padded to a few lengths."""
        if self.timing.alone:
            most = 1
        else:
            most = slots
        rows = [1 << i for i in range(most.bit_length()) if 1 << i <= most]
        keys = [
            (b, n)
            for n in self.timing.wholes
            for b in rows
            if b == 1 or b * n <= self._whole_frames
        ]
        return sorted(keys, key=lambda k: k[0] * k[1], reverse=True)

    # -- state --

    def admit(self, new: list[tuple[Sequence, Prompt]]) -> None:
        """Set the codec state of new requests: silence, or that of their voice, copied once per
        voice."""
        with self.stream.active():
            self.states.reset(self.device.upload([seq.slot for seq, _ in new]))
            words = self.states.data.shape[1]
            primed: dict[
                int, tuple[Tensor, list[int]]
            ] = {}  # states by identity, each with the slots that get it
            for seq, prompt in new:
                if (state := prompt.codec_state) is not None:
                    primed.setdefault(id(state), (state, []))[1].append(seq.slot)
            for state, slots in primed.values():
                self.states.fill(self.device.upload(slots), state[:words])
            for seq, prompt in (
                new if self.pages.width else []
            ):  # a view of each state would take time for nothing
                if prompt.codec_state is None:
                    state = self.states.fresh[0]
                else:
                    state = prompt.codec_state
                if self.timing.whole and not seq.streaming:
                    prefix = 0
                else:
                    prefix = len(prompt.codec_prefix)
                self.pages.enter(seq.slot, prefix, prompt.voice, state[words:])

    def save(self, seq: Sequence) -> SavedCodec:
        """A host copy of the codec's state of a request that leaves its slot."""
        with self.stream.active():
            words = torch.cat((self.states.data[seq.slot], *self.pages.save(seq.slot)))
            return SavedCodec(self.device.download(words), self.pages.held(seq.slot))

    def restore(self, seq: Sequence, saved: SavedCodec) -> None:
        """Write such a state into the request's new slot."""
        with self.stream.active():
            count = self.states.data.shape[1]
            self.states.data[seq.slot].copy_(saved.words[:count], non_blocking=True)
            self.pages.restore(seq.slot, saved.pages, saved.words[count:])

    # -- audio --

    def launched_first(self, jobs: list[AudioJob]) -> tuple[list[InFlightAudio], list[AudioJob]]:
        """The calls of `decode_first_frames` that hold chunks of these, each with these only, and
        the other chunks."""
        calls: dict[int, InFlightAudio] = {}
        rest: list[AudioJob] = []
        for job in jobs:
            if job.start or job.seq.id not in self._first_frames:
                rest.append(job)
                continue
            assert job.count == 1
            call, row = self._first_frames.pop(job.seq.id)
            copy = calls.get(id(call), replace(call, jobs=[], rows=[]))
            calls[id(call)] = replace(copy, jobs=[*copy.jobs, job], rows=[*copy.rows, row])
        return list(calls.values()), rest

    def decode_first_frames(self, sequences: list[Sequence]) -> None:
        """Decode frame 0 of each request right after the prefill that was launched last.

        This happens before the host has read the frame and before the next step. Run beside that
        step, the codec would take longer than the step is delayed. `launched_first` is called for
        the chunk once the host has read the frame. If there is no such frame, the request has ended
        and its codec state does not matter any more.
        """
        prefilled = self.device.event()
        decoded = self.device.event()
        with self.lm_stream.active():
            prefilled.record()
        with self.stream.active():
            prefilled.wait_stream()
        self._first_frames = {
            id: (call, row)
            for id, (call, row) in self._first_frames.items()
            if call.jobs[row].seq.phase is not Phase.DONE
        }
        for part in self.parts([AudioJob(seq, 0, 1, False) for seq in sequences]):
            call = self.launch(part)
            self._first_frames |= {job.seq.id: (call, row) for row, job in enumerate(call.jobs)}
        with self.stream.active():
            decoded.record()
        with self.lm_stream.active():
            decoded.wait_stream()

    def has_first_frame(self, seq: Sequence) -> bool:
        """Whether `decode_first_frames` has launched the first chunk of a request."""
        return seq.id in self._first_frames

    def parts(self, jobs: list[AudioJob]) -> list[list[AudioJob]]:
        """Jobs by call: chunks of equal length (on the codec's grid) together, chunks of one
        request in order."""
        rounds: dict[tuple[int, bool, int], list[AudioJob]] = {}
        round_of: dict[int, int] = {}
        for job in jobs:
            round_of[job.seq.id] = round_of.get(job.seq.id, -1) + 1
            key = round_of[job.seq.id], job.whole, self._size(job)
            rounds.setdefault(key, []).append(job)
        return [part for key in sorted(rounds) for part in self._equal_parts(rounds[key])]

    def _size(self, job: AudioJob) -> int:
        """Frames of the call for a job. A whole utterance, its codec prefix among them, is padded
        to a captured one."""
        need = self.timing.on_grid(job.count)
        if not job.whole:
            return need
        return min((n for _, n in self.whole_graphs.graphs if n >= need), default=need)

    def _equal_parts(self, jobs: list[AudioJob]) -> list[list[AudioJob]]:
        """Jobs of equal length in parts, chosen so that the captured calls hold few rows of
        padding."""
        count = self._size(jobs[0])
        if jobs[0].whole:
            max_rows = max(
                (b for b, n in self.whole_graphs.graphs if n == count),
                default=self._whole_frames // count,
            )
            return [
                jobs[at : at + max(1, max_rows)] for at in range(0, len(jobs), max(1, max_rows))
            ]
        sizes = {b for b, n in self.graphs.graphs if n >= count}
        parts = []
        at = 0
        while at < len(jobs):
            rows = rows_of_call(len(jobs) - at, count, sizes)
            parts.append(jobs[at : at + rows])
            at += rows
        return parts

    def launch(self, jobs: list[AudioJob]) -> InFlightAudio:
        """One codec call for chunks of equal length, and the copy of their audio to the host."""
        self.moved_on = False
        whole = jobs[0].whole
        if whole:
            delay = 0
        else:
            delay = self.timing.delay
        rows = len(jobs)
        used = max(j.count for j in jobs) + delay
        samples = used * self.model.spec.hop + self.timing.late
        with self.stream.active():
            out = self._decode(jobs, whole)
            parts = (
                out.samples[:rows, :samples],
                out.frames[:rows, :used],
                out.attended[:rows, :used],
            )
            staged = tuple(self.device.stage(part) for part in parts)
            decoded = self.device.event()
            decoded.record()
            with self.copies.active():
                decoded.wait_stream()
                on_host = [self.device.download(t) for t in staged]
                call = InFlightAudio(
                    jobs, range(rows), CodecOutput(*on_host), self.device.event(), staged, delay
                )
                call.done.record()
        return call

    def _decode(self, jobs: list[AudioJob], whole: bool) -> CodecOutput:
        """The output of chunks, from `delay` frames before each on, or of whole utterances. The
        codec's state moves on with chunks only."""
        batch, count = self._graph_key(jobs)
        self._fill_inputs(jobs, batch)
        if batch > len(
            jobs
        ):  # its counters move on with every call, and would pass the end of RoPE's table
            self.states.reset(self._padding)
        (self.whole_graphs if whole else self.graphs)(batch, count)
        self.moved_on = not whole  # also where a graph has run
        return self.outputs[batch, count, whole]

    def _fill_inputs(self, jobs: list[AudioJob], batch: int) -> None:
        padding = batch - len(jobs)
        slots = [j.seq.slot for j in jobs] + [self.sizes.slots] * padding
        ends = [j.seq.num_heard if j.seq.status != RUNNING else NO_END for j in jobs]
        inputs = slots + [j.start for j in jobs] + [0] * padding + ends + [NO_END] * padding
        if (
            self.pages.width
        ):  # how many pages each row's chunk reads, and the rows of the page table
            none = [self.pages.padding] * self.pages.width, 0
            rows = [
                none if j.whole else self.pages.row(j.seq.slot, j.start, j.count) for j in jobs
            ] + [none] * padding
            inputs += [filled for _, filled in rows] + [page for table, _ in rows for page in table]
        self.device.fill(self.inputs, inputs)

    def _given(
        self, batch: int, before: int, count: int
    ) -> tuple[Tensor, CodecCall, Tensor, Tensor]:
        """Slots and call of `inputs`, `count` frames of each row with so many before them, and
        where in the text they are."""
        inputs = self.inputs[: self.numbers * batch]
        idx, start, end, *rest = inputs.view(self.numbers, batch)
        table = inputs[4 * batch :].view(batch, self.pages.width)
        pages = CodecPageTable(self.pages.pool, table, rest[0] if rest else start)
        at = start[:, None] + torch.arange(-before, count, device=self.device.torch)
        return idx, CodecCall(start, end, pages), *self.slots.heard(idx, at)

    def _graph_key(self, jobs: list[AudioJob]) -> tuple[int, int]:
        """Rows and frames to decode. A stream's last chunk may be padded, as its state does not
        matter any more, unless it would need pages for that."""
        need = self._size(max(jobs, key=lambda j: j.count))
        least = len(jobs)
        if jobs[0].whole:
            return min(
                (b for b, n in self.whole_graphs.graphs if b >= least and n == need), default=least
            ), need
        last = all(j.last for j in jobs) and not self.pages.width
        if (least, need) in self.graphs.graphs:
            return least, need
        fits = [
            k
            for k in self.graphs.graphs
            if k[0] >= least and (k[1] == need or (last and k[1] > need))
        ]
        batch, count = min(fits, key=lambda k: (k[1], k[0]), default=(least, need))
        return batch, count

    def _decode_call(self, batch: int, count: int, whole: bool = False) -> None:
        """The captured function: `inputs` in, `outputs` and new states out. Whole utterances leave
        the states."""
        before, after = (0, 0) if whole else (self.timing.delay, self.timing.lookahead)
        idx, call, frames, where = self._given(batch, before, count + after)
        decode = self._decode_alone if self.timing.alone else self.model.codec.decode
        samples, new = decode(
            frames[:, before:], self.states.gather(idx), call._replace(whole=whole)
        )
        hop = self.model.spec.hop
        if whole:
            late = 0
        else:
            late = self.timing.late
        if samples.shape != (wanted := (batch, (before + count) * hop + late)):
            raise EngineError(
                f"codec.decode gives samples {tuple(samples.shape)}, and by spec.hop they are {wanted}"
            )
        if not whole:
            self.moved_on = True
            self.states.store(idx, new)
        self.outputs[batch, count, whole] = CodecOutput(samples, frames, where)

    def _decode_alone(self, frames: Tensor, state: State, call: CodecCall) -> tuple[Tensor, State]:
        """Decode each row in a call of its own, beside the others."""
        streams = self._beside[: len(frames)]
        given = self.device.event()
        given.record()
        for stream in streams:
            with stream.active():
                given.wait_stream()
        decoded: list[tuple[Tensor, State]] = []
        for i in range(len(frames)):
            row, (pool, table, filled) = slice(i, i + 1), call.pages
            pages = CodecPageTable(pool, table[row], filled[row])
            own = call._replace(start=call.start[row], end=call.end[row], pages=pages)
            with streams[i % len(streams)].active():
                decoded.append(
                    self.model.codec.decode(frames[row], {n: t[row] for n, t in state.items()}, own)
                )
        for stream in streams:
            done = self.device.event()
            with stream.active():
                done.record()
            done.wait_stream()
        samples, states = zip(*decoded, strict=True)
        return torch.cat(samples), {
            name: torch.cat([s[name] for s in states]) for name in states[0]
        }


def rows_of_call(waiting: int, frames: int, sizes: set[int]) -> int:
    """Rows that the next call takes of those `waiting` for calls of so many frames. `sizes`: rows
    of captured calls.

    Padding may be a quarter of a call, or more where the call is small.
    """
    fitting = min((b for b in sizes if b >= waiting), default=0)
    if not sizes or (fitting and (3 * fitting <= 4 * waiting or fitting * frames <= SMALL_CALL)):
        return waiting
    return max((b for b in sizes if b <= waiting), default=waiting)
