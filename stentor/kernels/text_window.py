"""Mask of paged attention for rows that see a part of their text (`TextWindow`), on the device."""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl

from stentor.kernels.types import TextWindow


@triton.jit
def load_window(start_ptr, end_ptr, place_ptr, rows, mask):
    """(start, end, place) of the text of rows, as positions of the sequence."""
    start = tl.load(start_ptr + rows, mask, 0)
    place = start + tl.load(place_ptr + rows, mask, 0.0).to(tl.int64)
    return start, tl.load(end_ptr + rows, mask, 0), place


@triton.jit
def seen_text(offs_n, start, end, place, BEHIND: tl.constexpr, AHEAD: tl.constexpr):
    """Whether a row sees the keys at offs_n, as far as its text is concerned."""
    near = (offs_n >= place - BEHIND) & (offs_n <= place + AHEAD)
    return near | (offs_n < start) | (offs_n >= end)


def window_args(window: TextWindow | None) -> tuple[tuple[Any, Any, Any], dict[str, Any]]:
    """Pointers and constants of a kernel that may have a window. Without one the pointers take no parameter."""
    if window is None:
        return (None, None, None), {"WINDOW": False, "BEHIND": 0, "AHEAD": 0}
    given = (window.start, window.end, window.place)
    return given, {"WINDOW": True, "BEHIND": window.behind, "AHEAD": window.ahead}
