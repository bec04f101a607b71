"""Rows of the engine's table at both ends of a step: gathered with their random numbers to come, and written back.

The formulas are `engine.slots` and `layers.noise`. Rows may repeat the padding slot: each writes what the others write.
"""

# ruff: noqa: ANN001, ANN202, N803
# mypy: disable-error-code="no-untyped-def, untyped-decorator, no-untyped-call"

from __future__ import annotations

import math

import torch
import triton
import triton.language as tl
from torch import Tensor

from stentor.kernels.between import Gathered, States
from stentor.kernels.pdl import EARLY, LAUNCH, wait
from stentor.layers import rng

GOLDEN = tl.constexpr(rng.GOLDEN)
MIX1 = tl.constexpr(rng.MIX1)
MIX2 = tl.constexpr(rng.MIX2)
DRAWS = 256  # of a program
ITEMS = 1024  # of a column that a program copies


@triton.jit
def _mix(z):
    z = (z ^ ((z >> 30) & 0x3FFFFFFFF)) * MIX1
    z = (z ^ ((z >> 27) & 0x1FFFFFFFFF)) * MIX2
    return z ^ ((z >> 31) & 0x1FFFFFFFF)


@triton.jit(do_not_specialize=["draws"])
def _uniform(seeds, steps, out, draws, BLOCK: tl.constexpr, EARLY: tl.constexpr):
    wait(EARLY)
    row = tl.program_id(0).to(tl.int64)
    draw = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    key = _mix(_mix(tl.load(seeds + row)) + (tl.load(steps + row) + 1) * GOLDEN)
    bits = (_mix(key + (draw + 1).to(tl.int64) * GOLDEN) >> 40) & 0xFFFFFF
    u = tl.minimum((bits.to(tl.float32) + 0.5) * (1.0 / 16777216.0), 1.0 - 1.0 / 16777216.0)
    tl.store(out + row * draws + draw, u, draw < draws)


def uniform(seed: Tensor, step: Tensor, draws: int) -> Tensor:
    """`noise.uniform`, bit by bit."""
    out = torch.empty(len(seed), draws, dtype=torch.float32, device=seed.device)
    block = min(DRAWS, triton.next_power_of_2(draws))
    _uniform[(len(seed), triton.cdiv(draws, block))](
        seed, step, out, draws, BLOCK=block, EARLY=EARLY, num_warps=1, **LAUNCH
    )
    return out


@triton.jit(do_not_specialize=["u_row", "half"])
def _normal(
    uniforms, scales, out, u_row, half, OUTER: tl.constexpr, INNER: tl.constexpr, TURN: tl.constexpr,
    BLOCK: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    wait(EARLY)
    kind: tl.constexpr = out.dtype.element_ty
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, BLOCK)
    inside = at < half
    radius = tl.sqrt(-2.0 * tl.log(tl.load(uniforms + row * u_row + at, inside, 0.5)))
    angle = TURN * tl.load(uniforms + row * u_row + half + at, inside, 0.0)
    scale = tl.load(scales + row)
    place = out + row * (2 * half)
    other = at + half
    cosine = (radius * tl.cos(angle)).to(kind).to(tl.float32) * scale
    sine = (radius * tl.sin(angle)).to(kind).to(tl.float32) * scale
    tl.store(place + (at % INNER) * OUTER + at // INNER, cosine.to(kind), inside)
    tl.store(place + (other % INNER) * OUTER + other // INNER, sine.to(kind), inside)


def normal(u: Tensor, outer: int, scale: Tensor, dtype: torch.dtype) -> Tensor:
    """`noise.normal` of u [B, n] as [B, n / outer, outer]: drawn [B, outer, n / outer], transposed, rounded to `dtype`,
    times scale [B], rounded again."""
    batch, count = u.shape
    out = torch.empty(batch, count // outer, outer, dtype=dtype, device=u.device)
    _normal[(batch,)](
        u, scale, out, u.stride(0), count // 2, OUTER=outer, INNER=count // outer, TURN=2.0 * math.pi,
        BLOCK=triton.next_power_of_2(count // 2), EARLY=EARLY, num_warps=4, **LAUNCH,
    )  # fmt: skip
    return out


@triton.jit(do_not_specialize=["slots", "out_row", "int_count", "float_count", "size"])
def _gather(
    idx, ints, floats, frames, ints_out, floats_out, frames_out, slots, out_row, int_count, float_count, size,
    LANES: tl.constexpr, BLOCK: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    wait(EARLY)
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


def gather(idx: Tensor, ints: Tensor, floats: Tensor, frames: Tensor) -> Gathered:
    """Columns `idx` [B] of ints and floats [numbers, slots], rows `idx` of frames [slots, *frame]. Every row of the
    numbers starts at a multiple of 16 bytes, so that kernels are compiled for one alignment only."""
    batch, room = len(idx), -(-len(idx) // 4) * 4
    size = frames[0].numel()
    out = [torch.empty(len(t), room, dtype=t.dtype, device=t.device)[:, :batch] for t in (ints, floats)]
    last = torch.empty(batch, *frames.shape[1:], dtype=frames.dtype, device=frames.device)
    lanes = triton.next_power_of_2(max(len(ints), len(floats)))
    _gather[(batch,)](
        idx, ints, floats, frames, *out, last, ints.shape[1], room, len(ints), len(floats), size,
        LANES=lanes, BLOCK=triton.next_power_of_2(size), EARLY=EARLY, num_warps=1, **LAUNCH,
    )  # fmt: skip
    return Gathered(out[0], out[1], last)


@triton.jit(do_not_specialize=["frame_row", "frame_item", "slots", "most", "size"])
def _commit(
    idx, steps, stops, positions, limits, least, lengths, ended, frame, progress, frames, last, kept,
    frame_row, frame_item, slots, most, size,
    COUNTED: tl.constexpr, STOP_KEEPS: tl.constexpr, FLOATS: tl.constexpr, RUNNING: tl.constexpr, STOPPED: tl.constexpr,
    LENGTH: tl.constexpr, BROKEN: tl.constexpr, BLOCK: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    wait(EARLY)
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
    states: States,
    stop_keeps: bool,
) -> Tensor:
    """`SlotTable.commit` but for a family's own columns; returns [B] uint8, whether a row keeps its frame.

    rows: slots, steps, stops, positions, limits and least frames, [B] each; length [B] tokens in the KV (None: one
    more); ended [B] bool; frame [B, *frame]; table: progress [3, slots], frames [slots, most, *frame], last frames.
    """
    progress, frames, last = table
    batch, size = len(ended), last[0].numel()
    frame = frame.flatten(1)
    kept = torch.empty(batch, dtype=torch.uint8, device=frame.device)
    _commit[(batch,)](
        *rows, rows[0] if length is None else length, ended.contiguous().view(torch.uint8), frame, progress, frames,
        last, kept, frame.stride(0), frame.stride(1), progress.shape[1], frames.shape[1], size,
        COUNTED=length is not None, STOP_KEEPS=stop_keeps, FLOATS=frame.is_floating_point(), **states._asdict(),
        BLOCK=triton.next_power_of_2(size), EARLY=EARLY, num_warps=1 if size <= 64 else 4, **LAUNCH,
    )  # fmt: skip
    return kept


@triton.jit(do_not_specialize=["new_row", "size"])
def _keep(idx, kept, new, column, new_row, size, BLOCK: tl.constexpr, EARLY: tl.constexpr):
    wait(EARLY)
    row = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    written = (at < size) & (tl.load(kept + row) != 0)
    value = tl.load(new + row * new_row + at, written)
    tl.store(column + tl.load(idx + row) * size + at, value, written)


def keep(idx: Tensor, kept: Tensor, new: Tensor, column: Tensor) -> None:
    """column[idx] = new where kept [B]: new [B, *shape], column [slots, *shape] of one dtype."""
    batch = len(new)
    values = new.reshape(batch, -1)
    if new.dtype == torch.bool:
        values, column = values.view(torch.uint8), column.view(torch.uint8)
    size = values.shape[1]
    block = min(ITEMS, triton.next_power_of_2(size))
    _keep[(batch, triton.cdiv(size, block))](
        idx, kept, values, column, values.stride(0), size, BLOCK=block, EARLY=EARLY, num_warps=4, **LAUNCH
    )


@triton.jit(do_not_specialize=["table_row", "size"])
def _store_tokens(
    pool, table, slots, positions, k, v, value_part, table_row, k_row, v_row, size, PAGE: tl.constexpr,
    BLOCK: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    wait(EARLY)
    row = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = at < size
    pos = tl.load(positions + row)
    page = tl.load(table + tl.load(slots + row) * table_row + pos // PAGE)
    place = pool + (page * PAGE + pos % PAGE) * size + at
    tl.store(place, tl.load(k + row * k_row + at, inside), inside)
    tl.store(place + value_part, tl.load(v + row * v_row + at, inside), inside)


def store_tokens(pool: Tensor, table: Tensor, slot: Tensor, pos: Tensor, k: Tensor, v: Tensor) -> None:
    """See `between.store_tokens`."""
    size = k.shape[1] * k.shape[2]
    k, v = (t if t.stride(1) == t.shape[2] and t.stride(2) == 1 else t.contiguous() for t in (k, v))
    block = min(ITEMS, triton.next_power_of_2(size))
    _store_tokens[(len(k), triton.cdiv(size, block))](
        pool, table, slot, pos, k, v, pool.stride(0), table.stride(0), k.stride(0), v.stride(0), size,
        PAGE=pool.shape[2], BLOCK=block, EARLY=EARLY, num_warps=4, **LAUNCH,
    )  # fmt: skip
