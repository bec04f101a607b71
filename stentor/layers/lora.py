"""Linear layers that hold low-rank weights (LoRA, Hu et al., 2022) of several adapters and serve a
batch of any mix.

The adapter of a row is a number on the device, so a captured step serves every mix. Number 0 adds
nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from stentor import kernels
from stentor.kernels import Kernel
from stentor.kernels.configs import LORA_FEW_ROWS
from stentor.layers.linear import activation_dtype, linear, scale_of


class LoraRows:
    """Adapters of the rows of the present call: `index` [G] int64, 0 for none.

    Row n of a layer's input [N, ...] uses `index[n % G]`, since a flow puts rows for guidance
    behind the others. Where kernels serve few rows, `tiles` are those that have the same adapter
    (`kernels.lora.tiles_of`).
    """

    def __init__(self) -> None:
        self.index = torch.empty(0, dtype=torch.int64)
        self.tiles: Tensor | None = None

    @contextmanager
    def of(self, index: Tensor) -> Iterator[None]:
        """Inside, these are the adapters of the rows."""
        before = self.index, self.tiles
        few = 0 < len(index) <= LORA_FEW_ROWS and kernels.adapters_enabled(index.device)
        self.index = index
        if few:
            self.tiles = kernels.lora.tiles_of(index)
        else:
            self.tiles = None
        try:
            yield
        finally:
            self.index, self.tiles = before

    @contextmanager
    def at(self, places: Tensor) -> Iterator[None]:
        """Inside, row m is what row places[m] was. A place behind the last row uses no adapter."""
        index = self.index
        if len(index):
            index = F.pad(index, (0, 1))[places]
        with self.of(index):
            yield


class LoraLinear(nn.Linear):
    """x W^T + b, plus (x A^T) B^T of each row's adapter. Takes over the weight and bias of a linear
    layer.

    The layer may be quantised, and it may be several of the checkpoint stacked, of `widths` outputs
    each. They share their input and have an A and a B of their own: `lora_a` [parts, slots, rank,
    in], `lora_b` [slots, rank, out]. Slot s is adapter s + 1.
    """

    def __init__(
        self,
        base: nn.Linear,
        widths: Sequence[int],
        slots: int,
        rank: int,
        rows: LoraRows,
    ) -> None:
        nn.Module.__init__(self)
        self.in_features = base.in_features
        self.out_features = base.out_features
        self.weight = base.weight
        self.bias = base.bias
        self.scale = scale_of(base)  # of a quantised weight
        self.widths = tuple(widths)
        self.rows = rows
        a = (len(widths), slots, rank, self.in_features)
        b = (slots, rank, self.out_features)
        dtype = activation_dtype(base)
        self.register_buffer("lora_a", self.weight.new_zeros(a, dtype=dtype), persistent=False)
        self.register_buffer("lora_b", self.weight.new_zeros(b, dtype=dtype), persistent=False)

    lora_a: Tensor
    lora_b: Tensor

    def forward(self, x: Tensor) -> Tensor:
        """x [N, ..., in] -> [N, ..., out]."""
        y = linear(x, self.weight, self.bias, self.scale)
        rows = self.rows
        return add_lora(y, x, rows.index, self.lora_a, self.lora_b, self.widths, rows.tiles)

    @torch.no_grad()
    def write(
        self,
        slot: int,
        part: int,
        a: Tensor,
        b: Tensor,
    ) -> None:
        """Store A [r, in] and B [out, r] of a part, with zeros up to the rank of the slots."""
        rank = len(a)
        rows = self.lora_a[part, slot]
        rows[:rank].copy_(a)
        rows[rank:].zero_()
        start = sum(self.widths[:part])
        stop = start + self.widths[part]
        columns = self.lora_b[slot, :, start:stop]
        columns[:rank].copy_(b.T)
        columns[rank:].zero_()


def project(layer: nn.Linear, x: Tensor) -> Tensor:
    """x [..., in] -> [..., out] of a layer with adapters or without, not a quantised one."""
    if isinstance(layer, LoraLinear):
        return layer.forward(x)
    return linear(x, layer.weight, layer.bias)


def add_lora(
    y: Tensor,
    x: Tensor,
    index: Tensor,
    a: Tensor,
    b: Tensor,
    widths: Sequence[int],
    tiles: Tensor | None = None,
) -> Tensor:
    """y [N, ..., out] + (x [N, ..., in] A^T) B^T of each row's adapter, see `LoraRows` and
    `LoraLinear`. May write y.

    The reference multiplies by the weights of all slots and drops what is not the row's own, so its
    shapes do not depend on the mix. Stored weights must be finite.
    """
    if not len(index) or not len(x):
        return y
    if kernels.enabled(Kernel.LORA, x):
        return kernels.lora.add_lora(y, x, index, a, b, widths, tiles)
    slots, rank = b.shape[:2]
    numbers = torch.arange(1, slots + 1, device=index.device)
    row_numbers = index.repeat(len(x) // len(index))
    selected = row_numbers[:, None] == numbers
    selected = selected.view(len(x), *[1] * (x.ndim - 2), 1, slots, 1)
    all_a = a.reshape(-1, a.shape[-1])
    h = F.linear(x, all_a).view(*x.shape[:-1], len(widths), slots, rank)
    h = torch.where(selected, h, 0).flatten(-2)
    all_b = b.reshape(slots * rank, -1)
    parts = torch.split(all_b, list(widths), dim=1)
    products = [h[..., i, :] @ part for i, part in enumerate(parts)]
    return y + torch.cat(products, dim=-1)
