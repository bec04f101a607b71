"""Triton kernels of a step where text may come while a row speaks. `live_text.py` has the formulas,
in the same order.

Each of them is a handful of numbers per row. As operations of PyTorch they were a hundred launches
of a step.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from stentor.kernels.pdl import PDL_LAUNCH, pdl_wait
from stentor.kernels.types import RowRef
from stentor.models.base import Emit, Rows
from stentor.models.cosyvoice3.config import FEED, MARK, MAX_SILENT, MIX, LanguageConfig

NEXT, DRAW, LAST = (tl.constexpr(i) for i in range(3))  # kinds of a value
BLOCK_IDS = 1024  # logits of a CTA


@triton.jit
def _value(feed_ptr, slot, frame, MARK: tl.constexpr, FEED: tl.constexpr):
    """The value of `feed` that a marked frame names."""
    return tl.load(feed_ptr + slot * FEED + tl.minimum(tl.maximum(frame - MARK, 0), FEED - 1))


@triton.jit
def _turn(feed_ptr, slot, prev, step, live, MARK: tl.constexpr, FEED: tl.constexpr):
    """Whether a row draws, whether it may request text, and whether a marked frame is before it."""
    marked = (prev >= MARK) & (step > 0)
    kind = tl.where(marked, _value(feed_ptr, slot, prev, MARK, FEED) & 3, DRAW)
    draws = (kind != NEXT) & ~(live & (step == 0))
    return draws, live & ~(marked & (kind == LAST)), marked


@triton.jit
def _table_row(feed_ptr, slot, frame, text_vocab, MARK: tl.constexpr, FEED: tl.constexpr):
    return tl.where(
        frame >= MARK, _value(feed_ptr, slot, frame, MARK, FEED) >> 2, frame + text_vocab
    )


@triton.jit(do_not_specialize=["stride_frames", "text_vocab"])
def _fed_kernel(
    idx_ptr,
    prev_ptr,
    step_ptr,
    feed_ptr,
    frames_ptr,
    out_ptr,
    stride_frames,
    text_vocab,
    MARK: tl.constexpr,
    FEED: tl.constexpr,
    USE_PDL: tl.constexpr,
):
    pdl_wait(USE_PDL)
    row = tl.program_id(0)
    slot = tl.load(idx_ptr + row).to(tl.int64)
    before = tl.load(frames_ptr + slot * stride_frames + tl.maximum(tl.load(step_ptr + row) - 2, 0))
    fed = _table_row(feed_ptr, slot, tl.load(prev_ptr + row), text_vocab, MARK, FEED)
    tl.store(
        out_ptr + row,
        tl.where(fed < 0, _table_row(feed_ptr, slot, before, text_vocab, MARK, FEED), fed),
    )


def fed_rows(prev: Tensor, step: Tensor, feed: RowRef, history: RowRef, text_vocab: int) -> Tensor:
    """`live_text.fed_rows` of prev and step [B]."""
    out = torch.empty(len(step), dtype=torch.int64, device=step.device)
    assert prev.stride(0) == step.stride(0) == 1
    _fed_kernel[(len(step),)](
        feed.idx,
        prev,
        step,
        feed.table,
        history.table,
        out,
        history.table.stride(0),
        text_vocab,
        MARK=MARK,
        FEED=FEED,
        num_warps=1,
        **PDL_LAUNCH,
    )
    return out


@triton.jit(do_not_specialize=["size", "codes"])
def _mask_kernel(
    logits_ptr,
    out_ptr,
    idx_ptr,
    prev_ptr,
    step_ptr,
    asks_ptr,
    min_frames_ptr,
    start_from_ptr,
    feed_ptr,
    size,
    codes,
    BLOCK: tl.constexpr,
    MARK: tl.constexpr,
    FEED: tl.constexpr,
    USE_PDL: tl.constexpr,
):
    pdl_wait(USE_PDL)
    row = tl.program_id(0).to(tl.int64)
    slot = tl.load(idx_ptr + row).to(tl.int64)
    step = tl.load(step_ptr + row)
    _, asks, _ = _turn(
        feed_ptr, slot, tl.load(prev_ptr + row), step, tl.load(asks_ptr + row) == 1, MARK, FEED
    )
    ids = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    early = (ids >= codes) & (step < tl.load(min_frames_ptr + row)) & ~asks
    early = early | ((ids == codes) & ((step < tl.load(start_from_ptr + row)) | asks))
    logits = tl.load(logits_ptr + row * size + ids, ids < size, 0.0)
    tl.store(out_ptr + row * size + ids, tl.where(early, float("-inf"), logits), ids < size)


@triton.jit(do_not_specialize=["codes", "fill", "window"])
def _emit_kernel(
    code_ptr,
    idx_ptr,
    prev_ptr,
    step_ptr,
    asks_ptr,
    taken_ptr,
    count_ptr,
    next_fill_ptr,
    silent_ptr,
    feed_ptr,
    made_ptr,
    silence_ptr,
    numbers_ptr,
    flags_ptr,
    made_out_ptr,
    codes,
    fill,
    window,
    SILENCE: tl.constexpr,
    BLOCK: tl.constexpr,
    MAX_SILENT: tl.constexpr,
    BLOCK_OF_CODES: tl.constexpr,
    MARK: tl.constexpr,
    FEED: tl.constexpr,
    USE_PDL: tl.constexpr,
):
    pdl_wait(USE_PDL)
    row = tl.program_id(0)
    rows = tl.num_programs(0)
    slot = tl.load(idx_ptr + row).to(tl.int64)
    prev = tl.load(prev_ptr + row)
    live = tl.load(asks_ptr + row) == 1
    draws, asks, marked = _turn(feed_ptr, slot, prev, tl.load(step_ptr + row), live, MARK, FEED)
    count = tl.load(count_ptr + row)
    next_fill = tl.load(next_fill_ptr + row)
    num_tokens = tl.where(marked, prev - MARK + 1, tl.load(taken_ptr + row))
    code = tl.where(asks & draws & (count == next_fill), fill, tl.load(code_ptr + row))
    special = (code >= codes) & draws
    asks_text = special & asks
    stop = special & ~asks
    speaks = draws & ~special
    offs = tl.arange(0, BLOCK)
    silences = tl.load(silence_ptr + offs, offs < SILENCE, -2) == code
    silent = tl.load(silent_ptr + row)
    is_silence = tl.max(silences.to(tl.int32), 0) > 0
    silent = tl.where(speaks, tl.where(is_silence, silent + 1, 0), silent)
    frame = tl.where(speaks, code, tl.where(stop, 0, MARK + num_tokens))
    frame = tl.where(draws & (code < 0), code, frame)
    tl.store(numbers_ptr + row, frame)
    tl.store(numbers_ptr + rows + row, silent)
    tl.store(numbers_ptr + 2 * rows + row, num_tokens)
    tl.store(numbers_ptr + 3 * rows + row, asks.to(tl.int64))
    tl.store(numbers_ptr + 4 * rows + row, count + draws.to(tl.int64))
    tl.store(
        numbers_ptr + 5 * rows + row, tl.where(asks_text, count + (BLOCK_OF_CODES + 1), next_fill)
    )
    tl.store(flags_ptr + row, stop.to(tl.uint8))
    tl.store(flags_ptr + rows + row, (speaks & (silent <= MAX_SILENT)).to(tl.uint8))
    window_ptr = made_ptr + slot * window
    old = tl.load(window_ptr + offs, offs < window, 0)
    moved = tl.load(window_ptr + tl.maximum(offs - 1, 0), offs < window, 0)
    moved = tl.where(offs == 0, tl.where(asks_text, fill, code), moved)
    tl.store(made_out_ptr + row * window + offs, tl.where(draws, moved, old), offs < window)


class FusedStep:
    """`live_text.LiveStep` in two launches."""

    def __init__(self, rows: Rows, silence: Tensor, c: LanguageConfig) -> None:
        """silence: the codes of it."""
        self._rows = rows
        self._silence = silence
        self._config = c
        self._feed = rows.column("feed")
        self._turn = self._feed.idx, rows["prev"], rows["step"], rows["asks"]
        self._limits = {"MARK": MARK, "FEED": FEED, **PDL_LAUNCH}

    def masked(self, logits: Tensor) -> Tensor:
        """Logits [B, V] float32, in which what must not be drawn is -inf."""
        logits = logits.contiguous()
        rows = self._rows
        out = torch.empty_like(logits)
        size = logits.shape[1]
        ends = rows["min_frames"], rows["start_from"], self._feed.table, size, self._config.codes
        grid = len(logits), triton.cdiv(size, BLOCK_IDS)
        _mask_kernel[grid](
            logits, out, *self._turn, *ends, BLOCK=BLOCK_IDS, num_warps=4, **self._limits
        )
        return out

    def emitted(self, code: Tensor) -> Emit:
        """Return what each row makes of a sampled code [B]."""
        rows = self._rows
        recent = self._rows.column("made")
        c = self._config
        batch = len(code)
        window = recent.table.shape[1]
        device = code.device
        numbers = torch.empty(6, batch, dtype=torch.int64, device=device)
        flags = torch.empty(2, batch, dtype=torch.uint8, device=device)
        latest = torch.empty(batch, window, dtype=torch.int64, device=device)
        counts = rows["taken"], rows["made_count"], rows["next_fill"], rows["silent"]
        tables = self._feed.table, recent.table, self._silence
        _emit_kernel[(batch,)](
            code,
            *self._turn,
            *counts,
            *tables,
            numbers,
            flags,
            latest,
            c.codes,
            c.fill,
            window,
            SILENCE=len(self._silence),
            BLOCK=triton.next_power_of_2(max(window, len(self._silence))),
            MAX_SILENT=MAX_SILENT,
            BLOCK_OF_CODES=MIX[1],
            num_warps=1,
            **self._limits,
        )
        frame, *columns = numbers
        stop, audible = flags.view(torch.bool)
        names = ("silent", "taken", "asks", "made_count", "next_fill")
        return Emit(
            frame[:, None],
            stop,
            {**dict(zip(names, columns, strict=True)), "made": latest},
            audible,
        )
