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


class TensorFile:
    """The tensors of one file. They are mapped, and read when they are used."""

    def __init__(self, file: Path) -> None:
        """Raises CheckpointError for a file that is missing, truncated, or has a dtype that is not
        known."""
        if not file.is_file():
            raise CheckpointError(f"{file} does not exist")
        self.file = file
        self._dtypes: dict[str, str] = {}
        self._arrays: dict[str, np.ndarray] = {}
        try:
            self._map()
        except (SafetensorError, OSError, ValueError) as e:
            raise CheckpointError(f"{file} is truncated or corrupt: {e}") from e

    def _map(self) -> None:
        """Make a view of each tensor. The library checks that they fill the file behind its header
        without gaps."""
        with safe_open(self.file, "np") as opened:
            parts = {name: opened.get_slice(name) for name in opened.offset_keys()}
            shapes = {name: part.get_shape() for name, part in parts.items()}
            self._dtypes = {name: part.get_dtype() for name, part in parts.items()}
        for name, kind in self._dtypes.items():
            if kind not in DTYPES:
                allowed = ", ".join(DTYPES)
                raise CheckpointError(
                    f"{self.file}: tensor {name} has dtype {kind}; known: {allowed}"
                )
        sizes = {
            name: math.prod(shape) * np.dtype(DTYPES[self._dtypes[name]]).itemsize
            for name, shape in shapes.items()
        }
        data = np.memmap(self.file, np.uint8, "r")
        start = len(data) - sum(sizes.values())
        for name, size in sizes.items():
            flat = data[start : start + size]
            self._arrays[name] = flat.view(DTYPES[self._dtypes[name]]).reshape(shapes[name])
            start += size

    def __contains__(self, name: str) -> bool:
        return name in self._arrays

    def stored(self, name: str) -> np.ndarray:
        """A tensor as it is stored, bfloat16 as its bits. CheckpointError if it is missing."""
        if name not in self._arrays:
            raise CheckpointError(f"{self.file}: tensor {name} is missing")
        return self._arrays[name]

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
        gain = self.stored(f"{name}_g")
        wide = direction.astype(np.float32)
        norm = np.linalg.norm(wide.reshape(len(wide), -1), axis=1).reshape(gain.shape)
        wide *= gain.astype(np.float32)
        wide /= norm
        rounded = wide.astype(gain.dtype)
        return rounded.astype(np.float32)
