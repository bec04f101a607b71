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
"""Numbers that are worked on at once."""


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

    def normed(self, name: str) -> tuple[np.ndarray, np.ndarray]:
        """A weight with a weight norm as it is stored, v, and the factor of each of its rows in
        float32, g / ||v||: their product is the weight."""
        direction = self.stored(f"{name}_v")
        gain = self.stored(f"{name}_g").astype(np.float32).reshape(-1)
        rows = direction.reshape(len(direction), -1)
        squares = [np.square(part, dtype=np.float32).sum(1) for part in _in_parts(rows)]
        return direction, gain / np.sqrt(np.concatenate(squares))

    def _folded(self, name: str) -> np.ndarray:
        """g * v / ||v||, with the norm over all dimensions but the first, in the precision of
        `models.weights`: float16."""
        direction, factors = self.normed(name)
        folded = np.empty(direction.shape, np.float32)
        rows = zip(
            _in_parts(direction.reshape(len(direction), -1)),
            _in_parts(folded.reshape(len(direction), -1)),
            strict=True,
        )
        start = 0
        for part, out in rows:
            np.multiply(
                part, factors[start : start + len(part), None], out=out, casting="same_kind"
            )
            _round_to_float16(out)
            start += len(part)
        return folded


def _in_parts(rows: np.ndarray) -> list[np.ndarray]:
    """Views of some rows each, so few that they stay in the cache between passes."""
    step = max(1, CACHED // rows.shape[1])
    return [rows[start : start + step] for start in range(0, len(rows), step)]


def _round_to_float16(value: np.ndarray) -> None:
    """Round float32 in place to the 11 bits of float16.

    Dekker, 1971: numpy's own conversion takes five times as long.
    """
    spread = value * np.float32(2**13 + 1)
    np.subtract(spread, value, out=value)
    np.subtract(spread, value, out=value)
