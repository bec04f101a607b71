"""Configuration files of checkpoints and of releases, as dicts."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from stentor.arguments import untrusted
from stentor.arguments.untrusted import Unreadable
from stentor.errors import CheckpointError
from stentor.models.config_reader import ConfigReader

RELEASED = "released.json"
"""Configurations of released checkpoints, in the folder of a family that describes them."""


def read_json(file: Path) -> dict[str, Any]:
    """A file that holds one JSON object. CheckpointError names the fault."""
    try:
        data = untrusted.read_json(file)
    except Unreadable as e:
        raise CheckpointError(f"{file} {e}") from None
    if not isinstance(data, dict):
        raise CheckpointError(f"{file} must hold a JSON object, got {type(data).__name__}")
    return data


def read_release(folder: Path, name: str) -> dict[str, Any]:
    """Read a release of released.json in a family's folder, with the one that it is `like` under
    it."""
    data = ConfigReader(read_json(folder / RELEASED), str(folder / RELEASED)).table(name)
    if "like" in data:
        return _changed(read_release(folder, data["like"]), data)
    return data


def _changed(data: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """`data` with these values in place of its own. Objects in both are changed key by key."""
    both = {
        key
        for key, value in changes.items()
        if isinstance(value, dict) and isinstance(data.get(key), dict)
    }
    return {**data, **changes, **{key: _changed(data[key], changes[key]) for key in both}}


def read_config(path: Path) -> dict[str, Any]:
    """config.json of a model directory as a dict. CheckpointError names what is wrong."""
    file = path / "config.json"
    if not path.is_dir():
        raise CheckpointError(f"model directory {path} does not exist")
    if not file.is_file():
        raise CheckpointError(f"{path} has no config.json: not a model directory")
    return read_json(file)
