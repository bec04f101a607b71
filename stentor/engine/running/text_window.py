"""Mask of keys for rows that see a part of their text, in plain PyTorch (`kernels/attention_parts.py` on a GPU)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import Tensor

if TYPE_CHECKING:
    from stentor.kernels.types import TextWindow


def in_layer(window: TextWindow | None, layer: int) -> TextWindow | None:
    """The window if it holds in this layer. Others see all of the text."""
    return window if window is not None and layer in window.layers else None


def seen(window: TextWindow, at: Tensor, inside: bool = False) -> Tensor:
    """Whether keys at positions `at` [T] are seen: [N, T] bool. inside: of the text only, and not what is around it."""
    start, end = window.start[:, None], window.end[:, None]
    place = start + window.place[:, None].long()
    near = (at >= place - window.behind) & (at <= place + window.ahead)
    return near & (at >= start) & (at < end) if inside else near | (at < start) | (at >= end)
