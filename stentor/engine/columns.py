"""Columns that every row has, whatever its family."""

from __future__ import annotations

from stentor.engine.scheduling.sequence import STOPPED
from stentor.layers.types import Column
from stentor.models.base import ModelSpec


def engine_columns(spec: ModelSpec) -> dict[str, Column]:
    """Columns that every family has. `step` counts generated frames, `pos` counts tokens in the
    key-value cache.

    A family that hides frames also has `emitted`, the number of the others. One with
    alignment heads has the bounds of the text in the prompt.
    """
    return {
        "step": Column(dtype="int64"),
        "stop": Column(dtype="int64", fill=STOPPED),
        "pos": Column(dtype="int64"),
        **({"emitted": Column(dtype="int64")} if spec.hides_frames else {}),
        **(
            {"text_start": Column(dtype="int64"), "text_end": Column(dtype="int64")}
            if spec.alignment
            else {}
        ),
        "seed": Column(dtype="int64"),
        "max_frames": Column(dtype="int64"),
        "min_frames": Column(dtype="int64"),
        "temperature": Column(),
        "top_k": Column(dtype="int64"),
        "top_p": Column(fill=1.0),
        "prev": spec.frame,
    }
