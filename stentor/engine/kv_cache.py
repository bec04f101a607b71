"""Paged keys and values: one pool for every layer and request, page tables on the device.

Lengths and page tables are read from device tensors and are never planned on the host per step. A captured step
therefore stays valid while requests come, grow and go. Padding writes into the last page.
"""

from __future__ import annotations

import torch
from torch import Tensor

from stentor import kernels
from stentor.engine.device import zeros
from stentor.engine.text_window import in_layer, seen
from stentor.kernels.types import TextWindow
from stentor.layers.attention import sdpa
from stentor.layers.qk_norm_rope import NormRope
from stentor.models.base import KVSpec, KVView


class PagedKV:
    """Pool [layers, 2, pages + 1, page, heads, dim] and page tables [slots + 1, max_pages]."""

    def __init__(self, spec: KVSpec, slots: int, pages: int, page: int, max_pages: int, device: torch.device) -> None:
        shape = (spec.layers, 2, pages + 1, page, spec.heads, spec.dim)
        self.pool = zeros(shape, spec.dtype, device)
        self.table = torch.full((slots + 1, max_pages), pages, dtype=torch.int64, device=device)
        self.page = page
        self.fused = kernels.paged_attention_supported(device, spec.dtype)
        """Attention reads lengths on the device. Otherwise its shapes follow from `max_pages` and `max_seqlen`."""

    def decode_view(self, idx: Tensor, pos: Tensor, max_pages: int, window: TextWindow | None = None) -> KVView:
        """One new token per slot `idx` [B] at `pos` [B]. `max_pages` pages (a shape) cover the longest of them."""
        if self.fused and kernels.is_batch_invariant():
            return FusedPrefill(self, idx, pos, window, alone=True)
        if self.fused:
            return FusedDecode(self, idx, pos, window)
        row = torch.arange(len(idx), device=idx.device)
        return PagedView(self, idx, row, pos, max_pages, 1, window)

    def prefill_view(
        self,
        idx: Tensor,
        row: Tensor,
        slot: Tensor,
        pos: Tensor,
        max_pages: int,
        max_seqlen: int,
        window: TextWindow | None = None,
    ) -> KVView:
        """Packed tokens of several slots `idx` [R]. Token n belongs to `slot[n] == idx[row[n]]` and stands at `pos[n]`.

        Each row's tokens are consecutive positions. `max_seqlen` is the largest number of them (a shape). Only where
        attention is not fused are `idx` and `row` read.
        """
        if self.fused:
            return FusedPrefill(self, slot, pos, window)
        return PagedView(self, idx, row, pos, max_pages, max_seqlen, window)


class FusedDecode:
    """One token per row: one kernel applies norms and RoPE, stores the token and attends (implements KVView)."""

    def __init__(self, kv: PagedKV, slot: Tensor, pos: Tensor, window: TextWindow | None) -> None:
        self.pos = pos
        self._kv, self._slot, self._window = kv, slot, window

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor, norm_rope: NormRope) -> Tensor:
        q, k, left = norm_rope.for_kernel(q, k)
        kv, window = self._kv, in_layer(self._window, layer)
        paged = kernels.paged_attention.paged_attention
        return paged(kv.pool[layer], kv.table, self._slot, self.pos, q, k, v, left, window=window)


class FusedPrefill:
    """Packed tokens of several rows. All are stored, then each attends up to its own position (implements KVView).

    `alone`: one token per row. It gets the bits that it gets in a prompt or when its frame is replayed.
    """

    def __init__(self, kv: PagedKV, slot: Tensor, pos: Tensor, window: TextWindow | None, alone: bool = False) -> None:
        self.pos = pos
        self._kv, self._slot, self._window, self._alone = kv, slot, window, alone

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor, norm_rope: NormRope) -> Tensor:
        q, k = norm_rope.apply(q, k)
        pool, table, window = self._kv.pool[layer], self._kv.table, in_layer(self._window, layer)
        kernels.kv_cache.store_kv(pool, table, self._slot, self.pos, k, v)
        prefill = kernels.prefill_attention.prefill_attention
        return prefill(pool, table, self._slot, self.pos, q, alone=self._alone, window=window)


class PagedView:
    """The tokens of one step over the pool, in plain PyTorch (implements models.base.KVView)."""

    def __init__(
        self,
        kv: PagedKV,
        idx: Tensor,
        row: Tensor,
        pos: Tensor,
        max_pages: int,
        max_seqlen: int,
        window: TextWindow | None,
    ) -> None:
        self.pos = pos
        self._kv, self._rows, self._max_seqlen = kv, len(idx), max_seqlen
        pages = kv.table[idx, :max_pages]
        self._pages = pages.flatten()
        self._at = pages[row, (pos // kv.page).clamp_max(max_pages - 1)] * kv.page + pos % kv.page
        key_pos = torch.arange(max_pages * kv.page, device=pos.device)
        self._window = window
        if max_seqlen == 1:
            seen_by_all = (key_pos <= pos[:, None])[:, None, None]
            near = seen_by_all if window is None else seen_by_all & seen(window, key_pos)[:, None, None]
        else:
            # Rows are laid out [rows, max_seqlen] for attention: `_flat` says where each packed token goes.
            first = torch.full_like(idx, torch.iinfo(torch.int64).max).scatter_reduce(0, row, pos, "amin")
            self._flat = row * max_seqlen + (pos - first[row])
            query_pos = pos.new_zeros(self._rows * max_seqlen).index_put((self._flat,), pos)
            seen_by_all = (key_pos <= query_pos.view(self._rows, max_seqlen, 1))[:, None]
            near = seen_by_all if window is None else seen_by_all & self._laid_out(seen(window, key_pos))
        self._mask = self._added(seen_by_all)
        self._near = self._mask if window is None else self._added(near)

    def _added(self, seen_keys: Tensor) -> Tensor:
        """What attention adds to its scores: 0 where a key is seen. Every layer would make it anew from a bool."""
        zeros = torch.zeros(seen_keys.shape, dtype=self._kv.pool.dtype, device=seen_keys.device)
        return zeros.masked_fill_(~seen_keys, -torch.inf)

    def _laid_out(self, of_tokens: Tensor) -> Tensor:
        """[N, T] of packed tokens as [rows, 1, max_seqlen, T]."""
        rows = of_tokens.new_ones(self._rows * self._max_seqlen, of_tokens.shape[1])
        return rows.index_put((self._flat,), of_tokens).view(self._rows, 1, self._max_seqlen, -1)

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor, norm_rope: NormRope) -> Tensor:
        q, k = norm_rope.apply(q, k)
        pool = self._kv.pool[layer]
        # The next owner of a page masks what it did not write, but NaN times 0 is NaN.
        pool.flatten(1, 2).index_copy_(1, self._at, torch.stack((k, v)).to(pool.dtype).nan_to_num_())
        keys, values = pool.index_select(1, self._pages).view(2, self._rows, -1, *k.shape[1:])
        mask = self._mask if in_layer(self._window, layer) is None else self._near
        if self._max_seqlen == 1:
            # Heads that share keys go in as queries of one head, for which attention needs no copies of the keys.
            grouped = q.view(self._rows, k.shape[1], -1, k.shape[2]).transpose(1, 2)
            return sdpa(grouped, keys, values, mask).transpose(1, 2).flatten(1, 2)
        padded = q.new_zeros(self._rows * self._max_seqlen, *q.shape[1:]).index_put((self._flat,), q)
        out = sdpa(padded.view(self._rows, self._max_seqlen, *q.shape[1:]), keys, values, mask)
        return out.flatten(0, 1)[self._flat]
