"""Tensors of safetensors files as numpy arrays, without torch."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from safetensors import SafetensorError, safe_open

from stentor.errors import CheckpointError

DTYPES: Mapping[str, str] = {
    "F64": "float64",
    "F32": "float32",
    "F16": "float16",
    "BF16": "uint16",  # the bits: numpy has no such dtype
    "I64": "int64",
    "I32": "int32",
    "I8": "int8",
    "U8": "uint8",
}
BFLOAT16 = "BF16"
WEIGHT = ".weight"
CACHED = 1 << 16
"""Numbers of a weight that are folded at once: these stay in the cache between the passes."""


class TensorFile:
    """The tensors of one file. Each is read when it is used: pages of a mapped file would stay in
    memory beside what is made of them.
    """

    def __init__(self, file: Path) -> None:
        """Raises CheckpointError for a file that is missing, truncated, or has a dtype that is not
        known."""
        if not file.is_file():
            raise CheckpointError(f"{file} does not exist")
        self.file = file
        self._dtypes: dict[str, str] = {}
        self._shapes: dict[str, tuple[int, ...]] = {}
        self._offsets: dict[str, int] = {}
        try:
            self._read_header()
        except (SafetensorError, OSError, ValueError) as e:
            raise CheckpointError(f"{file} is truncated or corrupt: {e}") from e

    def _read_header(self) -> None:
        """Find each tensor. The library checks that they fill the file behind its header
        without gaps."""
        with safe_open(self.file, "np") as opened:
            parts = {name: opened.get_slice(name) for name in opened.offset_keys()}
            self._shapes = {name: tuple(part.get_shape()) for name, part in parts.items()}
            self._dtypes = {name: part.get_dtype() for name, part in parts.items()}
        for name, kind in self._dtypes.items():
            if kind not in DTYPES:
                allowed = ", ".join(DTYPES)
                raise CheckpointError(
                    f"{self.file}: tensor {name} has dtype {kind}; known: {allowed}"
                )
        sizes = {
            name: math.prod(shape) * np.dtype(DTYPES[self._dtypes[name]]).itemsize
            for name, shape in self._shapes.items()
        }
        start = self.file.stat().st_size - sum(sizes.values())
        for name, size in sizes.items():
            self._offsets[name] = start
            start += size

    def __contains__(self, name: str) -> bool:
        return name in self._offsets

    def stored(self, name: str) -> np.ndarray:
        """A tensor as it is stored, bfloat16 as its bits. CheckpointError if it is missing."""
        if name not in self._offsets:
            raise CheckpointError(f"{self.file}: tensor {name} is missing")
        shape = self._shapes[name]
        dtype = DTYPES[self._dtypes[name]]
        flat = np.fromfile(self.file, dtype, math.prod(shape), offset=self._offsets[name])
        return flat.reshape(shape)

    def wide(self, name: str) -> np.ndarray:
        """A tensor in float32: of 8 bits times its scale, of a weight norm folded."""
        if name.endswith(WEIGHT) and f"{name}_v" in self:
            return self._folded(name)
        value = self.stored(name)
        if self._dtypes[name] == BFLOAT16:
            return (value.astype(np.uint32) << 16).view(np.float32)
        if f"{name}_scale" in self:
            scaled: np.ndarray = np.multiply(value, self.stored(f"{name}_scale"), dtype=np.float32)
            return scaled
        return value.astype(np.float32)

    def _folded(self, name: str) -> np.ndarray:
        """g * v / ||v||, with the norm over all dimensions but the first, in the precision of
        `models.weights`."""
        direction = self.stored(f"{name}_v")
        gain = self.stored(f"{name}_g").astype(np.float32).reshape(-1, 1)
        rows = direction.reshape(len(direction), -1)
        folded = np.empty(rows.shape, np.float32)

        step = max(1, CACHED // rows.shape[1])
        for start in range(0, len(rows), step):
            part = slice(start, start + step)
            _fold(rows[part], gain[part], folded[part])
        return folded.reshape(direction.shape)


def _fold(direction: np.ndarray, gain: np.ndarray, out: np.ndarray) -> None:
    """Fold some rows into `out`, rounded to the 11 bits of float16, as the folded weights of
    `models.weights` are.

    Dekker, 1971: numpy's own conversion takes five times as long.
    """
    out[:] = direction
    norm = np.sqrt(np.einsum("ij,ij->i", out, out))
    out *= gain / norm[:, None]
    spread = out * np.float32(2**13 + 1)
    np.subtract(spread, out, out=out)
    np.subtract(spread, out, out=out)
