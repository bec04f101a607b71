"""Types that the layers share with the families and the engine."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

State = dict[str, Tensor]
"""Tensors [B, ...] that a codec carries from one call to the next, by name."""


@dataclass(frozen=True)
class Column:
    """One tensor of the slot table: `shape` and `dtype` of a single row, and the value of a fresh row."""

    shape: tuple[int, ...] = ()
    dtype: torch.dtype = torch.float32
    fill: float = 0


ADAPTER = "adapter"
"""The column with the number of each row's LoRA adapter, 0 for none, in a model that takes adapters."""
