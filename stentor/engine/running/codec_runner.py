"""The codec on the device: state of every slot, calls for audio chunks, and their copies to the
host.

Nothing here waits for the device.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence as Seq
from dataclasses import dataclass, replace
from typing import NamedTuple, cast

import numpy as np
import torch
from torch import Tensor

from stentor.config import EngineConfig
from stentor.engine.running.codec_calls import (
    CallShape,
    ChunkCalls,
    CodecCalls,
    Shapes,
    UtteranceCalls,
)
from stentor.engine.running.codec_state import CodecStateTable
from stentor.engine.running.cuda_graphs import CudaGraphRunner
from stentor.engine.running.device import CODEC, CudaStream, Device, Event
from stentor.engine.running.slot_table import SlotTable
from stentor.engine.scheduling.audio_scheduler import AudioJob
from stentor.engine.scheduling.chunks import chunk_sizes
from stentor.engine.scheduling.sequence import Phase, Sequence
from stentor.engine.sizes import BufferSizes
from stentor.errors import EngineError
from stentor.layers.types import NO_END, CodecCall
from stentor.models.base import Prompt, SpeechModel
from stentor.models.codec_timing import UtteranceTiming

log = logging.getLogger("stentor.engine")

NUMBERS = 5
"""Numbers of a row in a call: slot, first frame to read, first and last frame to decode, end."""


class CodecOutput(NamedTuple):
    """Output of a codec call, with where in the text its frames are, if anything knows it.

    samples [B, n * hop + late], frames [B, n, *frame], attended [B, n, ATTENDED_WIDTH or 0].
    """

    samples: Tensor
    frames: Tensor
    attended: Tensor


@dataclass
class InFlightAudio:
    """A launched codec call. `rows` of its output belong to `jobs`, and are on the host once
    `finished` is ready."""

    jobs: list[AudioJob]
    rows: Seq[int]
    output: CodecOutput
    finished: Event
    staged: tuple[Tensor, ...]  # device tensors that must live until `finished`

    def arrays(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Samples, frames and text positions, once `finished` is ready."""
        samples, frames, attended = (part.numpy() for part in self.output)
        return samples, frames, attended


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
        self.timing = model.spec.codec_timing
        self.calls = self._kind_of_calls(config)
        self._compares_rows = config.deterministic and not self.timing.batch_invariant
        self.stream = device.stream(CODEC)
        self.copies = device.stream(CODEC)  # copies audio to the host beside the codec's next call
        self.graphs = CudaGraphRunner(
            "codec", self._decode_call, device, self.stream, config.require_graphs
        )
        # While calls are captured, each row is the one that padding writes to.
        self.inputs = torch.full(
            (NUMBERS * sizes.slots,), sizes.slots, dtype=torch.int64, device=where
        )
        """`NUMBERS` of a call with B rows: B slots, B first frames to read, and so on."""
        self.outputs: dict[CallShape, CodecOutput] = {}  # of the last run of each shape
        self.moved_on = False
        """Whether a call has written the codec's state, so that it cannot be tried again."""
        self._first_frames: dict[int, tuple[InFlightAudio, int]] = {}
        """By request: the call that decodes its first frame, and its row."""

    def _kind_of_calls(self, config: EngineConfig) -> CodecCalls:
        timing = self.timing
        if isinstance(timing, UtteranceTiming):
            return UtteranceCalls(timing, self.sizes.codec_frames, self.sizes.slots)
        chunk, ramp = chunk_sizes(config.policy, timing)
        return ChunkCalls([*ramp, chunk], self.sizes.codec_frames)

    def capture(self) -> None:
        """Capture every graph, compare rows of calls where they must not depend on each other, and
        take pinned memory for what the calls return."""
        shapes = self.calls.captured_shapes(self.sizes.slots)
        with self.stream.active():
            self.graphs.capture(shapes)
            if self._compares_rows and not self._rows_agree(shapes):
                log.warning(
                    "deterministic: on this GPU, rows of a codec call change each other's samples, "
                    "so every row gets a call of its own"
                )
                self._separate_rows()

        parts = [part for output in self.outputs.values() for part in output]
        self.device.reserve_pinned(max((part.nbytes for part in parts), default=0))

    def _rows_agree(self, shapes: list[CallShape]) -> bool:
        """Whether every shape is captured, and its rows have the samples of a call of one row."""
        expected: dict[tuple[int, int], Tensor] = {}  # samples [1, n] by frames read and decoded

        # Calls of one row come first.
        for shape in sorted(shapes):
            if shape not in self.graphs.graphs:
                return False

            samples = self._decode_padding(shape)
            one_row = expected.setdefault((shape.reads, shape.decodes), samples[:1])
            if not torch.equal(samples, one_row.expand_as(samples)):
                return False

        return True

    def _decode_padding(self, shape: CallShape) -> Tensor:
        """Samples of a captured call of padding rows."""
        self.fill_padding(shape)
        self.graphs(*shape)

        # The next graph writes into the same memory.
        return self.outputs[shape].samples.clone()

    def fill_padding(self, shape: CallShape) -> None:
        """Fill the inputs of a call with padding rows in their first state. With `stream`
        active."""
        rows = shape.rows
        slots = [self.sizes.slots] * rows
        zeros = [0] * (2 * rows)  # first frames to read, and to decode
        stop = [shape.decodes] * rows
        self.device.fill(self.inputs, slots + zeros + stop + [NO_END] * rows)
        self.states.reset(self._padding)

    def _separate_rows(self) -> None:
        """Decode every row in a call of its own from now on."""
        assert isinstance(self.calls, UtteranceCalls)
        self.calls.max_rows = 1
        for shape in list(self.captured):
            if shape.rows > 1:
                self.graphs.drop(shape)
                del self.outputs[shape]

    @property
    def captured(self) -> Shapes:
        """Shapes that have a graph."""
        return cast(Shapes, self.graphs.graphs.keys())

    # -- state --

    def admit(self, new: list[tuple[Sequence, Prompt]]) -> None:
        """Set the codec state of new requests: silence, or that of their voice, copied once per
        voice."""
        with self.stream.active():
            self.states.reset(self.device.upload([seq.slot for seq, _ in new]))
            # By identity of the state: it, and the slots that get it.
            primed: dict[int, tuple[Tensor, list[int]]] = {}
            for seq, prompt in new:
                if (state := prompt.codec_state) is not None:
                    primed.setdefault(id(state), (state, []))[1].append(seq.slot)
            for state, slots in primed.values():
                self.states.fill(self.device.upload(slots), state)

    def save(self, seq: Sequence) -> Tensor:
        """A host copy of the codec's state of a request that leaves its slot."""
        with self.stream.active():
            return self.device.download(self.states.data[seq.slot].clone())

    def restore(self, seq: Sequence, saved: Tensor) -> None:
        """Write such a state into the request's new slot."""
        with self.stream.active():
            self.states.data[seq.slot].copy_(saved, non_blocking=True)

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
        first = [AudioJob(seq, 0, 1, last=False, reads=1) for seq in sequences]
        for part in self.parts(first):
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
        """Jobs of each call, chunks of one request in order."""
        return self.calls.group(jobs, self.captured)

    def launch(self, jobs: list[AudioJob]) -> InFlightAudio:
        """Launch one codec call for jobs that may share it, and the copy of their audio to the
        host."""
        self.moved_on = False
        rows = len(jobs)
        num_frames = max(job.count for job in jobs)
        samples = num_frames * self.model.spec.hop + self.timing.late
        with self.stream.active():
            out = self._decode(jobs)
            parts = (
                out.samples[:rows, :samples],
                out.frames[:rows, :num_frames],
                out.attended[:rows, :num_frames],
            )
            staged = tuple(self.device.stage(part) for part in parts)
            decoded = self.device.event()
            decoded.record()
            with self.copies.active():
                decoded.wait_stream()
                on_host = [self.device.download(t) for t in staged]
                call = InFlightAudio(
                    jobs, range(rows), CodecOutput(*on_host), self.device.event(), staged
                )
                call.finished.record()
        return call

    def _decode(self, jobs: list[AudioJob]) -> CodecOutput:
        shape = self.calls.shape(jobs, self.captured)
        self._fill_inputs(jobs, shape.rows)
        if shape.rows > len(jobs):
            # Counters of the padding row would pass the end of RoPE's table after some days.
            self.states.reset(self._padding)
        self.graphs(*shape)
        self.moved_on = True  # also where a graph has run
        return self.outputs[shape]

    def _fill_inputs(self, jobs: list[AudioJob], rows: int) -> None:
        none = [0] * (rows - len(jobs))
        padding = rows - len(jobs)
        slots = [job.seq.slot for job in jobs] + [self.sizes.slots] * padding
        first = [self.calls.first_read(job) for job in jobs] + none
        start = [job.start for job in jobs] + none
        stop = [job.start + job.count for job in jobs] + none
        ended = [job.seq.num_emitted if job.last else NO_END for job in jobs]
        self.device.fill(self.inputs, slots + first + start + stop + ended + [NO_END] * padding)

    def _decode_call(self, rows: int, reads: int, decodes: int) -> None:
        """The captured function: `inputs` in, `outputs` and new states out."""
        inputs = self.inputs[: NUMBERS * rows].view(NUMBERS, rows)
        idx, first, start, stop, end = inputs
        frames, attended = self._read(idx, first, reads)
        samples, new = self.model.codec.decode(
            frames, self.states.gather(idx), CodecCall(start, stop, end, decodes)
        )
        shape = (rows, decodes * self.model.spec.hop + self.timing.late)
        if samples.shape != shape:
            raise EngineError(
                f"codec.decode gives samples {tuple(samples.shape)}, and by spec.hop they are {shape}"
            )
        self.moved_on = True
        self.states.store(idx, new)
        if isinstance(self.timing, UtteranceTiming):
            frames, attended = self._read(idx, start, decodes)
        self.outputs[CallShape(rows, reads, decodes)] = CodecOutput(samples, frames, attended)

    def _read(self, idx: Tensor, first: Tensor, count: int) -> tuple[Tensor, Tensor]:
        """`count` frames of each slot from frame `first` [B] on, and where in the text they are."""
        at = first[:, None] + torch.arange(count, device=self.device.torch)
        return self.slots.emitted_frames(idx, at)
