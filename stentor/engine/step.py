"""The forward path: two functions that run eagerly on a CPU and inside a CUDA graph.

Inputs are the slot table, the key-value pool and index tensors. Nothing here reads a value on the host.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING

from torch import Tensor

from stentor.engine.alignment import attended
from stentor.layers.rng import uniform
from stentor.layers.types import ADAPTER

if TYPE_CHECKING:
    from stentor.engine.kv_cache import PagedKV
    from stentor.engine.prefill_batch import PrefillBatch
    from stentor.engine.slot_table import SlotTable
    from stentor.models.base import Emit, Rows, SpeechModel


def decode(model: SpeechModel, slots: SlotTable, kv: PagedKV, idx: Tensor, max_pages: int, num_evals: int) -> None:
    """Generate one frame for each slot in `idx` [B]. Padding entries name the padding row."""
    rows = slots.rows(idx, num_evals)
    with _adapters_of(model, slots, idx):
        h = model.backbone(model.embed_frame(rows), kv.decode_view(idx, rows["pos"], max_pages))
        out = model.emit(h, rows, uniform(rows["seed"], rows["step"], model.spec.draws))
    slots.commit(rows, out, None, _attended(model, kv, out, rows, idx, max_pages))


def prefill(model: SpeechModel, slots: SlotTable, kv: PagedKV, batch: PrefillBatch) -> None:
    """Run pieces of prompts, or of generated frames, and make frame 0 of the requests whose prompts end with them."""
    with _adapters_of(model, slots, batch.slot):
        if len(batch.step):
            x = model.embed_frame(slots.past(batch.slot, batch.step, batch.num_evals))
        else:
            x = model.embed_prompt(batch.prompt)
        h = model.backbone(
            x, kv.prefill_view(batch.pieces, batch.row, batch.slot, batch.pos, batch.max_pages, batch.max_seqlen)
        )
    if not len(batch.idx):
        return
    rows = slots.rows(batch.idx, batch.num_evals)
    u = uniform(rows["seed"], rows["step"], model.spec.draws)
    with _adapters_of(model, slots, batch.idx):
        out = model.emit(tuple(t[batch.last] for t in h), rows, u)
    slots.commit(rows, out, batch.length, _attended(model, kv, out, rows, batch.idx, batch.max_pages))


def _attended(model: SpeechModel, kv: PagedKV, out: Emit, rows: Rows, idx: Tensor, max_pages: int) -> Tensor | None:
    """Where in the text each frame is. None in a model that does not know."""
    heads = model.spec.alignment
    if heads is None or out.queries is None:
        return None
    return attended(kv, heads, out.queries, rows, idx, max_pages)


def _adapters_of(model: SpeechModel, slots: SlotTable, idx: Tensor) -> AbstractContextManager[None]:
    """Inside, row n of what the model is given uses the adapter of slot idx[n]."""
    adapters = model.adapters
    return adapters.rows.of(slots.table[ADAPTER][idx]) if adapters.count else nullcontext()
