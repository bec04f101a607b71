"""Prompts of several requests as one packed batch, made on the host: one integer array, and the family's own arrays.

Tokens and rows of padding name the padding slot. Frames of padding stand at position N.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence as Seq
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from stentor.engine.device import Device
from stentor.engine.prefix import PromptRest, rest_of
from stentor.engine.sequence import Sequence
from stentor.models.base import ModelSpec, Prompt, PromptRows

Group = Seq[tuple[Sequence, Prompt]]


def _rests(group: Group) -> list[PromptRest]:
    """What each prefill computes."""
    return [rest_of(prompt, seq.num_cached) for seq, prompt in group]


@dataclass
class PrefillBatch:
    """Packed tokens of R requests: their prompts, but for what their pages hold already, and for resumed requests the
    frames that they already had.

    Token n of the packed sequence is entry `order[n]` of (prompt tokens, replayed frames). It stands at `pos[n]` of
    request `row[n]`, in slot `slot[n]`. The last token of request r is token `last[r]`, its length `length[r]`.
    """

    idx: Tensor  # [R] slots
    row: Tensor  # [N], or empty where attention does not need it
    slot: Tensor  # [N]
    pos: Tensor  # [N]
    last: Tensor  # [R]
    length: Tensor  # [R] of the whole prompt and its replayed frames
    order: Tensor  # [N]
    prompt: PromptRows
    replay_slot: Tensor  # [K]
    replay_step: Tensor  # [K] the step at which frame step - 1 was the last
    max_pages: int  # pages that cover the longest request
    max_seqlen: int  # packed tokens of the request that has most
    num_evals: int  # loop length of emit


@dataclass(frozen=True)
class BatchShape:
    """Tokens, rows and given frames of a batch, and the offset of each index array in the packed integers."""

    tokens: int
    rows: int
    frames: int

    @property
    def parts(self) -> dict[str, slice]:
        sizes = {"slot": self.tokens, "pos": self.tokens, "idx": self.rows, "last": self.rows, "length": self.rows}
        sizes["frame_at"] = self.frames
        ends = list(itertools.accumulate(sizes.values()))
        return {name: slice(end - size, end) for (name, size), end in zip(sizes.items(), ends, strict=True)}

    @property
    def size(self) -> int:
        return 2 * self.tokens + 3 * self.rows + self.frames


def batch_shape(group: Group) -> BatchShape:
    """The sizes that `group` needs without padding."""
    rests = _rests(group)
    past = sum(seq.num_scheduled - 1 for seq, _ in group)
    return BatchShape(sum(p.length for p in rests) + past, len(group), sum(len(p.frames) for p in rests))


def batch_indices(group: Group, size: BatchShape, padding: int) -> np.ndarray:
    """The packed integers [size.size] of a group without replayed frames, padded up to `size` with slot `padding`."""
    rests = _rests(group)
    counts = np.array([p.length for p in rests])
    starts = np.cumsum(counts) - counts
    tokens, rows = int(counts.sum()), len(group)
    out = np.zeros(size.size, np.int64)
    part = {name: out[where] for name, where in size.parts.items()}
    part["idx"][:] = padding
    part["idx"][:rows] = [seq.slot for seq, _ in group]
    part["slot"][:] = padding
    part["slot"][:tokens] = np.repeat([seq.slot for seq, _ in group], counts)
    part["pos"][:tokens] = np.concatenate([p.start + np.arange(p.length) for p in rests])
    part["last"][:rows] = starts + counts - 1
    part["length"][:rows] = [p.start + p.length for p in rests]
    at = np.concatenate([p.frame_at + s for p, s in zip(rests, starts, strict=True)])
    part["frame_at"][:] = size.tokens
    part["frame_at"][: len(at)] = at
    return out


class PrefillBuffers:
    """Input buffers of captured prefills, big enough for the largest key. A smaller key uses the front of each buffer.

    They start as zeros. A capture may run on those before there are requests: slot 0 is idle then and has no pages.
    """

    def __init__(self, spec: ModelSpec, largest: BatchShape, padding: int, device: Device) -> None:
        self.spec, self.padding, self.device = spec, padding, device
        where = device.torch
        self.ints = torch.zeros(largest.size, dtype=torch.int64, device=where)
        self.rows = {
            n: torch.full((largest.tokens, *c.shape), c.fill, dtype=c.dtype, device=where)
            for n, c in spec.prompt_rows.items()
        }
        shape = (largest.frames, *spec.frame.shape)
        self.frames = torch.zeros(shape, dtype=spec.frame.dtype, device=where)

    def write(self, group: Group, size: BatchShape) -> None:
        """Copy a group that fits `size` to the device."""
        self.device.fill(self.ints, batch_indices(group, size, self.padding))
        rests = _rests(group)
        for name, buffer in self.rows.items():
            self.device.fill(buffer, np.concatenate([p.rows[name] for p in rests]))
        frames = np.concatenate([p.frames for p in rests])
        if len(frames):
            self.device.fill(self.frames, frames)

    def batch(self, size: BatchShape, num_evals: int) -> PrefillBatch:
        """The buffers as a batch of this size."""
        part = {name: self.ints[where] for name, where in size.parts.items()}
        none = self.ints[:0]
        prompt = PromptRows(
            {n: t[: size.tokens] for n, t in self.rows.items()}, self.frames[: size.frames], part["frame_at"]
        )
        index = {name: part[name] for name in ("idx", "slot", "pos", "last", "length")}
        replay = {"row": none, "order": none, "replay_slot": none, "replay_step": none}
        return PrefillBatch(**index, **replay, prompt=prompt, max_pages=0, max_seqlen=0, num_evals=num_evals)


def build_eager_batch(group: Group, spec: ModelSpec, page_size: int, device: Device) -> PrefillBatch:
    """A batch of just this group, without padding, with the frames that resumed requests had."""
    up = device.upload
    prompts = _rests(group)
    past = [seq.num_scheduled - 1 for seq, _ in group]
    counts = np.array([p.length + n for p, n in zip(prompts, past, strict=True)])
    lengths = np.array([p.start for p in prompts]) + counts
    starts = np.cumsum([0, *(p.length for p in prompts)])
    replayed = np.cumsum([0, *past])
    order = [
        part
        for i, p in enumerate(prompts)
        for part in (starts[i] + np.arange(p.length), starts[-1] + replayed[i] + np.arange(past[i]))
    ]
    frame_at = np.concatenate([p.frame_at + s for p, s in zip(prompts, starts[:-1], strict=True)])
    rows = {n: up(np.concatenate([p.rows[n] for p in prompts])).to(c.dtype) for n, c in spec.prompt_rows.items()}
    frames: Tensor = up(np.concatenate([p.frames for p in prompts])).to(spec.frame.dtype)
    return PrefillBatch(
        idx=up([seq.slot for seq, _ in group]),
        row=up(np.repeat(np.arange(len(group)), counts)),
        slot=up(np.repeat([seq.slot for seq, _ in group], counts)),
        pos=up(np.concatenate([p.start + np.arange(n) for p, n in zip(prompts, counts, strict=True)])),
        last=up(np.cumsum(counts) - 1),
        length=up(lengths),
        order=up(np.concatenate(order)),
        prompt=PromptRows(rows, frames, up(frame_at.astype(np.int64))),
        replay_slot=up(np.repeat([seq.slot for seq, _ in group], past).astype(np.int64)),
        replay_step=up(np.concatenate([np.arange(1, n + 1) for n in past]).astype(np.int64)),
        max_pages=int(-(-lengths.max() // page_size)),
        max_seqlen=int(counts.max()),
        num_evals=max(seq.num_evals for seq, _ in group),
    )
