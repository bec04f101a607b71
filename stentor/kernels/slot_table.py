"""Rows of the slot table at both ends of a step: gathered, and committed. Their reference is `engine.slot_table`.

Rows may repeat the padding slot: each of them writes what the others write.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from stentor.kernels.buffers import empty_aligned
from stentor.kernels.pdl import PDL_LAUNCH, USE_PDL, pdl_wait
from stentor.kernels.types import GatheredRows, RowStatus

MAX_BLOCK = 1024  # elements of a column that a CTA copies


@triton.jit(do_not_specialize=["slots", "out_row", "int_count", "float_count", "size"])
def _gather_kernel(
    idx, ints, floats, frames, ints_out, floats_out, frames_out, slots, out_row, int_count, float_count, size,
    LANES: tl.constexpr, BLOCK: tl.constexpr, USE_PDL: tl.constexpr,
):  # fmt: skip
    pdl_wait(USE_PDL)
    row = tl.program_id(0).to(tl.int64)
    slot = tl.load(idx + row)
    lane = tl.arange(0, LANES)
    tl.store(
        ints_out + lane * out_row + row, tl.load(ints + lane * slots + slot, lane < int_count, 0), lane < int_count
    )
    value = tl.load(floats + lane * slots + slot, lane < float_count, 0.0)
    tl.store(floats_out + lane * out_row + row, value, lane < float_count)
    item = tl.arange(0, BLOCK)
    inside = item < size
    tl.store(frames_out + row * size + item, tl.load(frames + slot * size + item, inside), inside)


def gather(idx: Tensor, ints: Tensor, floats: Tensor, frames: Tensor) -> GatheredRows:
    """Columns `idx` [B] of ints and floats [numbers, slots], rows `idx` of frames [slots, *frame]."""
    batch = len(idx)
    size = frames[0].numel()
    out = [empty_aligned(len(t), batch, t.dtype, t.device) for t in (ints, floats)]
    last = torch.empty(batch, *frames.shape[1:], dtype=frames.dtype, device=frames.device)
    lanes = triton.next_power_of_2(max(len(ints), len(floats)))
    _gather_kernel[(batch,)](
        idx, ints, floats, frames, *out, last, ints.shape[1], out[0].stride(0), len(ints), len(floats), size,
        LANES=lanes, BLOCK=triton.next_power_of_2(size), USE_PDL=USE_PDL, num_warps=1, **PDL_LAUNCH,
    )  # fmt: skip
    return GatheredRows(out[0], out[1], last)


@triton.jit(do_not_specialize=["frame_row", "frame_item", "slots", "most", "size"])
def _commit_kernel(
    idx, steps, stops, positions, limits, least, lengths, ended, frame, progress, frames, last, kept,
    frame_row, frame_item, slots, most, size,
    COUNTED: tl.constexpr, STOP_KEEPS: tl.constexpr, FLOATS: tl.constexpr, RUNNING: tl.constexpr, STOPPED: tl.constexpr,
    LENGTH: tl.constexpr, BROKEN: tl.constexpr, BLOCK: tl.constexpr, USE_PDL: tl.constexpr,
):  # fmt: skip
    pdl_wait(USE_PDL)
    row = tl.program_id(0).to(tl.int64)
    slot = tl.load(idx + row)
    step = tl.load(steps + row)
    status = tl.load(stops + row)
    pos = tl.load(positions + row)
    item = tl.arange(0, BLOCK)
    inside = item < size
    value = tl.load(frame + row * frame_row + item * frame_item, inside, 0)
    running = status == RUNNING
    stop = (tl.load(ended + row) != 0) & (step >= tl.load(least + row))
    keep = running
    if not STOP_KEEPS:
        keep = keep & (stop == 0)
    broken = running & (running == 0)
    if FLOATS:
        whole = tl.abs(value.to(tl.float32)) < float("inf")  # and a NaN is not
        broken = tl.sum((inside & (whole == 0)).to(tl.int32), 0) > 0
        keep = keep & (broken == 0)
    made = step + keep.to(tl.int64)
    end = tl.where(made >= tl.load(limits + row), LENGTH, RUNNING)
    end = tl.where(broken, BROKEN, tl.where(stop, STOPPED, end)).to(tl.int64)
    after = pos + 1
    if COUNTED:
        after = tl.load(lengths + row)
    tl.store(progress + slot, made)
    tl.store(progress + slots + slot, tl.where(running, end, status))
    tl.store(progress + 2 * slots + slot, tl.where(running, after, pos))
    written = inside & keep
    at = tl.minimum(step, most - 1)
    tl.store(frames + (slot * most + at) * size + item, value, written)
    tl.store(last + slot * size + item, value, written)
    tl.store(kept + row, keep.to(tl.uint8))


def commit(
    rows: tuple[Tensor, ...],
    length: Tensor | None,
    ended: Tensor,
    frame: Tensor,
    table: tuple[Tensor, Tensor, Tensor],
    status: RowStatus,
    stop_keeps: bool,
) -> Tensor:
    """Commit one frame per row, but for a family's own columns; returns [B] uint8, whether a row keeps its frame.

    rows: slots, steps, stops, positions, limits and least frames, [B] each; length [B] tokens in the KV (None: one
    more); ended [B] bool; frame [B, *frame]; table: progress [3, slots], frames [slots, most, *frame], last frames.
    """
    progress, frames, last = table
    batch, size = len(ended), last[0].numel()
    frame = frame.flatten(1)
    kept = torch.empty(batch, dtype=torch.uint8, device=frame.device)
    _commit_kernel[(batch,)](
        *rows, rows[0] if length is None else length, ended.contiguous().view(torch.uint8), frame, progress, frames,
        last, kept, frame.stride(0), frame.stride(1), progress.shape[1], frames.shape[1], size,
        COUNTED=length is not None, STOP_KEEPS=stop_keeps, FLOATS=frame.is_floating_point(), **status._asdict(),
        BLOCK=triton.next_power_of_2(size), USE_PDL=USE_PDL, num_warps=1 if size <= 64 else 4, **PDL_LAUNCH,
    )  # fmt: skip
    return kept


@triton.jit(do_not_specialize=["new_row", "size"])
def _masked_write_kernel(idx, kept, new, column, new_row, size, BLOCK: tl.constexpr, USE_PDL: tl.constexpr):
    pdl_wait(USE_PDL)
    row = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    written = (at < size) & (tl.load(kept + row) != 0)
    value = tl.load(new + row * new_row + at, written)
    tl.store(column + tl.load(idx + row) * size + at, value, written)


def masked_write(idx: Tensor, kept: Tensor, new: Tensor, column: Tensor) -> None:
    """column[idx] = new where kept [B]: new [B, *shape], column [slots, *shape] of one dtype."""
    batch = len(new)
    values = new.reshape(batch, -1)
    if new.dtype == torch.bool:
        values, column = values.view(torch.uint8), column.view(torch.uint8)
    size = values.shape[1]
    block = min(MAX_BLOCK, triton.next_power_of_2(size))
    _masked_write_kernel[(batch, triton.cdiv(size, block))](
        idx, kept, values, column, values.stride(0), size, BLOCK=block, USE_PDL=USE_PDL, num_warps=4, **PDL_LAUNCH
    )
