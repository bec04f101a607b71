"""The forward path: three functions that run eagerly on a CPU and inside a CUDA graph.

Inputs are the slot table, the key-value pool and index tensors. Nothing here reads a value on the
host.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from stentor.engine.running.kv_cache import PagedKV, visible
from stentor.kernels.types import TextWindow
from stentor.layers.rng import uniform
from stentor.layers.types import ADAPTER
from stentor.models.info import REACH, AlignmentHeads

if TYPE_CHECKING:
    from stentor.engine.running.prefill_batch import PrefillBatch
    from stentor.engine.running.slot_table import SlotRows, SlotTable
    from stentor.models.base import Emit, Rows, SpeechModel


def decode(
    model: SpeechModel, slots: SlotTable, kv: PagedKV, idx: Tensor, max_pages: int, num_evals: int
) -> None:
    """Generate one frame for each slot in `idx` [B]. Padding entries name the padding row."""
    frame_kv = kv.frames_of(idx, max_pages)
    rows = slots.rows(idx, num_evals, frame_kv)
    with _adapters_of(model, slots, idx):
        x = model.embed_frame(rows)
        window = _window(model, rows)
        view = kv.decode_view(idx, rows["pos"], max_pages, window)
        h = model.backbone(x, view)
        draws = uniform(rows["seed"], rows["step"], model.spec.draws)
        out = model.emit(h, rows, draws)
    places = _attended(model, kv, out, rows, idx, max_pages, window)
    slots.commit(rows, out, None, places)


def prefill(model: SpeechModel, slots: SlotTable, kv: PagedKV, batch: PrefillBatch) -> None:
    """Run pieces of prompts, or of generated frames. Where a prompt ends, the hidden state of its
    last token is kept in the slot table, for `first_frame`."""
    window = None  # a prompt sees all of its text
    frame_at = None
    with _adapters_of(model, slots, batch.slot):
        if len(batch.step):
            past = slots.past(batch.slot, batch.step)
            x = model.embed_frame(past)
            window = _window(model, past)
        else:
            rows = slots.rows(batch.slot, 0)
            x = model.embed_prompt(batch.prompt, rows)
            frame_at = batch.prompt.frame_at
        tokens = (batch.pieces, batch.row, batch.slot, batch.pos)
        view = kv.prefill_view(*tokens, batch.max_pages, batch.max_seqlen, window, frame_at)
        h = model.backbone(x, view)
    if len(batch.idx):
        last_hidden = tuple(t[batch.last] for t in h)
        slots.keep_hidden(batch.idx, last_hidden, batch.length)


def first_frame(
    model: SpeechModel, slots: SlotTable, kv: PagedKV, idx: Tensor, max_pages: int, num_evals: int
) -> None:
    """Make frame 0 of the requests in slots `idx` [B], whose prompts a `prefill` has computed."""
    frame_kv = kv.frames_of(idx, max_pages)
    rows = slots.rows(idx, num_evals, frame_kv, first=True)
    with _adapters_of(model, slots, idx):
        h = slots.hidden_of(idx)
        draws = uniform(rows["seed"], rows["step"], model.spec.draws)
        out = model.emit(h, rows, draws)
    window = _window(model, rows)
    places = _attended(model, kv, out, rows, idx, max_pages, window)
    slots.commit(rows, out, rows["pos"], places)


def _window(model: SpeechModel, rows: SlotRows) -> TextWindow | None:
    """The part of its text that each row sees when it makes its next frame. None where it sees
    all."""
    heads = model.spec.alignment
    if heads is None or heads.window is None:
        return None
    behind, ahead = heads.window
    start = rows["text_start"]
    end = rows["text_end"]
    return TextWindow(heads.layers, start, end, rows.place(), behind, ahead)


def _attended(
    model: SpeechModel,
    kv: PagedKV,
    out: Emit,
    rows: Rows,
    idx: Tensor,
    max_pages: int,
    window: TextWindow | None,
) -> Tensor | None:
    """Where in the text each frame is. None in a model that does not know."""
    heads = model.spec.alignment
    if heads is None or out.queries is None:
        return None
    return attended(kv, heads, out.queries, rows, idx, max_pages, window)


def _adapters_of(model: SpeechModel, slots: SlotTable, idx: Tensor) -> AbstractContextManager[None]:
    """Inside, row n of the model's input uses the adapter of slot idx[n]."""
    adapters = model.adapters
    if adapters.count:
        numbers = slots.table[ADAPTER]
        return adapters.rows.of(numbers[idx])
    return nullcontext()


def attended(
    kv: PagedKV,
    heads: AlignmentHeads,
    queries: Tensor,
    rows: Rows,
    idx: Tensor,
    max_pages: int,
    window: TextWindow | None = None,
) -> Tensor:
    """Attention of the alignment heads over the text of rows idx [B]: [B, ATTENDED_WIDTH] float32.

    It is kept beside the frames and comes to the host with the audio, so it adds no wait. Audio
    depends on it only with a window (`AlignmentHeads.window`): it decides then which part of the
    text the next frame sees, so that no word is skipped or spoken again.

    queries: [B, layers, heads, dim], with norms and RoPE. Columns `text_start` and `text_end` hold
    the text's place in the prompt. Positions count from there. The attention on the text sums to 1.
    window: all that they see of it. The returned position is then never before the window's place.
    """
    if kv.fused:
        pages = kv.table[idx]
    else:
        pages = kv.table[idx, :max_pages]
    num_positions = pages.shape[1] * kv.page
    at = torch.arange(num_positions, device=idx.device)
    start = rows["text_start"][:, None]
    end = rows["text_end"][:, None]
    if window is None:
        outside = (at < start) | (at >= end)
    else:
        outside = ~visible(window, at, inside=True)
    outside = outside[:, None]

    num_key_heads = -(-heads.heads // heads.group)
    total = torch.zeros_like(at, dtype=torch.float32)
    lowest = torch.finfo(torch.float32).min
    for i, layer in enumerate(heads.layers):
        pool = kv.pool[layer, 0]
        paged_keys = pool.index_select(0, pages.flatten())
        keys = paged_keys.view(len(idx), len(at), *pool.shape[2:])
        for head in range(num_key_heads):
            first = head * heads.group
            stop = first + heads.group
            q = queries[:, i, first:stop].to(keys.dtype)
            k = keys[:, :, head].transpose(1, 2)
            scores = torch.matmul(q, k).float() * heads.scale
            attention = scores.masked_fill(outside, lowest).softmax(-1)
            total = total + attention.sum(1)

    mean = total / (len(heads.layers) * heads.heads)
    peak = mean.argmax(-1, keepdim=True)
    if window is not None:
        place = window.place[:, None].long()
        peak = torch.maximum(peak, start + place)

    reach = torch.arange(-REACH, REACH + 1, device=idx.device)
    around = peak + reach
    inside = (around >= start) & (around < end)
    bounded = around.clamp(0, len(at) - 1)
    weights = mean.gather(1, bounded) * inside
    position = (peak - start).float()
    return torch.cat((position, weights), dim=1)
