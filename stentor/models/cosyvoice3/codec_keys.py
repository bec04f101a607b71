"""Attention of the flow's transformer over the frames of a call."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from stentor.layers.attention import sdpa


class Keys(Protocol):
    """Attention of block `block` in step `step` for rows of one call."""

    def attend(self, step: int, block: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """q, k, v [B, 2, T, H, D], turned -> [B, 2, T, H, D]. The two branches do not see each other."""
        ...


class CallKeys:
    """Every frame sees all frames of its row in this call, of which the first `count` [B] exist."""

    def __init__(self, count: Tensor, frames: int) -> None:
        exist = torch.arange(frames, device=count.device) < count[:, None]
        self._mask = exist.repeat_interleave(2, 0)[:, None, None]

    def attend(self, step: int, block: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return sdpa(q.flatten(0, 1), k.flatten(0, 1), v.flatten(0, 1), self._mask).reshape(q.shape)
