"""Alignment of one row with its text, in numpy: `running.step.attended`, and the masks of
`running.kv_cache`."""

from __future__ import annotations

import numpy as np

from stentor.models.graph_model import MASKED, GraphRow, TextMasks
from stentor.models.info import ATTENDED_WIDTH, REACH, AlignmentHeads


def text_masks(heads: AlignmentHeads | None, row: GraphRow, positions: int) -> TextMasks:
    """Masks over `positions` keys for the row's next frame."""
    if heads is None:
        open_mask = np.zeros(positions, np.float32)
        return TextMasks(open_mask, open_mask)

    at = np.arange(positions)
    start = row.columns["text_start"]
    end = row.columns["text_end"]
    text = (at >= start) & (at < end)
    visible = np.ones(positions, bool)
    if heads.window is not None:
        behind, ahead = heads.window
        place = start + row.text_place
        first = place - behind
        last = place + ahead
        visible = (at >= first) & (at <= last)

    unmasked = np.float32(0)
    near = np.where(visible | ~text, unmasked, MASKED)
    inside = np.where(visible & text, unmasked, MASKED)
    return TextMasks(near, inside)


def attended(heads: AlignmentHeads | None, row: GraphRow, attention: np.ndarray) -> np.ndarray:
    """Where in its text a frame is, and the weights around that: float32 [ATTENDED_WIDTH], or [0]
    without heads."""
    if heads is None:
        return np.zeros(0, np.float32)

    start = row.columns["text_start"]
    end = row.columns["text_end"]
    peak = int(attention.argmax())
    if heads.window is not None:
        last_place = start + row.text_place
        peak = max(peak, last_place)  # the place never moves back

    around = np.arange(peak - REACH, peak + REACH + 1)
    inside = (around >= start) & (around < end)
    bounded = around.clip(0, len(attention) - 1)
    weights = attention[bounded] * inside

    out = np.empty(ATTENDED_WIDTH, np.float32)
    out[0] = peak - start
    out[1:] = weights
    return out
