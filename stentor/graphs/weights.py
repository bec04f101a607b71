"""Weights of a graph from the tensors of a checkpoint. Graphs are checked in without them.

A graph's table names, for each weight, the tensors it is made of and its layout: see `LAYOUTS`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from stentor.graphs.tensors import TensorFile

PRODUCT = "product"
UPSAMPLING = "upsampling"
INT8_UPSAMPLING = "int8 upsampling"
"""An upsampling whose checkpoint has integers under a weight norm."""
SCALE = "#scale"
"""Ends the name of the scales of a weight in 8 bits: of its outputs, of an upsampling's inputs."""
EPSILON = 1e-9  # of the reference, so that an alpha of 0 leaves its input as it is


Shape = tuple[int, ...]


def _product(value: np.ndarray, shape: Shape) -> np.ndarray:
    """A linear layer [out, in] as the right factor of a product [in, out]."""
    return value.T


def _taps(value: np.ndarray, shape: Shape) -> np.ndarray:
    """A convolution [out, in, taps] as [in, taps * out]."""
    return value.transpose(1, 2, 0)


def _upsampling(value: np.ndarray, shape: Shape) -> np.ndarray:
    """A transposed convolution [in, out, taps] as [taps / stride * in, stride * out]: for a column
    and those before it."""
    inputs = len(value)
    by_column = value.transpose(0, 2, 1).reshape(inputs, shape[0] // inputs, -1)
    return by_column.transpose(1, 0, 2)


def _repeated(value: np.ndarray, shape: Shape) -> np.ndarray:
    """A bias of each of `stride` outputs."""
    return np.resize(value, shape)


def _inverse(value: np.ndarray, shape: Shape) -> np.ndarray:
    return 1 / (value + np.float32(EPSILON))


def _plain(value: np.ndarray, shape: Shape) -> np.ndarray:
    return value


LAYOUTS: Mapping[str, Callable[[np.ndarray, Shape], np.ndarray]] = {
    PRODUCT: _product,
    "taps": _taps,
    UPSAMPLING: _upsampling,
    INT8_UPSAMPLING: _upsampling,
    "repeated": _repeated,
    "inverse": _inverse,
    "plain": _plain,
}
"""Functions of a tensor and the shape that its weight has in the graph."""


@dataclass(frozen=True)
class Weight:
    """One weight of a graph: `tensors`, stacked along their first dimension, in a layout of
    `shape`.

    row: the row that is taken of the stacked tensors, None for all.
    """

    tensors: tuple[str, ...]
    layout: str
    shape: tuple[int, ...]
    row: int | None = None

    @classmethod
    def parse(cls, data: Mapping[str, Any]) -> Weight:
        return cls(tuple(data["tensors"]), data["layout"], tuple(data["shape"]), data.get("row"))

    def dump(self) -> dict[str, Any]:
        data: dict[str, Any] = {
            "tensors": list(self.tensors),
            "layout": self.layout,
            "shape": list(self.shape),
        }
        if self.row is not None:
            data["row"] = self.row
        return data

    @property
    def has_eight_bits(self) -> bool:
        """Whether a graph with products in 8 bits takes it as it is stored."""
        return self.layout in (PRODUCT, INT8_UPSAMPLING)

    def wide(self, file: TensorFile) -> np.ndarray:
        """The weight in float32."""
        stacked = _stacked([file.wide(name) for name in self.tensors])
        if self.row is not None:
            stacked = stacked[self.row]
        return np.ascontiguousarray(LAYOUTS[self.layout](stacked, self.shape)).reshape(self.shape)

    def narrow(self, file: TensorFile) -> tuple[np.ndarray, np.ndarray]:
        """The right factor of a product as it is stored: int8 [in, out], and float32 scales [out],
        of an upsampling [in]."""
        if self.layout == INT8_UPSAMPLING:
            (name,) = self.tensors
            integers, scales = file.normed(name)
            columns = self.shape[0] // len(scales)
            placed = _upsampling(integers, self.shape).reshape(self.shape)
            return np.ascontiguousarray(placed), np.tile(scales, columns)
        stacked = _stacked([file.stored(name) for name in self.tensors])
        scales = _stacked([file.stored(f"{name}_scale") for name in self.tensors])
        return np.ascontiguousarray(stacked.T), scales.reshape(-1)


def _stacked(parts: list[np.ndarray]) -> np.ndarray:
    if len(parts) == 1:
        return parts[0]
    return np.concatenate(parts)
