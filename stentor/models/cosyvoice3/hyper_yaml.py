"""HyperPyYAML files as plain data. Nothing in them is executed: a tag that would make an object gives its arguments."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

import yaml

from stentor.errors import CheckpointError
from stentor.untrusted import Unreadable, parse_yaml, read_bytes

MAX_BYTES = 1 << 20
_NAME = re.compile(r"<(\w+)>")


class _Reference(str):
    """The text of a `!ref`: one top-level key in angle brackets, or a product of several."""


class _Loader(yaml.SafeLoader):
    """Safe YAML with HyperPyYAML's tags (`!new:`, `!name:`, `!apply:`, `!ref`) read as data."""


def _plain(loader: _Loader, suffix: str, node: yaml.Node) -> Any:
    if isinstance(node, yaml.MappingNode):
        return loader.construct_mapping(node, deep=True)
    if isinstance(node, yaml.SequenceNode):
        return loader.construct_sequence(node, deep=True)
    assert isinstance(node, yaml.ScalarNode)
    value = loader.construct_scalar(node)
    return _Reference(value) if suffix == "ref" else value


_Loader.add_multi_constructor("!", _plain)


def read(file: Path) -> dict[str, Any]:
    """The file's top-level mapping, with references replaced. CheckpointError says what is wrong."""
    try:
        data = parse_yaml(read_bytes(file, MAX_BYTES), _Loader)
    except Unreadable as e:
        raise CheckpointError(f"{file} {e}") from None
    if not isinstance(data, dict):
        raise CheckpointError(f"{file} must hold a mapping, got {type(data).__name__}")
    return {key: _resolved(value, data) for key, value in data.items()}


def _resolved(value: Any, top: dict[str, Any]) -> Any:
    """`value` with its references to keys of `top` replaced."""
    if isinstance(value, _Reference):
        return _referred(value, top)
    if isinstance(value, dict):
        return {k: _resolved(v, top) for k, v in value.items()}
    return [_resolved(v, top) for v in value] if isinstance(value, list) else value


def _referred(reference: _Reference, top: dict[str, Any]) -> Any:
    """One key's value, a product of numbers, or the text where it is neither."""
    factors = [part.strip() for part in reference.split("*")]
    values = [top.get(m.group(1)) if (m := _NAME.fullmatch(f)) else None for f in factors]
    if len(values) == 1:
        return None if isinstance(values[0], _Reference) else values[0]
    if all(isinstance(v, int | float) and not isinstance(v, bool) for v in values):
        return math.prod(v for v in values if isinstance(v, int | float))
    return str(reference)
