"""`--lora-modules`: adapters that a server loads with its models. Imports nothing heavy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from stentor.arguments import shown
from stentor.arguments.untrusted import Unreadable, parse_json
from stentor.errors import InvalidRequest


@dataclass(frozen=True)
class LoraModule:
    """An adapter by name, and the name of its model. None: the first."""

    name: str
    path: str
    base_model_name: str | None = None


def lora_modules(values: Sequence[str]) -> list[LoraModule]:
    """Parse `name=path`, or JSON objects with name, path and base_model_name, as vLLM takes them.

    InvalidRequest if one is neither, or two have a name.
    """
    modules = [_module(value) for value in values]
    names = [m.name for m in modules]
    for name in names:
        if names.count(name) > 1:
            raise InvalidRequest("lora_modules", f"{name!r} is given more than once")
    return modules


def _module(value: str) -> LoraModule:
    wrong = InvalidRequest("lora_modules", f"must look like name=path, got {value!r}")
    if not value.lstrip().startswith("{"):
        name, _, path = value.partition("=")
        fields = {"name": name.strip(), "path": path.strip()}
    else:
        try:
            fields = parse_json(value)
        except Unreadable as e:
            raise InvalidRequest("lora_modules", f"{shown(value)} {e}") from None
    allowed = {"name", "path", "base_model_name"}
    strings = all(isinstance(v, str) and v for v in fields.values())
    if not fields.keys() <= allowed or not {"name", "path"} <= fields.keys() or not strings:
        raise wrong
    return LoraModule(**fields)
