"""Parts of an ONNX file, cut on the bytes of its protocol buffer: the package `onnx` is not needed.

A message is a series of fields, each a key and a value. Of a model only the field `graph` is
written anew, with the nodes and initializers that the part needs. All else is copied.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from stentor.errors import CheckpointError

GRAPH = 7  # field of ModelProto
NODE, INITIALIZER, INPUT, OUTPUT = 1, 5, 11, 12  # fields of GraphProto
NODE_INPUT, NODE_OUTPUT = 1, 2  # fields of NodeProto
INITIALIZER_NAME = 8  # field of TensorProto
VALUE_NAME, VALUE_TYPE = 1, 2  # fields of ValueInfoProto
TENSOR_TYPE, ELEMENT_TYPE = 1, 1  # fields of TypeProto and of TypeProto.Tensor

FLOAT = 1
INT64 = 7
"""Types of elements (TensorProto.DataType)."""

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_FIXED = {_FIXED64: 8, _FIXED32: 4}


class Field(NamedTuple):
    """A field of a message. data: its bytes with the key. body: those of the value."""

    number: int
    data: memoryview
    body: memoryview


class _Node(NamedTuple):
    """A node: its bytes with the key, and the values that it reads and makes."""

    data: memoryview
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


class OnnxFile:
    """A model, read once, of which parts are cut."""

    def __init__(self, data: memoryview) -> None:
        """CheckpointError if the file is no model."""
        try:
            model = list(_fields(data))
            graph = list(_fields(next(f.body for f in model if f.number == GRAPH)))
            self._nodes = [_node(field) for field in graph if field.number == NODE]
            self._stored = {
                _name(field, INITIALIZER_NAME): field.data
                for field in graph
                if field.number == INITIALIZER
            }
        except (ValueError, StopIteration) as e:
            raise CheckpointError(f"the file is no ONNX model: {e}") from None
        self._others = [field.data for field in model if field.number != GRAPH]

    def part(self, inputs: Mapping[str, int], outputs: Sequence[str]) -> bytes:
        """Cut the part that makes `outputs` from `inputs`.

        inputs: names of values, each with the type of its elements. CheckpointError if the part
        needs another input.
        """
        needed, values = _needed(self._nodes, inputs, outputs)
        computed = {name for node in needed for name in node.outputs}
        missing = values - self._stored.keys() - computed - inputs.keys() - {""}
        if missing:
            raise CheckpointError(f"the ONNX model has no value {min(missing)!r}")

        pieces: list[bytes | memoryview] = [node.data for node in needed]
        pieces += [data for name, data in self._stored.items() if name in values]
        pieces += [_message(INPUT, _value(name, kind)) for name, kind in inputs.items()]
        pieces += [_message(OUTPUT, _value(name)) for name in outputs]
        head = _head(GRAPH, sum(map(len, pieces)))
        return b"".join([*self._others, head, *pieces])


def _needed(
    nodes: Sequence[_Node], inputs: Mapping[str, int], outputs: Sequence[str]
) -> tuple[list[_Node], set[str]]:
    """The nodes that make the outputs, in the file's order, and the values that they read."""
    makers = {name: at for at, node in enumerate(nodes) for name in node.outputs if name}
    values = set(outputs)
    waiting = list(outputs)
    numbers: set[int] = set()
    while waiting:
        name = waiting.pop()
        maker = makers.get(name)
        if name in inputs or maker is None or maker in numbers:
            continue
        numbers.add(maker)
        values.update(nodes[maker].inputs)
        waiting += nodes[maker].inputs
    return [nodes[at] for at in sorted(numbers)], values


def _node(field: Field) -> _Node:
    parts = list(_fields(field.body))
    read = tuple(str(p.body, "utf-8") for p in parts if p.number == NODE_INPUT)
    written = tuple(str(p.body, "utf-8") for p in parts if p.number == NODE_OUTPUT)
    return _Node(field.data, read, written)


def _name(field: Field, number: int) -> str:
    return next(str(f.body, "utf-8") for f in _fields(field.body) if f.number == number)


def _fields(data: memoryview) -> Iterator[Field]:
    """The fields of a message. ValueError if it is none."""
    at = 0
    while at < len(data):
        start = at
        key, at = _varint(data, at)
        number = key >> 3
        kind = key & 7
        if kind == _VARINT:
            begin = at
            _, at = _varint(data, at)
        elif kind == _BYTES:
            size, begin = _varint(data, at)
            at = begin + size
        elif kind in _FIXED:
            begin = at
            at += _FIXED[kind]
        else:
            raise ValueError(f"a field of the unknown kind {kind}")
        if at > len(data):
            raise ValueError("it is truncated")
        yield Field(number, data[start:at], data[begin:at])


def _varint(data: memoryview, at: int) -> tuple[int, int]:
    """A number in groups of seven bits, and where it ends."""
    value = 0
    for shift in range(0, 70, 7):
        if at >= len(data):
            raise ValueError("it is truncated")
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
    raise ValueError("a number of more than 64 bits")


def _encoded(value: int) -> bytes:
    groups = bytearray()
    while value >= 0x80:
        groups.append(value & 0x7F | 0x80)
        value >>= 7
    groups.append(value)
    return bytes(groups)


def _message(number: int, body: bytes) -> bytes:
    return _head(number, len(body)) + body


def _head(number: int, size: int) -> bytes:
    """Key and length in front of the value of a field."""
    return _encoded(number << 3 | _BYTES) + _encoded(size)


def _value(name: str, kind: int | None = None) -> bytes:
    """A ValueInfoProto, with the type of its elements where that is known. Its shape is open."""
    value = _message(VALUE_NAME, name.encode())
    if kind is None:
        return value
    element = _encoded(ELEMENT_TYPE << 3 | _VARINT) + _encoded(kind)
    return value + _message(VALUE_TYPE, _message(TENSOR_TYPE, element))
