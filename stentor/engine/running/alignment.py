"""Where in its text a row's alignment heads look: their attention over the prompt's keys, which lie in pages.

It is computed in the step that makes the frame, kept beside the frames, and comes to the host with the audio. It adds
no wait. With a window (`AlignmentHeads.window`) it decides which part of the text the next frame sees, so that no word
is skipped or spoken again. Else nothing of it is fed back, and audio does not depend on it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from stentor.engine.running.text_window import seen
from stentor.models.info import REACH

if TYPE_CHECKING:
    from stentor.engine.running.kv_cache import PagedKV
    from stentor.kernels.types import TextWindow
    from stentor.models.base import Rows
    from stentor.models.info import AlignmentHeads

WIDTH = 2 + 2 * REACH
"""Numbers of a frame: the text position with most attention, and the attention on those around it."""


def attended(
    kv: PagedKV,
    heads: AlignmentHeads,
    queries: Tensor,
    rows: Rows,
    idx: Tensor,
    max_pages: int,
    window: TextWindow | None = None,
) -> Tensor:
    """Attention of the heads of rows idx [B]: [B, WIDTH] float32.

    queries: [B, layers, heads, dim], with norms and RoPE. Columns `text_start` and `text_end` say where the text
    stands in the prompt. Positions count from there. The attention on the text sums to 1. window: all that they see of
    it. The position that is said is then never before the window's place.
    """
    pages = kv.table[idx] if kv.fused else kv.table[idx, :max_pages]
    at = torch.arange(pages.shape[1] * kv.page, device=idx.device)
    start, end = rows["text_start"][:, None], rows["text_end"][:, None]
    outside = ((at < start) | (at >= end) if window is None else ~seen(window, at, inside=True))[:, None]
    used = -(-heads.heads // heads.group)  # key heads
    total = torch.zeros_like(at, dtype=torch.float32)
    for i, layer in enumerate(heads.layers):
        keys = kv.pool[layer, 0].index_select(0, pages.flatten()).view(len(idx), len(at), *kv.pool.shape[4:])
        for head in range(used):
            q = queries[:, i, head * heads.group : (head + 1) * heads.group]
            scores = torch.matmul(q.to(keys.dtype), keys[:, :, head].transpose(1, 2)).float() * heads.scale
            total = total + scores.masked_fill(outside, torch.finfo(torch.float32).min).softmax(-1).sum(1)
    mean = total / (len(heads.layers) * heads.heads)
    peak = mean.argmax(-1, keepdim=True)
    if window is not None:
        peak = torch.maximum(peak, start + window.place[:, None].long())
    around = peak + torch.arange(-REACH, REACH + 1, device=idx.device)
    inside = (around >= start) & (around < end)
    weights = mean.gather(1, around.clamp(0, len(at) - 1)) * inside
    return torch.cat(((peak - start).float(), weights), dim=1)
