"""The language model on the device: rows go in, steps are launched, reports come out.

Nothing here waits for the device.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from stentor.config import EngineConfig
from stentor.engine.running import step
from stentor.engine.running.cuda_graphs import CudaGraphRunner
from stentor.engine.running.device import LANGUAGE_MODEL, Device, Event, Shape, StagingBuffer
from stentor.engine.running.kv_cache import PagedKV
from stentor.engine.running.prefill_batch import (
    BatchShape,
    Group,
    Piece,
    PrefillBuffers,
    batch_shape,
    build_eager_batch,
    pieces_of,
)
from stentor.engine.running.slot_table import SlotTable
from stentor.engine.scheduling.sequence import RUNNING, Sequence
from stentor.engine.sizes import BufferSizes
from stentor.errors import InvalidRequest
from stentor.layers.types import ADAPTER
from stentor.models.base import Prompt, SpeechModel

DECODE_ROWS = (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 192, 256)
PREFILL_TOKENS = (2048, 1536, 1024, 768, 512, 384, 256, 192, 128, 96, 64, 32)
"""Captured prefills, by tokens of prompts, whatever the number of rows."""
REPLAY_TOKENS = (2048, 512, 128)
"""Sizes of prefills of frames that preempted requests had."""
FIRST_ROWS = (32, 16, 8, 1)
"""Captured frames 0, by rows, besides as many as there are slots."""
OTHER_ROWS = (16, 4, 1)
"""Captured steps and frames 0 where `emit` loops another number of times, besides as many rows as
there are slots."""
MAX_PREFILL_TOKENS = max(PREFILL_TOKENS)
"""Tokens of one captured prefill at most."""
DECODE_PAGES = (32, 128)
"""Pages per request of captured steps, besides the most, where attention is not fused and its shape
depends on them."""


@dataclass
class InFlightStep:
    """A launched step: the requests that it names, and where their report will be."""

    sequences: list[Sequence]
    # host [2, slots + 1]: frames generated, stop value. Or [4, slots + 1]: also positions, frames
    # emitted
    report: Tensor
    finished: Event
    prefill: bool
    launched_at: float  # time.monotonic()
    prefilled_at: float = 0.0  # when its prompts were launched, before their first frames

    def result(self) -> tuple[list[int], list[int], list[int]]:
        """Generated frames, stop value and audible frames of every slot. Waits until the step has
        run."""
        self.finished.wait_host()
        generated, stop, *rest = self.report.tolist()
        return generated, stop, rest[-1] if rest else generated


class ModelRunner:
    """Owns the language model's buffers and stream. Every method is called from the engine's
    thread."""

    def __init__(
        self, model: SpeechModel, sizes: BufferSizes, config: EngineConfig, device: Device
    ) -> None:
        self.model = model
        self.sizes = sizes
        self.device = device
        where = device.torch
        self.slots = SlotTable(model.spec, sizes.slots, sizes.max_frames, where)
        frame_limit = min(sizes.frame_pages, sizes.max_model_len + 1)
        by_frame = {
            name: PagedKV(kv, sizes.slots, sizes.frame_pages, kv.rows, frame_limit, where)
            for name, kv in model.spec.frame_kv.items()
        }
        self.kv = PagedKV(
            model.spec.kv,
            sizes.slots,
            sizes.pages,
            sizes.page_size,
            sizes.max_pages,
            where,
            by_frame,
        )
        self.batch_sizes = config.batch_sizes or (
            default_batch_sizes(sizes.slots) if device.cuda else ()
        )
        largest_batch = max((sizes.slots, *self.batch_sizes))
        padding = sizes.slots
        self.idx = torch.full((largest_batch,), padding, dtype=torch.int64, device=where)
        self._idx_host: list[int] = []
        # whether a launch has made its frames, so that it cannot be tried again
        self.moved_on = False
        self.first_idx = torch.full((sizes.slots,), padding, dtype=torch.int64, device=where)
        if device.cuda:
            self.evals = {model.spec.num_evals, *model.spec.captured_evals}
        else:
            self.evals = set()
        self.stream = device.stream(LANGUAGE_MODEL)
        of_stream = (device, self.stream, config.require_graphs)
        self.decode_graphs = CudaGraphRunner("decode", self._decode, *of_stream)
        self.prefill_graphs = CudaGraphRunner(
            "prefill", self._prefill, *of_stream, self.decode_graphs
        )
        self.first_graphs = CudaGraphRunner(
            "frame 0", self._first_frame, *of_stream, self.decode_graphs
        )
        if device.cuda:
            longest = min(MAX_PREFILL_TOKENS, sizes.prefill_tokens)
        else:
            longest = 0
        if model.spec.gives_frames:
            frames = longest
        else:
            frames = 0
        largest = BatchShape(longest, sizes.slots, frames, longest)
        self.prefill_buffers = PrefillBuffers(model.spec, largest, sizes.slots, device)

    @property
    def graph_runners(self) -> tuple[CudaGraphRunner, ...]:
        return self.decode_graphs, self.prefill_graphs, self.first_graphs

    def capture(self) -> None:
        """Capture every graph."""
        with self.stream.active():
            self.decode_graphs.capture(self.decode_keys())
            if self.kv.fused and self.device.cuda:
                self.prefill_graphs.capture(self.prefill_keys())
                self.first_graphs.capture(self.first_keys())

    def decode_keys(self) -> Iterator[tuple[int, int, int]]:
        """(rows, pages, num_evals)."""
        max_pages = self.sizes.max_pages
        main = self.model.spec.num_evals
        if self.kv.fused:
            pages = {max_pages}
        else:
            pages = {min(max_pages, n) for n in (*DECODE_PAGES, max_pages)}
        for rows in sorted(self.batch_sizes, reverse=True):
            for count in sorted(pages, reverse=True):
                for evals in sorted(self.evals, reverse=True):
                    if evals == main or rows in (max(self.batch_sizes), *OTHER_ROWS):
                        yield (rows, count, evals)

    def prefill_keys(self) -> Iterator[tuple[int, int, int]]:
        """(tokens, prompt frames, replayed frames): as many of one kind as tokens, or none."""
        max_tokens = self.sizes.prefill_tokens
        for tokens in [n for n in PREFILL_TOKENS if n <= max_tokens] or [max_tokens]:
            if self.model.spec.gives_frames:
                yield (tokens, tokens, 0)
            yield (tokens, 0, 0)
            if tokens in (*REPLAY_TOKENS, max_tokens):
                yield (tokens, 0, tokens)

    def first_keys(self) -> Iterator[tuple[int, int, int]]:
        """(rows, pages, num_evals)."""
        slots = self.sizes.slots
        for rows in (slots, *(n for n in FIRST_ROWS if n < slots)):
            for evals in sorted(self.evals, reverse=True):
                if evals == self.model.spec.num_evals or rows in (slots, *OTHER_ROWS):
                    yield (rows, self.sizes.max_pages, evals)

    # -- host to device --

    def admit(self, new: list[tuple[Sequence, Prompt, int]]) -> None:
        """Write the rows of requests, with their seeds. Many rows take as many kernel launches as
        one."""
        rows = [(seq.slot, _columns(prompt, seed)) for seq, prompt, seed in new]
        with self.stream.active():
            self.slots.admit(rows, self.device)

    def covering_evals(self, num_evals: int) -> int:
        """The loop length with which a row is launched: the smallest captured one that is enough.

        InvalidRequest if none is: each of its steps would run without a graph, at everyone's
        expense. Where nothing is captured, any length is served as it is.
        """
        max_evals = max(self.evals, default=num_evals)
        if num_evals > max_evals:
            raise InvalidRequest(
                "flow_steps", f"takes {num_evals} evaluations per frame, here at most {max_evals}"
            )
        covering = [evals for evals in self.evals if evals >= num_evals]
        return min(covering, default=num_evals)

    def extend(self, seq: Sequence, name: str, start: int, values: np.ndarray) -> None:
        """Write values of a column from index `start` on, for a request that has a slot."""
        with self.stream.active():
            row = self.slots.table[name][seq.slot]
            end = start + len(values)
            uploaded = self.device.upload(values).to(row.dtype)
            row[start:end].copy_(uploaded, non_blocking=True)

    def save(self, seq: Sequence) -> list[Tensor]:
        """A host copy of the row of a request that leaves its slot."""
        with self.stream.active():
            return self.slots.save(seq.slot, seq.num_generated, self.device)

    def restore(self, seq: Sequence, saved: list[Tensor]) -> None:
        """Write such a row into the request's new slot."""
        with self.stream.active():
            self.slots.restore(seq.slot, seq.num_generated, saved)

    def set_pages(self, sequences: list[Sequence]) -> None:
        """Write the page table rows of requests."""
        slots = [seq.slot for seq in sequences]
        pages = [seq.pages for seq in sequences]
        self._set_table([self.kv], slots, pages)
        by_frame = self.kv.frames.values()
        if by_frame:
            frame_pages = [seq.frame_pages for seq in sequences]
            self._set_table(by_frame, slots, frame_pages)

    def _set_table(
        self, sets: Collection[PagedKV], slots: list[int], pages: list[list[int]]
    ) -> None:
        """Write page table rows of slots, which these page sets have in common."""
        first = next(iter(sets))
        rows = len(slots)
        width = first.table.shape[1]
        parts: dict[str, Shape] = {
            "slot": ((rows,), torch.int64),
            "pages": ((rows, width), torch.int64),
        }
        buffer = StagingBuffer(parts, self.device)
        buffer.host["slot"][:] = slots
        buffer.host["pages"][:] = first.pages
        for row, row_pages in zip(buffer.host["pages"], pages, strict=True):
            row[: len(row_pages)] = row_pages
        with self.stream.active():
            sent = buffer.send()
            for kv in sets:
                kv.table.index_copy_(0, sent["slot"], sent["pages"])

    def fill_pages(self, seq: Sequence, prompt: Prompt) -> None:
        """Write the keys and values that a prompt brings into its pages, behind those that it
        shares."""
        assert prompt.given_kv is not None
        start = seq.num_cached
        self._fill(self.kv, seq.pages, prompt.given_kv, start)
        if start:
            return  # who shares the first page shares all frames that the prompt brings
        for name, keys_values in prompt.given_by_frame.items():
            self._fill(self.kv.frames[name], seq.frame_pages, keys_values, 0)

    def _fill(self, kv: PagedKV, pages: list[int], keys_values: np.ndarray, start: int) -> None:
        """Write keys and values [layers, 2, length, heads, dim] from place `start` on."""
        up = self.device.upload
        places = np.arange(start, keys_values.shape[2])
        number, offset = np.divmod(places, kv.page)
        page = np.array(pages)[number]
        with self.stream.active():
            kv.fill(up(page), up(offset), up(keys_values[:, :, start:]))

    # -- steps --

    def prefill(self, group: Group) -> InFlightStep:
        """Pieces of several requests, all of prompts or all of replayed frames. Frame 0 of those
        whose prompts end."""
        launched_at = time.monotonic()
        pieces = pieces_of(group)
        sequences = [seq for seq, _ in group]
        ends = [seq for seq in sequences if seq.emits]
        with self.stream.active():
            self._launch_prefill(pieces)
            prefilled_at = time.monotonic()
            if ends:
                self._launch_first_frame(ends)
                self.moved_on = True
            launched = self._in_flight(sequences, launched_at, True)
            launched.prefilled_at = prefilled_at
            return launched

    def _launch_prefill(self, pieces: list[Piece]) -> None:
        """Replay a graph for these pieces. Without one they run as they are."""
        need = batch_shape(pieces)
        size = (need.tokens, need.frames, need.steps)
        # no replay for prompts
        key = self.prefill_graphs.covering_key(size, least=1)
        if key in self.prefill_graphs.graphs:
            self.prefill_buffers.write(pieces, self.prefill_shape(*key))
            self.prefill_graphs(*key)
            return
        self.prefill_graphs.eager_calls += 1
        batch = build_eager_batch(pieces, self.model.spec, self.sizes.page_size, self.device)
        step.prefill(self.model, self.slots, self.kv, batch)

    def prefill_shape(self, tokens: int, frames: int, steps: int) -> BatchShape:
        """Shape of a captured prefill. Any number of its rows may end prompts, and none ends with
        replayed frames."""
        return BatchShape(tokens, 0 if steps else self.sizes.slots, frames, steps)

    def _prefill(self, tokens: int, frames: int, steps: int) -> None:
        batch = self.prefill_buffers.batch(self.prefill_shape(tokens, frames, steps))
        step.prefill(self.model, self.slots, self.kv, batch)

    def _launch_first_frame(self, sequences: list[Sequence]) -> None:
        """Frame 0 of these requests. All take the same `num_evals`."""
        size = (len(sequences), self._max_pages(sequences), sequences[0].num_evals)
        key = self.first_graphs.covering_key(size, least=1)
        rows = self._padded_slots(sequences, key[0])
        self.device.fill(self.first_idx, rows)
        self.first_graphs(*key)

    def _padded_slots(self, sequences: list[Sequence], size: int) -> list[int]:
        slots = [seq.slot for seq in sequences]
        padding = [self.sizes.slots] * (size - len(slots))
        return slots + padding

    def _first_frame(self, rows: int, max_pages: int, num_evals: int) -> None:
        step.first_frame(
            self.model, self.slots, self.kv, self.first_idx[:rows], max_pages, num_evals
        )

    def decode(self, sequences: list[Sequence]) -> InFlightStep:
        """One frame for each request. All take the same `num_evals`."""
        launched_at = time.monotonic()
        num_rows = len(sequences)
        captured = [size for size in self.batch_sizes if size >= num_rows]
        batch = min(captured, default=num_rows)
        size = (batch, self._max_pages(sequences), sequences[0].num_evals)
        key = self.decode_graphs.covering_key(size, least=1)
        rows = self._padded_slots(sequences, key[0])
        with self.stream.active():
            if rows != self._idx_host:
                self._idx_host = []  # unknown, should the copy fail
                self.device.fill(self.idx, rows)
                self._idx_host = rows
            self.decode_graphs(*key)
            self.moved_on = True
            return self._in_flight(sequences, launched_at, False)

    def _max_pages(self, sequences: list[Sequence]) -> int:
        """Pages that attention must cover: a power of two, or the most where no shape depends on
        them."""
        if self.kv.fused:
            return self.sizes.max_pages
        positions = max(s.length + s.num_scheduled - 1 for s in sequences)
        pages = -(-positions // self.sizes.page_size)
        power_of_two = 1 << max(0, pages - 1).bit_length()
        return min(power_of_two, self.sizes.max_pages)

    def _decode(self, batch: int, max_pages: int, num_evals: int) -> None:
        step.decode(self.model, self.slots, self.kv, self.idx[:batch], max_pages, num_evals)

    def _in_flight(
        self, sequences: list[Sequence], launched_at: float, prefill: bool
    ) -> InFlightStep:
        report = self.device.download(self.slots.reported)
        launched = InFlightStep(sequences, report, self.device.event(), prefill, launched_at)
        launched.finished.record()
        return launched


def _columns(prompt: Prompt, seed: int) -> dict[str, Any]:
    """Column values of a request's row."""
    columns = {
        "seed": seed,
        "max_frames": prompt.max_frames,
        "min_frames": prompt.min_frames,
        "stop": RUNNING,
    }
    if prompt.lora is not None:
        columns[ADAPTER] = prompt.lora.number
    return {**columns, **prompt.columns}


def default_batch_sizes(slots: int) -> tuple[int, ...]:
    """Decode batches that are captured on CUDA."""
    smaller = [size for size in DECODE_ROWS if size < slots]
    return (*smaller, slots)
