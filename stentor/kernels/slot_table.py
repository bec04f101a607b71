"""Rows of the slot table at both ends of a step: gathered, and committed. Reference:
`engine.running.slot_table`.

Rows may repeat the padding slot: each of them writes what the others write.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from stentor.kernels.buffers import empty_aligned
from stentor.kernels.pdl import PDL_LAUNCH, pdl_wait
from stentor.kernels.types import GatheredRows, RowStatus

MAX_BLOCK = 1024  # elements of a column that a CTA copies


@triton.jit(do_not_specialize=["num_slots", "stride_out", "num_ints", "num_floats", "frame_size"])
def _gather_kernel(
    idx_ptr, ints_ptr, floats_ptr, frames_ptr, ints_out_ptr, floats_out_ptr, frames_out_ptr, num_slots, stride_out,
    num_ints, num_floats, frame_size,
    BLOCK_NUMBERS: tl.constexpr, BLOCK: tl.constexpr, USE_PDL: tl.constexpr,
):  # fmt: skip
    pdl_wait(USE_PDL)
    row = tl.program_id(0).to(tl.int64)
    slot = tl.load(idx_ptr + row)
    offs_number = tl.arange(0, BLOCK_NUMBERS)
    tl.store(
        ints_out_ptr + offs_number * stride_out + row,
        tl.load(ints_ptr + offs_number * num_slots + slot, offs_number < num_ints, 0),
        offs_number < num_ints,
    )
    value = tl.load(floats_ptr + offs_number * num_slots + slot, offs_number < num_floats, 0.0)
    tl.store(floats_out_ptr + offs_number * stride_out + row, value, offs_number < num_floats)
    offs = tl.arange(0, BLOCK)
    mask = offs < frame_size
    tl.store(
        frames_out_ptr + row * frame_size + offs,
        tl.load(frames_ptr + slot * frame_size + offs, mask),
        mask,
    )


def gather(idx: Tensor, ints: Tensor, floats: Tensor, frames: Tensor) -> GatheredRows:
    """Columns `idx` [B] of ints and floats [numbers, slots], rows `idx` of frames [slots,
    *frame]."""
    batch = len(idx)
    size = frames[0].numel()
    out = [empty_aligned(len(t), batch, t.dtype, t.device) for t in (ints, floats)]
    last = torch.empty(batch, *frames.shape[1:], dtype=frames.dtype, device=frames.device)
    block_numbers = triton.next_power_of_2(max(len(ints), len(floats)))
    _gather_kernel[(batch,)](
        idx, ints, floats, frames, *out, last, ints.shape[1], out[0].stride(0), len(ints), len(floats), size,
        BLOCK_NUMBERS=block_numbers, BLOCK=triton.next_power_of_2(size), num_warps=1, **PDL_LAUNCH,
    )  # fmt: skip
    return GatheredRows(out[0], out[1], last)


@triton.jit(
    do_not_specialize=["stride_frame", "stride_item", "num_slots", "max_stored", "frame_size"]
)
def _commit_kernel(
    idx_ptr, step_ptr, stop_ptr, pos_ptr, max_frames_ptr, min_frames_ptr, length_ptr, ended_ptr, frame_ptr,
    progress_ptr, frames_ptr, last_ptr, kept_ptr, emitted_ptr, num_emitted_ptr, emitted_at_ptr,
    stride_frame, stride_item, num_slots, max_stored, frame_size,
    HAS_LENGTH: tl.constexpr, HIDES_FRAMES: tl.constexpr, STOP_KEEPS_FRAME: tl.constexpr, IS_FLOAT: tl.constexpr,
    RUNNING: tl.constexpr,
    STOPPED: tl.constexpr, LENGTH: tl.constexpr, BROKEN: tl.constexpr, BLOCK: tl.constexpr, USE_PDL: tl.constexpr,
):  # fmt: skip
    pdl_wait(USE_PDL)
    row = tl.program_id(0).to(tl.int64)
    slot = tl.load(idx_ptr + row)
    step = tl.load(step_ptr + row)
    status = tl.load(stop_ptr + row)
    pos = tl.load(pos_ptr + row)
    offs = tl.arange(0, BLOCK)
    mask = offs < frame_size
    value = tl.load(frame_ptr + row * stride_frame + offs * stride_item, mask, 0)
    running = status == RUNNING
    stop = (tl.load(ended_ptr + row) != 0) & (step >= tl.load(min_frames_ptr + row))
    keep = running
    if not STOP_KEEPS_FRAME:
        keep = keep & (stop == 0)
    # False, of the type that the branch below assigns.
    broken = running & (running == 0)
    if IS_FLOAT:
        finite = tl.abs(value.to(tl.float32)) < float("inf")  # and a NaN is not
        broken = tl.sum((mask & (finite == 0)).to(tl.int32), 0) > 0
    else:
        broken = tl.min(tl.where(mask, value, 0), 0) < 0
    keep = keep & (broken == 0)
    num_frames = step + keep.to(tl.int64)
    new_status = tl.where(num_frames >= tl.load(max_frames_ptr + row), LENGTH, RUNNING)
    new_status = tl.where(broken, BROKEN, tl.where(stop, STOPPED, new_status)).to(tl.int64)
    new_pos = pos + 1
    if HAS_LENGTH:
        new_pos = tl.load(length_ptr + row)
    # A row that has ended keeps its numbers. It takes part in steps until the host has read that it
    # ended.
    tl.store(progress_ptr + slot, num_frames)
    tl.store(progress_ptr + num_slots + slot, tl.where(running, new_status, status))
    tl.store(progress_ptr + 2 * num_slots + slot, tl.where(running, new_pos, pos))
    if HIDES_FRAMES:
        emitted = keep & (tl.load(emitted_ptr + row) != 0)
        num_emitted = tl.load(num_emitted_ptr + row)
        tl.store(progress_ptr + 3 * num_slots + slot, num_emitted + emitted.to(tl.int64))
        tl.store(
            emitted_at_ptr + slot * max_stored + tl.minimum(num_emitted, max_stored - 1),
            step,
            emitted,
        )
    mask_store = mask & keep
    frame_at = tl.minimum(step, max_stored - 1)
    tl.store(frames_ptr + (slot * max_stored + frame_at) * frame_size + offs, value, mask_store)
    tl.store(last_ptr + slot * frame_size + offs, value, mask_store)
    tl.store(kept_ptr + row, keep.to(tl.uint8))


def commit(
    rows: tuple[Tensor, ...],
    length: Tensor | None,
    ended: Tensor,
    frame: Tensor,
    table: tuple[Tensor, Tensor, Tensor],
    status: RowStatus,
    stop_keeps: bool,
    hidden: tuple[Tensor, Tensor, Tensor] | None = None,
) -> Tensor:
    """Commit one frame per row, without the family's own columns. Returns [B] uint8, whether a row
    keeps its frame.

    rows: slots, steps, stops, positions, max_frames and min_frames, [B] each.
    length: [B] tokens in the key-value cache, None for one more.
    ended: [B] bool. frame: [B, *frame].
    table: progress [3, slots], frames [slots, max_frames, *frame] and last frames [slots, *frame].
    hidden: where frames may be hidden, whether each is emitted [B] bool, how many were [B], and
    their steps [slots, max_frames]. Then progress is [4, slots].
    """
    progress, frames, last = table
    batch = len(ended)
    size = last[0].numel()
    frame = frame.flatten(1)
    written = torch.empty(batch, dtype=torch.uint8, device=frame.device)
    if hidden is None:
        emitted = (written, rows[0], rows[0])
    else:
        emitted = (hidden[0].contiguous().view(torch.uint8), *hidden[1:])
    _commit_kernel[(batch,)](
        *rows, rows[0] if length is None else length, ended.contiguous().view(torch.uint8), frame, progress, frames,
        last, written, *emitted, frame.stride(0), frame.stride(1), progress.shape[1], frames.shape[1], size,
        HAS_LENGTH=length is not None, HIDES_FRAMES=hidden is not None, STOP_KEEPS_FRAME=stop_keeps,
        IS_FLOAT=frame.is_floating_point(),
        **status._asdict(), BLOCK=triton.next_power_of_2(size), num_warps=1 if size <= 64 else 4,
        **PDL_LAUNCH,
    )  # fmt: skip
    return written


@triton.jit(do_not_specialize=["stride_new", "size"])
def _masked_write_kernel(
    idx_ptr,
    kept_ptr,
    new_ptr,
    column_ptr,
    stride_new,
    size,
    BLOCK: tl.constexpr,
    USE_PDL: tl.constexpr,
):
    pdl_wait(USE_PDL)
    row = tl.program_id(0).to(tl.int64)
    offs = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = (offs < size) & (tl.load(kept_ptr + row) != 0)
    value = tl.load(new_ptr + row * stride_new + offs, mask)
    tl.store(column_ptr + tl.load(idx_ptr + row) * size + offs, value, mask)


def masked_write(idx: Tensor, written: Tensor, new: Tensor, column: Tensor) -> None:
    """column[idx] = new where kept [B]: new [B, *shape], column [slots, *shape] of one dtype."""
    batch = len(new)
    values = new.reshape(batch, -1)
    if new.dtype == torch.bool:
        values = values.view(torch.uint8)
        column = column.view(torch.uint8)
    size = values.shape[1]
    block = min(MAX_BLOCK, triton.next_power_of_2(size))
    _masked_write_kernel[(batch, triton.cdiv(size, block))](
        idx, written, values, column, values.stride(0), size, BLOCK=block, num_warps=4, **PDL_LAUNCH
    )
