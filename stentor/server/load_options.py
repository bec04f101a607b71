"""`--load-options`: options of a model's family, with which a server loads its models. Imports
nothing heavy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from typing import Any

import yaml

from stentor.arguments import shown
from stentor.arguments.untrusted import Unreadable
from stentor.arguments.untrusted_yaml import parse_yaml
from stentor.config import EngineConfig
from stentor.errors import InvalidRequest

ELSEWHERE = {
    "model",
    "name",
    "device",
    "dtype",
    "quantization",
    "lexicon",
    "aligner",
    "lora",
    "loras",
    "max_loras",
    "max_lora_rank",
}
"""Arguments of `TTS` beside those of the engine. A server has flags for them."""


def load_options(values: Sequence[str]) -> dict[str, Any]:
    """Parse `name=value`, the value as in YAML: a number, true or false, or a word. InvalidRequest
    for others."""
    options: dict[str, Any] = {}
    for value in values:
        name, _, text = (part.strip() for part in value.partition("="))
        if not name or not text:
            raise InvalidRequest("load_options", f"must look like name=value, got {value!r}")
        if name in ELSEWHERE or name in {f.name for f in fields(EngineConfig)}:
            raise InvalidRequest(
                "load_options", f"{name!r} is no option of a family; see the flags of stentor serve"
            )
        if name in options:
            raise InvalidRequest("load_options", f"{name!r} is given more than once")
        try:
            options[name] = parse_yaml(text, yaml.SafeLoader)
        except Unreadable as e:
            raise InvalidRequest("load_options", f"the value of {shown(value)} {e}") from None
        if not isinstance(options[name], str | int | float | bool):
            raise InvalidRequest(
                "load_options", f"a value is a number, true, false or a word, got {value!r}"
            )
    return options
