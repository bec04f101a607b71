"""Paged keys and values: one pool for every layer and request, page tables on the device.

Lengths and page tables are read from device tensors, never planned on the host per step, so a captured step stays
valid while requests come, grow and go. The last page absorbs what padding writes.
"""

from __future__ import annotations

import torch
from torch import Tensor

from stentor import kernels
from stentor.kernels.types import QKNormRope
from stentor.layers.attention import Turning, sdpa
from stentor.models.base import KVSpec, KVView


class PagedKV:
    """Pool [layers, 2, pages + 1, page, heads, dim] and page tables [slots + 1, max_pages]."""

    def __init__(self, spec: KVSpec, slots: int, pages: int, page: int, max_pages: int, device: torch.device) -> None:
        shape = (spec.layers, 2, pages + 1, page, spec.heads, spec.dim)
        self.pool = torch.zeros(shape, dtype=spec.dtype, device=device)
        self.table = torch.full((slots + 1, max_pages), pages, dtype=torch.int64, device=device)
        self.page = page
        self.fused = kernels.paged_attention_supported(device, spec.dtype)
        """Attention reads lengths on the device; otherwise `span` and `width` shape it."""

    def decode_view(self, idx: Tensor, pos: Tensor, span: int) -> KVView:
        """One new token per slot `idx` [B] at `pos` [B]; `span` pages (a shape) cover the longest of them."""
        if self.fused:
            return FusedDecode(self, idx, pos)
        return PagedView(self, idx, torch.arange(len(idx), device=idx.device), pos, span, 1)

    def prefill_view(self, idx: Tensor, row: Tensor, slot: Tensor, pos: Tensor, span: int, width: int) -> KVView:
        """Packed tokens of several slots `idx` [R]: token n belongs to `slot[n] == idx[row[n]]` and stands at `pos[n]`.

        Each row's tokens are consecutive positions; `width` is the largest number of them (a shape).
        """
        if self.fused:
            return FusedPrefill(self, slot, pos)
        return PagedView(self, idx, row, pos, span, width)


class FusedDecode:
    """One token per row, by the kernel that stores it and attends (implements models.base.KVView)."""

    def __init__(self, kv: PagedKV, slot: Tensor, pos: Tensor) -> None:
        self.pos = pos
        self.attend = FusedAttention(kv, slot, pos)


class FusedAttention(Turning):
    """The attention of FusedDecode."""

    def __init__(self, kv: PagedKV, slot: Tensor, pos: Tensor) -> None:
        self._kv, self._slot, self._pos = kv, slot, pos

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return self.turned(layer, q, k, v, None)

    def turns(self, x: Tensor) -> bool:
        return kernels.enabled(kernels.Kernel.QK_NORM_ROPE, x)

    def turned(self, layer: int, q: Tensor, k: Tensor, v: Tensor, turn: QKNormRope | None) -> Tensor:
        pool = self._kv.pool[layer]
        return kernels.attention.paged_attention(pool, self._kv.table, self._slot, self._pos, q, k, v, turn)


class FusedPrefill:
    """Packed tokens of several rows: all are stored, then each attends up to its own position (implements KVView)."""

    def __init__(self, kv: PagedKV, slot: Tensor, pos: Tensor) -> None:
        self.pos = pos
        self._kv, self._slot = kv, slot

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        pool = self._kv.pool[layer]
        kernels.kv_cache.store_kv(pool, self._kv.table, self._slot, self.pos, k, v)
        return kernels.attention.paged_prefill_attention(pool, self._kv.table, self._slot, self.pos, q)


class PagedView:
    """The tokens of one step over the pool (implements models.base.KVView)."""

    def __init__(self, kv: PagedKV, idx: Tensor, row: Tensor, pos: Tensor, span: int, width: int) -> None:
        self.pos = pos
        self._kv, self._rows, self._width = kv, len(idx), width
        self._pages = kv.table[idx, :span]
        self._page = self._pages[row, (pos // kv.page).clamp_max(span - 1)]
        self._offset = pos % kv.page
        key_pos = torch.arange(span * kv.page, device=pos.device)
        if width == 1:
            self._mask = (key_pos <= pos[:, None])[:, None, None]
            return
        # Rows are laid out [rows, width] for attention: `_flat` says where each packed token goes.
        first = torch.full_like(idx, torch.iinfo(torch.int64).max).scatter_reduce(0, row, pos, "amin")
        self._flat = row * width + (pos - first[row])
        query_pos = pos.new_zeros(self._rows * width).index_put((self._flat,), pos).view(self._rows, width)
        self._mask = (key_pos <= query_pos[:, :, None])[:, None]

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        keys, values = self._kv.pool[layer, 0], self._kv.pool[layer, 1]
        keys[self._page, self._offset] = k.to(keys.dtype)
        values[self._page, self._offset] = v.to(values.dtype)
        history = (keys[self._pages].flatten(1, 2), values[self._pages].flatten(1, 2))
        if self._width == 1:
            return sdpa(q[:, None], *history, self._mask)[:, 0]
        padded = q.new_zeros(self._rows * self._width, *q.shape[1:]).index_put((self._flat,), q)
        out = sdpa(padded.view(self._rows, self._width, *q.shape[1:]), *history, self._mask)
        return out.flatten(0, 1)[self._flat]
