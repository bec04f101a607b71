"""Types that the layers share with the families and the engine."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from stentor.layers.qk_norm_rope import NormRope


class Attend(Protocol):
    """Attention of one layer, over whatever history the implementation keeps."""

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor, norm_rope: NormRope) -> Tensor:
        """q [..., Hq, D], k and v [..., Hkv, D], all as projected -> [..., Hq, D].

        `norm_rope` holds the head norms and the RoPE of this layer. The implementation applies them, in its kernel or
        by `norm_rope.apply`.
        """
        ...


State = dict[str, Tensor]
"""Tensors [B, ...] that a codec carries from one call to the next, by name."""


@dataclass(frozen=True)
class Column:
    """One tensor of the slot table: `shape` and `dtype` of a single row, and the value of a fresh row."""

    shape: tuple[int, ...] = ()
    dtype: torch.dtype = torch.float32
    fill: float = 0
