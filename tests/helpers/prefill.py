"""Prefill batches of a given shape, in the buffers that captured prefills read."""

from __future__ import annotations

from dataclasses import replace

import torch

from stentor.engine.running.prefill_batch import BatchShape, Group, Piece
from stentor.layers.types import torch_dtype
from tests.helpers.tiny import Bench

GIVEN = 8  # codes that every codebook has


def cut(bench: Bench, group: Group, size: BatchShape) -> list[Piece]:
    """Requests of `group`, a row less than there is room for where there is room for several, shortened to fit; every
    other token carries a given frame as long as there is room. Where frames are replayed, the tokens are behind the
    prompts."""
    frame, count = bench.model.spec.frame, max(1, min(len(group), size.rows - 1))
    out = []
    for seq, prompt in group[:count]:
        length = min(prompt.length, size.tokens // count)
        given = min(length // 2, size.frames // count)
        shape = (given, *frame.shape)
        frames = (
            torch.randn(shape)
            if torch_dtype(frame.dtype).is_floating_point
            else torch.randint(GIVEN, shape, dtype=torch_dtype(frame.dtype))
        )
        rows = {name: values[:length] for name, values in prompt.rows.items()}
        at = torch.arange(given).numpy() * 2
        short = replace(prompt, rows=rows, frames=frames.numpy(), frame_at=at)
        positions = (
            range(length, min(2 * length, length + size.tokens // count))
            if size.steps
            else range(length)
        )
        out.append(Piece(seq.slot, short, positions, size.rows > 0))
    return out


def write(bench: Bench, group: Group, size: BatchShape) -> None:
    """A batch into the buffers of captured prefills. Tokens of padding are all alike: they share a place in the cache."""
    packed = bench.runner.prefill_buffers
    for name, column in bench.model.spec.prompt_rows.items():
        packed.rows[name].fill_(column.fill)
    packed.frames.zero_()
    packed.write(cut(bench, group, size), size)
