"""Attention of the flow's transformer over the frames of a call, or of a cell and those kept of the cells before."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from stentor.layers.attention import sdpa


class Keys(Protocol):
    """Attention of block `block` in step `step` for rows of one call."""

    def attend(self, step: int, block: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """q, k, v [B, 2, T, H, D] after RoPE -> [B, 2, T, H, D]. The two branches do not see each other."""
        ...


class CallKeys:
    """Every frame sees all frames of its row in this call, of which the first `count` [B] exist."""

    def __init__(self, count: Tensor, frames: int) -> None:
        exist = torch.arange(frames, device=count.device) < count[:, None]
        self._mask = exist.repeat_interleave(2, 0)[:, None, None]

    def attend(self, step: int, block: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return sdpa(q.flatten(0, 1), k.flatten(0, 1), v.flatten(0, 1), self._mask).reshape(q.shape)


class KeptKeys:
    """Frames of a cell see each other and those of the cells before, whose keys and values lie in pages.

    pool [pages, steps, blocks, 2, 2, cell, C] has a cell in each page: its keys, then its values, of both branches.
    table [B, n]: each row's pages in order. filled [B] of them hold earlier cells, and the next takes this one, of
    which `count` [B] frames exist.
    """

    def __init__(self, pool: Tensor, table: Tensor, filled: Tensor, count: Tensor) -> None:
        self._pool, self._table = pool, table
        self._page = table.gather(1, filled[:, None])[:, 0]
        frames = torch.where(torch.arange(table.shape[1], device=table.device) < filled[:, None], pool.shape[5], 0)
        frames = frames.scatter(1, filled[:, None], count[:, None])
        exist = torch.arange(pool.shape[5], device=table.device) < frames[..., None]
        self._mask = exist.flatten(1).repeat_interleave(2, 0)[:, None, None]

    def attend(self, step: int, block: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        new = torch.stack((k, v), 1).flatten(-2)
        self._pool[self._page, step, block] = new.to(self._pool.dtype)
        kept = self._pool[self._table, step, block]  # [B, n, 2, 2, cell, C]
        heads = kept.permute(2, 0, 3, 1, 4, 5).reshape(2, 2 * len(q), -1, *q.shape[3:]).to(q.dtype)
        return sdpa(q.flatten(0, 1), heads[0], heads[1], self._mask).reshape(q.shape)
