"""Pieces of several requests as one packed batch, made on the host: one integer array, and the
family's own arrays.

Tokens and rows of padding name the padding slot. Frames of padding stand at position N.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from stentor.engine.running.device import Device
from stentor.engine.scheduling.sequence import Sequence
from stentor.models.base import ModelSpec, Prompt, PromptRows

Group = Seq[tuple[Sequence, Prompt]]


@dataclass(frozen=True)
class Piece:
    """Part of a request in one launch: `positions` of its prompt, or of the frames behind it."""

    slot: int
    prompt: Prompt
    positions: range
    ends: bool  # whether the prompt ends with it, and frame 0 follows

    @cached_property
    def _given(self) -> slice:
        """The frames of the prompt that stand at these positions."""
        bounds = (self.positions.start, self.positions.stop)
        start, stop = np.searchsorted(self.prompt.frame_at, bounds)
        return slice(start, stop)

    @property
    def frames(self) -> np.ndarray:
        """Prompt frames [M, *frame]. None stand beyond the prompt's end."""
        return self.prompt.frames[self._given]

    @property
    def frame_at(self) -> np.ndarray:
        """Where they stand [M], counted from the first position."""
        return self.prompt.frame_at[self._given] - self.positions.start

    def rows(self, name: str) -> np.ndarray:
        """Rows [n, ...] of the prompt."""
        rows = self.prompt.rows[name]
        return rows[self.positions.start : self.positions.stop]

    @property
    def replays(self) -> bool:
        """Whether these are positions of frames that have been generated."""
        return self.positions.start >= self.prompt.length


def pieces_of(group: Group) -> list[Piece]:
    """The pieces that were planned."""
    return [Piece(seq.slot, prompt, seq.piece, seq.emits) for seq, prompt in group]


@dataclass
class PrefillBatch:
    """N packed tokens of the pieces of several requests: parts of prompts, or frames that are
    replayed.

    A token stands at `pos[n]` in slot `slot[n]`. R of the pieces end prompts in slots `idx[r]`,
    whose frame 0 is made next: the last token of such a prompt is token `last[r]`, its length
    `length[r]`.
    """

    idx: Tensor  # [R] slots
    pieces: Tensor  # [pieces] slots, or empty where attention does not need them
    row: Tensor  # [N] the piece of each token, or empty where attention does not need it
    slot: Tensor  # [N]
    pos: Tensor  # [N]
    last: Tensor  # [R]
    length: Tensor  # [R] of the whole prompt
    prompt: PromptRows
    # [N] the step at which frame step - 1 was the last, or empty where the tokens are those of
    # prompts
    step: Tensor
    max_pages: int  # pages that cover the longest request
    max_seqlen: int  # packed tokens of the piece that has most


@dataclass(frozen=True)
class BatchShape:
    """Tokens, rows whose prompts end and prompt frames of a batch. `steps`: the tokens, where those
    replay frames."""

    tokens: int
    rows: int
    frames: int
    steps: int = 0

    @property
    def parts(self) -> dict[str, slice]:
        """The offset of each index array in the packed integers."""
        sizes = {
            "slot": self.tokens,
            "pos": self.tokens,
            "idx": self.rows,
            "last": self.rows,
            "length": self.rows,
        }
        sizes |= {"frame_at": self.frames, "step": self.steps}
        parts = {}
        start = 0
        for name, size in sizes.items():
            parts[name] = slice(start, start + size)
            start += size
        return parts

    @property
    def size(self) -> int:
        return 2 * self.tokens + 3 * self.rows + self.frames + self.steps


def batch_shape(pieces: Seq[Piece]) -> BatchShape:
    """The sizes that `pieces` need without padding."""
    tokens = sum(len(p.positions) for p in pieces)
    rows = sum(p.ends for p in pieces)
    frames = sum(len(p.frame_at) for p in pieces)
    steps = 0
    if pieces[0].replays:
        steps = tokens
    return BatchShape(tokens, rows, frames, steps)


def batch_indices(pieces: Seq[Piece], size: BatchShape, padding: int) -> np.ndarray:
    """The packed integers [size.size] of pieces, padded up to `size` with slot `padding`."""
    counts = np.array([len(p.positions) for p in pieces])
    starts = np.cumsum(counts) - counts
    tokens = int(counts.sum())
    out = np.zeros(size.size, np.int64)
    part = {name: out[where] for name, where in size.parts.items()}

    slots = np.array([p.slot for p in pieces])
    part["slot"][:] = padding
    part["slot"][:tokens] = np.repeat(slots, counts)
    part["pos"][:tokens] = np.concatenate([np.asarray(p.positions) for p in pieces])

    lengths = np.array([p.prompt.length for p in pieces])
    last_tokens = starts + counts - 1
    ends = [i for i, p in enumerate(pieces) if p.ends]
    rows = len(ends)
    part["idx"][:] = padding
    part["idx"][:rows] = slots[ends]
    part["last"][:rows] = last_tokens[ends]
    part["length"][:rows] = lengths[ends]

    frame_at = [p.frame_at + start for p, start in zip(pieces, starts, strict=True)]
    frames = np.concatenate(frame_at)
    part["frame_at"][:] = size.tokens
    part["frame_at"][: len(frames)] = frames

    part["step"][:] = 1
    if size.steps:
        first_frames = np.repeat(lengths, counts) - 1
        part["step"][:tokens] = part["pos"][:tokens] - first_frames
    return out


class PrefillBuffers:
    """Input buffers of captured prefills, big enough for the largest key. A smaller key uses the
    front of each buffer.

    They start as zeros. A capture may run on those before there are requests: slot 0 is idle then
    and has no pages.
    """

    def __init__(self, spec: ModelSpec, largest: BatchShape, padding: int, device: Device) -> None:
        self.device = device
        self.padding = padding
        where = device.torch
        self.ints = torch.zeros(largest.size, dtype=torch.int64, device=where)
        self.rows = {n: c.rows(largest.tokens, where) for n, c in spec.prompt_rows.items()}
        self.frames = spec.prompt_frame.rows(largest.frames, where)

    def write(self, pieces: Seq[Piece], size: BatchShape) -> None:
        """Copy pieces that fit `size` to the device."""
        self.device.fill(self.ints, batch_indices(pieces, size, self.padding))
        if size.steps:
            return
        for name, buffer in self.rows.items():
            self.device.fill(buffer, np.concatenate([p.rows(name) for p in pieces]))
        frames = np.concatenate([p.frames for p in pieces])
        if len(frames):
            self.device.fill(self.frames, frames)

    def batch(self, size: BatchShape) -> PrefillBatch:
        """The buffers as a batch of this size."""
        part = {name: self.ints[where] for name, where in size.parts.items()}
        none = self.ints[:0]
        rows = {name: buffer[: size.tokens] for name, buffer in self.rows.items()}
        frames = self.frames[: size.frames]
        prompt = PromptRows(rows, frames, part.pop("frame_at"))
        return PrefillBatch(**part, pieces=none, row=none, prompt=prompt, max_pages=0, max_seqlen=0)


def build_eager_batch(
    pieces: Seq[Piece], spec: ModelSpec, page_size: int, device: Device
) -> PrefillBatch:
    """A batch of just these pieces, without padding."""
    size = batch_shape(pieces)
    buffers = PrefillBuffers(spec, size, 0, device)
    buffers.write(pieces, size)

    slots = [p.slot for p in pieces]
    counts = [len(p.positions) for p in pieces]
    row = np.repeat(np.arange(len(pieces)), counts)
    longest = max(p.positions.stop for p in pieces)
    return replace(
        buffers.batch(size),
        pieces=device.upload(slots),
        row=device.upload(row),
        max_pages=-(-longest // page_size),
        max_seqlen=max(counts),
    )
