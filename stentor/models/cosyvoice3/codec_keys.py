"""Attention of the flow's transformer over the frames of a call, or of a cell and those kept of the cells before."""

from __future__ import annotations

from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from stentor import kernels
from stentor.kernels import Kernel
from stentor.layers.attention import sdpa


class Turns(NamedTuple):
    """RoPE of the first head alone, as in the original: cos and sin [B, T, D / 2] float32 of the frames of a call."""

    cos: Tensor
    sin: Tensor

    @property
    def head_dim(self) -> int:
        return 2 * self.cos.shape[-1]

    def __call__(self, x: Tensor) -> Tensor:
        """x [B, 2, T, H, D], of which pairs of neighbours of head 0 are turned."""
        a, b = x[..., 0, 0::2], x[..., 0, 1::2]
        cos, sin = self.cos[:, None], self.sin[:, None]
        first = torch.stack((a * cos - b * sin, b * cos + a * sin), dim=-1).flatten(-2)
        return torch.cat((first[..., None, :].to(x.dtype), x[..., 1:, :]), dim=-2)

    def heads(self, qkv: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Turned queries and keys, and values, [B, 2, T, H, D] each, of qkv [B, 2, T, 3 C]."""
        q, k, v = (t.view(*t.shape[:-1], -1, self.head_dim) for t in qkv.chunk(3, dim=-1))
        return self(q), self(k), v


class Keys(Protocol):
    """Attention of block `block` in step `step` for rows of one call."""

    def attend(self, step: int, block: int, qkv: Tensor, rope: Turns) -> Tensor:
        """qkv [B, 2, T, 3 C] as projected -> [B, 2, T, C]. The two branches do not see each other."""
        ...


def fused(qkv: Tensor, rope: Turns) -> bool:
    """Whether a kernel attends."""
    if not kernels.enabled(Kernel.PAGED, qkv):
        return False
    from stentor.models.cosyvoice3.kernels import takes

    return takes(rope.head_dim)


class CallKeys:
    """Every frame sees all frames of its row in this call, of which the first `count` [B] exist."""

    def __init__(self, count: Tensor, frames: int) -> None:
        exist = torch.arange(frames, device=count.device) < count[:, None]
        self._count, self._mask = count, exist.repeat_interleave(2, 0)[:, None, None]
        self._kept: Tensor | None = None  # keys and values of one block at a time

    def attend(self, step: int, block: int, qkv: Tensor, rope: Turns) -> Tensor:
        if fused(qkv, rope):
            from stentor.models.cosyvoice3.whole_attention_kernels import whole_attention

            batch, _, frames, width = qkv.shape
            if self._kept is None:
                self._kept = qkv.new_empty(batch, 2, 2, frames, width // 3)
            return whole_attention(qkv, *rope, self._count, width // 3 // rope.head_dim, self._kept)
        q, k, v = (t.flatten(0, 1) for t in rope.heads(qkv))
        return sdpa(q, k, v, self._mask).reshape(*qkv.shape[:3], -1)


class KeptKeys:
    """Frames of a cell see each other and those of the cells before, whose keys and values lie in pages.

    pool [pages, steps, blocks, 2, 2, H, cell, D] has a cell in each page: its keys, then its values, of both branches.
    table [B, n]: each row's pages in order. filled [B] of them hold earlier cells, and the next take the `cells` of the
    call. Of its frames the first `count` [B] exist.
    """

    def __init__(self, pool: Tensor, table: Tensor, filled: Tensor, count: Tensor, cells: int = 1) -> None:
        self._pool, self._table, self._filled, self._count, self._cells = pool, table, filled, count, cells
        device, size = table.device, pool.shape[6]
        own, page = torch.arange(cells, device=device), torch.arange(table.shape[1], device=device)
        last = filled[:, None] + own  # page of each cell
        self._page = table.gather(1, last)
        frames = torch.where(page < filled[:, None], size, 0)
        frames = frames.scatter(1, last, (count[:, None] - size * own).clamp(0, size))
        exist = torch.arange(size, device=device) < frames[..., None]
        seen = (exist[:, None] & (page <= last[..., None])[..., None]).flatten(2)
        self._mask = seen.repeat_interleave(size, 1).repeat_interleave(2, 0)[:, None]

    def attend(self, step: int, block: int, qkv: Tensor, rope: Turns) -> Tensor:
        if fused(qkv, rope):
            from stentor.models.cosyvoice3.attention_kernels import cell_attention
            from stentor.models.cosyvoice3.hopper_attention import Pages

            pages, at = Pages(self._pool, self._table, self._filled), step * self._pool.shape[2] + block
            heads = qkv.shape[-1] // 3 // rope.head_dim
            return cell_attention(qkv, *rope, self._count, heads, pages, self._cells, at)
        q, k, v = rope.heads(qkv)
        shape = (len(q), 2, 2, self._cells, -1, *q.shape[3:])  # [B, keys or values, branch, cells, cell, H, D]
        new = torch.stack((k, v), 1).view(shape)
        self._pool[self._page, step, block] = new.permute(0, 3, 1, 2, 5, 4, 6).to(self._pool.dtype)
        kept = self._pool[self._table, step, block]  # [B, n, 2, 2, H, cell, D]
        both = kept.permute(2, 0, 3, 1, 5, 4, 6).reshape(2, 2 * len(q), -1, *q.shape[3:]).to(q.dtype)
        return sdpa(q.flatten(0, 1), both[0], both[1], self._mask).reshape(*qkv.shape[:3], -1)
