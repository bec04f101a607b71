"""From a model name to a loaded family: which folder under stentor/models serves a checkpoint.

A family's own file says so (its FILES), or else config.json.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType

import torch

from stentor.errors import CheckpointError
from stentor.model_names import CONFIG, DUMMY, directory, dummy_family, families, family_of_files
from stentor.models.base import SpeechModel
from stentor.models.weights import read_config


def load(
    model: str | Path, device: torch.device, dtype: torch.dtype | None, options: Mapping[str, object]
) -> SpeechModel:
    """Load a model directory, a Hub id or `dummy:NAME` (full released sizes, random weights).

    `dtype` None takes the checkpoint's own. `options` are load-time options of the family (e.g. LoRA weights).
    """
    name = str(model)
    if name.startswith(DUMMY):
        name = name.removeprefix(DUMMY)
        made: SpeechModel = _module(dummy_family(name), "dummy").make(name, device, dtype, options)
        return made
    path = directory(model)
    family = family_of_files(path)
    config = read_config(path) if family is None or (path / CONFIG).is_file() else {}
    family = family or _family_of_config(path, config)
    loaded: SpeechModel = _module(family, "loader").load(path, config, device, dtype, options)
    return loaded


def _family_of_config(path: Path, config: Mapping[str, object]) -> ModuleType:
    """The family that serves what config.json names."""
    architecture = config.get("architecture", config.get("model_type"))
    for family in families():
        if architecture in family.ARCHITECTURES:
            return family
    known = sorted(a for f in families() for a in f.ARCHITECTURES)
    raise CheckpointError(f"{path / CONFIG} says architecture {architecture!r}; known: {', '.join(known)}")


def _module(family: ModuleType, name: str) -> ModuleType:
    """`loader` (`load`) or `dummy` (`make`) of a family. Only a family that is used has its modules imported."""
    return importlib.import_module(f"{family.__name__}.{name}")
