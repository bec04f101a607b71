"""Paged keys and values: one pool for every layer and request, page tables on the device.

A family whose other attention counts frames has further page sets, each with a pool and a page
table of its own, whose pages hold the rows of one frame.

Lengths and page tables are read from device tensors and are never planned on the host per step. A
captured step therefore stays valid while requests come, grow and go. Padding writes into the last
page.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import torch
from torch import Tensor

from stentor import kernels
from stentor.engine.running.device import zeros
from stentor.kernels.types import TextWindow
from stentor.layers.attention import Attend, sdpa
from stentor.layers.qk_norm_rope import NormRope
from stentor.layers.types import torch_dtype
from stentor.models.base import FrameKV, KVSpec, KVView


class PagedKV:
    """Pool [layers, 2, pages + 1, page, heads, dim] and page tables [slots + 1, max_pages].

    frames: the page sets by frame, whose `page` is the rows of one frame.
    """

    def __init__(
        self,
        spec: KVSpec,
        slots: int,
        pages: int,
        page: int,
        max_pages: int,
        device: torch.device,
        frames: Mapping[str, PagedKV] = MappingProxyType({}),
    ) -> None:
        shape = (spec.layers, 2, pages + 1, page, spec.heads, spec.dim)
        self.pool = zeros(shape, torch_dtype(spec.dtype), device)
        self.table = torch.full((slots + 1, max_pages), pages, dtype=torch.int64, device=device)
        self.page = page
        self.slots = slots
        self.pages = pages
        self.frames = frames
        self._gathered = self.pool.new_empty(0)
        self.fused = kernels.paged_attention_supported(device, torch_dtype(spec.dtype))
        """Attention reads lengths on the device. Otherwise its shapes follow from `max_pages` and
        `max_seqlen`."""

    def gather(self, layer: int, pages: Tensor) -> Tensor:
        """Keys and values [2, n, page, heads, dim] of pages [n]. On a CPU the next call overwrites
        them: the system would bring new memory page by page, which takes ten times as long as the
        copy."""
        pool = self.pool[layer]
        if pool.device.type != "cpu":
            return pool.index_select(1, pages)
        size = 2 * len(pages) * pool[0, 0].numel()
        if self._gathered.numel() < size:
            self._gathered = pool.new_empty(size)
        out = self._gathered[:size].view(2, len(pages), *pool.shape[2:])
        return torch.index_select(pool, 1, pages, out=out)

    def fill(self, page: Tensor, offset: Tensor, keys_values: Tensor) -> None:
        """Write keys and values [layers, 2, n, heads, dim] to places [n] in pages [n]."""
        self.pool.flatten(2, 3).index_copy_(
            2, page * self.page + offset, keys_values.to(self.pool.dtype)
        )

    def frames_of(self, idx: Tensor, max_pages: int) -> FrameKV:
        """The page sets by frame as slots idx [B] see them, with one token each. `max_pages`: of
        positions."""
        if self.frames and not self.fused:
            row = torch.arange(len(idx), device=idx.device)
        else:
            row = idx
        return FramePages(self, idx, row, idx, max_pages, 1, alone=True)

    def decode_view(
        self, idx: Tensor, pos: Tensor, max_pages: int, window: TextWindow | None = None
    ) -> KVView:
        """One new token per slot `idx` [B] at `pos` [B]. `max_pages` pages (a shape) cover the
        longest of them."""
        frames = self.frames_of(idx, max_pages)
        if self.fused and kernels.is_batch_invariant():
            return FusedPrefill(self, idx, pos, window, frames, alone=True)
        if self.fused:
            return FusedDecode(self, idx, pos, window, frames)
        row = torch.arange(len(idx), device=idx.device)
        return PagedView(self, idx, row, pos, max_pages, 1, window, frames)

    def prefill_view(
        self,
        idx: Tensor,
        row: Tensor,
        slot: Tensor,
        pos: Tensor,
        max_pages: int,
        max_seqlen: int,
        window: TextWindow | None = None,
        frame_at: Tensor | None = None,
    ) -> KVView:
        """Packed tokens of several slots `idx` [R]. Token n belongs to `slot[n] == idx[row[n]]` and
        stands at `pos[n]`.

        Each row's tokens are consecutive positions. `max_seqlen` is the largest number of them (a
        shape). Only where attention is not fused are `idx` and `row` read. The tokens frame_at [M]
        have a frame, or all where None.
        """
        frame_slot = slot
        frame_row = row
        # padding of frame_at names one token more than there are
        if frame_at is not None and self.frames:
            frame_slot = torch.cat((slot, slot.new_full((1,), self.slots)))[frame_at]
            if self.fused:
                frame_row = row
            else:
                frame_row = row[frame_at]
        frames = FramePages(self, idx, frame_row, frame_slot, max_pages, max_seqlen)
        if self.fused:
            return FusedPrefill(self, slot, pos, window, frames)
        return PagedView(self, idx, row, pos, max_pages, max_seqlen, window, frames)


class FramePages:
    """The page sets by frame, as N tokens with a frame see them: token n of slot[n], which is
    idx[row[n]] (implements FrameKV). Tokens of a slot stand side by side, `most` of them at most.
    Where attention is fused only `slot` is read.

    `alone`: one token per slot, in a decode step.
    """

    def __init__(
        self,
        kv: PagedKV,
        idx: Tensor,
        row: Tensor,
        slot: Tensor,
        max_pages: int,
        max_frames: int,
        alone: bool = False,
    ) -> None:
        self._sets = kv.frames
        self._most = max_frames
        self._alone = alone
        self._idx = idx
        self._row = row
        self._slot = slot
        # each has a position, but for the one that is made
        self._max_frames = max_pages * kv.page + 1

    def view(
        self, name: str, pos: Tensor, seen_to: Tensor | None = None, stored: Tensor | None = None
    ) -> Attend:
        kv = self._sets[name]
        rows = pos.shape[1]
        at = pos.flatten().clamp_min(0)
        if seen_to is None:
            seen_to = at
        else:
            seen_to = seen_to.flatten().clamp_min(0)
        if stored is not None:
            stored = stored.flatten()
        if kv.fused and self._alone and not kernels.is_batch_invariant():

            def attend(layer: int, q: Tensor, k: Tensor, v: Tensor, norm_rope: NormRope) -> Tensor:
                """A frame or two of each slot: one kernel applies norms and RoPE, stores and
                attends."""
                q, k, rest = norm_rope.for_kernel(q, k)
                frame_attention = kernels.frame_attention.frame_attention
                return frame_attention(
                    kv.pool[layer], kv.table, self._slot, at, seen_to, stored, q, k, v, rest
                )

            return attend
        if kv.fused:
            return FusedPrefill(
                kv, self._slot.repeat_interleave(rows), at, None, self, seen_to, stored
            ).attend
        row = self._row.repeat_interleave(rows)
        max_rows = self._most * rows
        max_pages = min(self._max_frames, kv.table.shape[1])
        return PagedView(
            kv, self._idx, row, at, max_pages, max_rows, None, self, seen_to, stored
        ).attend


class FusedDecode:
    """One token per row: one kernel applies norms and RoPE, stores the token and attends
    (implements KVView)."""

    def __init__(
        self, kv: PagedKV, slot: Tensor, pos: Tensor, window: TextWindow | None, frames: FrameKV
    ) -> None:
        self.pos = pos
        self.frame_kv = frames
        self._kv = kv
        self._slot = slot
        self._window = window

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor, norm_rope: NormRope) -> Tensor:
        q, k, rest = norm_rope.for_kernel(q, k)
        kv = self._kv
        window = in_layer(self._window, layer)
        paged = kernels.paged_attention.paged_attention
        return paged(kv.pool[layer], kv.table, self._slot, self.pos, q, k, v, rest, window=window)


class FusedPrefill:
    """Packed tokens of several rows. All are stored, then each attends up to its own position
    (implements KVView).

    seen_to: the position up to which each token sees, its own where None. stored: which are stored,
    all where None. alone: one token per row. It gets the bits that it gets in a prompt or when its
    frame is replayed.
    """

    def __init__(
        self,
        kv: PagedKV,
        slot: Tensor,
        pos: Tensor,
        window: TextWindow | None,
        frames: FrameKV,
        seen_to: Tensor | None = None,
        stored: Tensor | None = None,
        alone: bool = False,
    ) -> None:
        self.pos = pos
        self.frame_kv = frames
        self._kv = kv
        self._slot = slot
        self._window = window
        self._alone = alone
        if seen_to is None:
            self._seen_to = pos
        else:
            self._seen_to = seen_to
        if stored is None:
            self._stored_in = slot
        else:
            self._stored_in = torch.where(stored, slot, kv.slots)

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor, norm_rope: NormRope) -> Tensor:
        q, k = norm_rope.apply(q, k)
        pool = self._kv.pool[layer]
        table = self._kv.table
        window = in_layer(self._window, layer)
        kernels.kv_cache.store_kv(pool, table, self._stored_in, self.pos, k, v)
        prefill = kernels.prefill_attention.prefill_attention
        return prefill(pool, table, self._slot, self._seen_to, q, alone=self._alone, window=window)


class PagedView:
    """The tokens of one step over the pool, in plain PyTorch (implements models.base.KVView).

    seen_to: the position up to which each token sees, its own where None. stored: which are stored,
    all where None.
    """

    def __init__(
        self,
        kv: PagedKV,
        idx: Tensor,
        row: Tensor,
        pos: Tensor,
        max_pages: int,
        max_seqlen: int,
        window: TextWindow | None,
        frames: FrameKV,
        seen_to: Tensor | None = None,
        stored: Tensor | None = None,
    ) -> None:
        self.pos = pos
        self.frame_kv = frames
        if seen_to is None:
            limit = pos
        else:
            limit = seen_to
        self._kv = kv
        self._rows = len(idx)
        self._max_seqlen = max_seqlen
        pages = kv.table[idx, :max_pages]
        self._pages = pages.flatten()
        self._at = pages[row, (pos // kv.page).clamp_max(max_pages - 1)] * kv.page + pos % kv.page
        if stored is not None:
            self._at = torch.where(stored, self._at, kv.pages * kv.page)
        key_pos = torch.arange(max_pages * kv.page, device=pos.device)
        self._window = window
        if max_seqlen == 1:
            seen_by_all = (key_pos <= limit[:, None])[:, None, None]
            if window is None:
                near = seen_by_all
            else:
                near = seen_by_all & visible(window, key_pos)[:, None, None]
        else:
            # Rows are laid out [rows, max_seqlen] for attention: `_flat` says where each packed
            # token goes.
            token = torch.arange(len(pos), device=pos.device)
            first = torch.full_like(idx, torch.iinfo(torch.int64).max).scatter_reduce(
                0, row, token, "amin"
            )
            self._flat = row * max_seqlen + (token - first[row])
            query_pos = pos.new_zeros(self._rows * max_seqlen).index_put((self._flat,), limit)
            seen_by_all = (key_pos <= query_pos.view(self._rows, max_seqlen, 1))[:, None]
            if window is None:
                near = seen_by_all
            else:
                near = seen_by_all & self._laid_out(visible(window, key_pos))
        self._mask = self._added(seen_by_all)
        if window is None:
            self._near = self._mask
        else:
            self._near = self._added(near)

    def _added(self, seen_keys: Tensor) -> Tensor:
        """Additive attention mask (0 or -inf), built once for all layers."""
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
        pool.flatten(1, 2).index_copy_(
            1, self._at, torch.stack((k, v)).to(pool.dtype).nan_to_num_()
        )
        keys, values = self._kv.gather(layer, self._pages).view(2, self._rows, -1, *k.shape[1:])
        if in_layer(self._window, layer) is None:
            mask = self._mask
        else:
            mask = self._near
        if self._max_seqlen == 1:
            # Heads that share keys go in as queries of one head, for which attention needs no
            # copies of the keys.
            grouped = q.view(self._rows, k.shape[1], -1, k.shape[2]).transpose(1, 2)
            return sdpa(grouped, keys, values, mask).transpose(1, 2).flatten(1, 2)
        padded = q.new_zeros(self._rows * self._max_seqlen, *q.shape[1:]).index_put(
            (self._flat,), q
        )
        out = sdpa(padded.view(self._rows, self._max_seqlen, *q.shape[1:]), keys, values, mask)
        return out.flatten(0, 1)[self._flat]


def in_layer(window: TextWindow | None, layer: int) -> TextWindow | None:
    """The window if it holds in this layer. Others see all of the text."""
    if window is not None and layer in window.layers:
        return window
    return None


def visible(window: TextWindow, at: Tensor, inside: bool = False) -> Tensor:
    """Whether keys at positions `at` [T] are visible: [N, T] bool. inside: of the text only, and
    not what is around it."""
    start = window.start[:, None]
    end = window.end[:, None]
    place = start + window.place[:, None].long()
    near = (at >= place - window.behind) & (at <= place + window.ahead)
    if inside:
        return near & (at >= start) & (at < end)
    return near | (at < start) | (at >= end)
