"""A draw and what follows from it in one launch: filters in front, and the next token of a depth loop behind.

What is drawn is what the samplers of kernels_sampling.py draw.
"""

# ruff: noqa: ANN001, ANN202, N803
# mypy: disable-error-code="no-untyped-def, untyped-decorator, no-untyped-call"

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from stentor.kernels.between import Asked, Ending, Into, Place
from stentor.kernels.pdl import EARLY, LAUNCH, wait
from stentor.kernels.sampling_device import PLACES, SHORT, chosen_of, key_bits, picked
from stentor.layers.sampling import MIN_TEMPERATURE


@triton.jit
def _logits(logits, row, row_stride, size, BLOCK: tl.constexpr):
    """Places, which of them exist, and their logits."""
    at = tl.arange(0, BLOCK)
    inside = at < size
    return at, inside, tl.load(logits + row * row_stride + at, inside, float("-inf")).to(tl.float32)


@triton.jit
def _asked(row, temperatures, top_ks, top_ps):
    return tl.load(temperatures + row), tl.load(top_ks + row), tl.load(top_ps + row)


@triton.jit
def _put(
    chosen, row, codes, table, x, front, x_row, front_row, hidden, PUT: tl.constexpr, FRONT: tl.constexpr,
    WIDTH: tl.constexpr,
):  # fmt: skip
    """The code, its row of the table as the last token, and the token in front of it."""
    tl.store(codes + row, chosen)
    if PUT:
        channel = tl.arange(0, WIDTH)
        there = channel < hidden
        place = x + row * x_row + channel
        if FRONT:
            tl.store(place, tl.load(front + row * front_row + channel, there), there)
            place += hidden
        tl.store(place, tl.load(table + chosen * hidden + channel, there), there)


@triton.jit(do_not_specialize=["u_row", "front_row"])
def _pick_into(
    logits, uniforms, temperatures, top_ks, top_ps, codes, table, x, front, row_stride, u_row, x_row, front_row, size,
    hidden, LEAST: tl.constexpr, BITS: tl.constexpr, BLOCK: tl.constexpr, PUT: tl.constexpr, FRONT: tl.constexpr,
    WIDTH: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    wait(EARLY)
    row = tl.program_id(0).to(tl.int64)
    _, inside, raw = _logits(logits, row, row_stride, size, BLOCK)
    temperature, k, p = _asked(row, temperatures, top_ks, top_ps)
    chosen = picked(raw, inside, size, temperature, k, p, tl.load(uniforms + row * u_row), LEAST, BITS)
    _put(chosen, row, codes, table, x, front, x_row, front_row, hidden, PUT, FRONT, WIDTH)


@triton.jit(do_not_specialize=["u_row", "front_row"])
def _pick_first(
    logits, uniforms, temperatures, top_ks, top_ps, codes, table, x, front, row_stride, u_row, x_row, front_row, size,
    hidden, idx, seen, penalties, steps, least, seen_now, ended, marks, end,
    LEAST: tl.constexpr, BITS: tl.constexpr, BLOCK: tl.constexpr, PUT: tl.constexpr, FRONT: tl.constexpr,
    WIDTH: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    wait(EARLY)
    row = tl.program_id(0).to(tl.int64)
    at, inside, raw = _logits(logits, row, row_stride, size, BLOCK)
    had = tl.load(seen + tl.load(idx + row) * size + at, inside, 0) != 0
    penalty = tl.load(penalties + row)
    raw = tl.where(had, tl.where(raw > 0, raw / penalty, raw * penalty), raw)
    early = tl.load(steps + row) < tl.load(least + row)
    barred = tl.where(at == end, early, at >= size - marks)
    raw = tl.where(barred, float("-inf"), raw)
    temperature, k, p = _asked(row, temperatures, top_ks, top_ps)
    chosen = picked(raw, inside, size, temperature, k, p, tl.load(uniforms + row * u_row), LEAST, BITS)
    tl.store(seen_now + row * size + at, (had | (at == chosen)).to(tl.uint8), inside)
    tl.store(ended + row, (chosen == end).to(tl.uint8))
    _put(chosen, row, codes, table, x, front, x_row, front_row, hidden, PUT, FRONT, WIDTH)


@triton.jit(do_not_specialize=["u_row", "front_row"])
def _choose_into(
    logits, uniforms, temperatures, top_ks, top_ps, codes, table, x, front, row_stride, u_row, x_row, front_row, size,
    hidden, found, places, LEAST: tl.constexpr, BITS: tl.constexpr, BLOCK: tl.constexpr, PUT: tl.constexpr,
    FRONT: tl.constexpr, WIDTH: tl.constexpr, SHORT: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    wait(EARLY)
    row = tl.program_id(0).to(tl.int64)
    at, inside, raw = _logits(logits, row, row_stride, size, BLOCK)
    temperature, k, p = _asked(row, temperatures, top_ks, top_ps)
    u = tl.load(uniforms + row * u_row)
    short = row * SHORT
    chosen = chosen_of(raw, at, inside, size, temperature, k, p, u, found + short, places + short, LEAST, SHORT, BITS)
    _put(chosen, row, codes, table, x, front, x_row, front_row, hidden, PUT, FRONT, WIDTH)


@triton.jit(do_not_specialize=["u_row", "front_row", "past_row", "past_item", "window"])
def _choose_first(
    logits, uniforms, temperatures, top_ks, top_ps, codes, table, x, front, row_stride, u_row, x_row, front_row, size,
    hidden, found, places, idx, past, steps, least, ended, past_row, past_item, window, again_temperature, again_p,
    LEAST: tl.constexpr, BITS: tl.constexpr, BLOCK: tl.constexpr, PUT: tl.constexpr, FRONT: tl.constexpr,
    WIDTH: tl.constexpr, SHORT: tl.constexpr, WINDOW: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    wait(EARLY)
    row = tl.program_id(0).to(tl.int64)
    at, inside, raw = _logits(logits, row, row_stride, size, BLOCK)
    step = tl.load(steps + row)
    raw = tl.where((at == size - 1) & (step < tl.load(least + row)), float("-inf"), raw)
    temperature, k, p = _asked(row, temperatures, top_ks, top_ps)
    u = tl.load(uniforms + row * u_row)
    short = row * (2 * SHORT)
    chosen = chosen_of(raw, at, inside, size, temperature, k, p, u, found + short, places + short, LEAST, SHORT, BITS)
    back = tl.arange(0, WINDOW)
    then = step - 1 - back
    counts = (back < window) & (then > 0)  # frame 0 never counts
    old = tl.load(past + tl.load(idx + row) * past_row + then * past_item, counts, -1)
    if tl.sum((counts & (old == chosen)).to(tl.int32), 0) > 0:
        warmth = tl.where(temperature > 0, again_temperature, 0.0)
        u = tl.load(uniforms + row * u_row + 1)
        short += SHORT
        chosen = chosen_of(
            raw, at, inside, size, warmth, k, again_p, u, found + short, places + short, LEAST, SHORT, BITS
        )
    stop = chosen == size - 1
    tl.store(ended + row, stop.to(tl.uint8))
    chosen = tl.where(stop, 0, chosen)
    _put(chosen, row, codes, table, x, front, x_row, front_row, hidden, PUT, FRONT, WIDTH)


def _arguments(logits: Tensor, asked: Asked, into: Into) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """What all four take first, and constants."""
    size = logits.shape[1]
    put, front = into.x is not None, into.front is not None
    table, x = (logits, logits) if into.table is None or into.x is None else (into.table, into.x)
    head = x if into.front is None else into.front
    u_row = asked.u.stride(0)
    given = (logits, *asked, into.code, table, x, head, logits.stride(0), u_row, x.stride(0), head.stride(0), size)
    hidden = table.shape[1]
    constants = {"LEAST": MIN_TEMPERATURE, "BLOCK": triton.next_power_of_2(size), "PUT": put, "FRONT": front}
    constants |= {"WIDTH": triton.next_power_of_2(hidden) if put else 1, "EARLY": EARLY, "num_warps": 8, **LAUNCH}
    return (*given, hidden), constants


def _scratch(logits: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Room for the leading tokens of `count` ranked draws per row."""
    if logits.shape[1] > PLACES.value:
        raise ValueError(f"logits: at most {PLACES.value} wide, got {logits.shape[1]}")
    shape, device = (len(logits), count * SHORT), logits.device
    return torch.empty(shape, dtype=torch.float32, device=device), torch.empty(shape, dtype=torch.int32, device=device)


def pick_into(logits: Tensor, asked: Asked, into: Into) -> None:
    """See `between.pick_into`."""
    given, constants = _arguments(logits, asked, into)
    _pick_into[(len(logits),)](*given, BITS=key_bits(logits), **constants)


def pick(logits: Tensor, u: Tensor, temperature: Tensor, top_k: Tensor, top_p: Tensor) -> Tensor:
    """logits [B, V] float; u, temperature, top_k (int64), top_p [B] -> ids [B]."""
    into = Into(torch.empty(len(logits), dtype=torch.int64, device=logits.device))
    pick_into(logits, Asked(u, temperature, top_k, top_p), into)
    return into.code


def choose(logits: Tensor, u: Tensor, temperature: Tensor, top_k: Tensor, top_p: Tensor) -> Tensor:
    """As `pick`, with the nucleus before the temperature, without its crossing token, drawn in order of rank."""
    into = Into(torch.empty(len(logits), dtype=torch.int64, device=logits.device))
    choose_into(logits, Asked(u, temperature, top_k, top_p), into)
    return into.code


def pick_first(
    logits: Tensor, asked: Asked, into: Into, seen: Place, penalty: Tensor, ending: Ending, marks: int, end: int
) -> tuple[Tensor, Tensor]:
    """See `between.pick_first`."""
    given, constants = _arguments(logits, asked, into)
    ended = torch.empty(len(logits), dtype=torch.uint8, device=logits.device)
    now = torch.empty(logits.shape, dtype=torch.uint8, device=logits.device)
    _pick_first[(len(logits),)](
        *given, seen.idx, seen.table.view(torch.uint8), penalty, *ending, now, ended, marks, end,
        BITS=32, **constants,  # what has been penalized is float32
    )  # fmt: skip
    return ended.view(torch.bool), now.view(torch.bool)


def choose_into(logits: Tensor, asked: Asked, into: Into) -> None:
    """See `between.choose_into`."""
    given, constants = _arguments(logits, asked, into)
    _choose_into[(len(logits),)](*given, *_scratch(logits, 1), BITS=key_bits(logits), SHORT=SHORT, **constants)


def choose_first(
    logits: Tensor, asked: Asked, again: tuple[float, float], into: Into, past: Place, window: int, ending: Ending
) -> Tensor:
    """See `between.choose_first`."""
    given, constants = _arguments(logits, asked, into)
    ended = torch.empty(len(logits), dtype=torch.uint8, device=logits.device)
    frames = past.table
    _choose_first[(len(logits),)](
        *given, *_scratch(logits, 2), past.idx, frames, *ending, ended, frames.stride(0), frames.stride(1), window,
        *again, BITS=key_bits(logits), SHORT=SHORT, WINDOW=triton.next_power_of_2(window), **constants,
    )  # fmt: skip
    return ended.view(torch.bool)
