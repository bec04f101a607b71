"""From a model name to a loaded family: which one serves a checkpoint.

A family's own file says so (its FILES), or else config.json.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType

import torch

from stentor.errors import CheckpointError
from stentor.models.base import SpeechModel
from stentor.models.families import Family, families, only, unusable
from stentor.models.model_names import CONFIG, DUMMY, directory, dummy_family, family_of_files
from stentor.models.source import Checkpoint, Source, random_weights
from stentor.models.weights import read_config


def load(
    model: str | Path,
    device: torch.device,
    dtype: torch.dtype | None,
    options: Mapping[str, object],
) -> SpeechModel:
    """Load a model directory, a Hub id or `dummy:NAME` (full released sizes, random weights).

    `dtype` None takes the checkpoint's own. `options` are load-time options of the family (e.g. LoRA weights).
    """
    name = str(model)
    if name.startswith(DUMMY):
        name = name.removeprefix(DUMMY)
        family = dummy_family(name)
        module = _builder(family)
        source: Source = random_weights(Path(str(module.__file__)).parent, name)
    else:
        path = directory(model)
        own = family_of_files(path)
        if own is None or (path / CONFIG).is_file():
            config = read_config(path)
        else:
            config = {}
        family = own or _family_of_config(path, config)
        module = _builder(family)
        source = Checkpoint(path, config)
    loaded: SpeechModel = module.build(source, device, dtype, options)
    spec = loaded.spec
    if spec.family != family.name:
        raise CheckpointError(
            f"family {family.name} of {family.origin}: its spec.family is {spec.family!r}"
        )
    if spec.default_voice is not None and spec.default_voice not in spec.voices:
        raise CheckpointError(
            f"family {family.name}: spec.default_voice {spec.default_voice!r} is not in spec.voices"
        )
    return loaded


def _family_of_config(path: Path, config: Mapping[str, object]) -> Family:
    """The family that serves what config.json names."""
    architecture = config.get("architecture", config.get("model_type"))
    found = only(
        (f for f in families() if architecture in f.architectures), f"architecture {architecture!r}"
    )
    if found is None:
        known = ", ".join(sorted(a for f in families() for a in f.architectures))
        raise CheckpointError(
            f"{path / CONFIG} says architecture {architecture!r}; known: {known}{unusable()}"
        )
    return found


def _builder(family: Family) -> ModuleType:
    """Import the module with a family's `build`. Only a family that is used has its modules imported. CheckpointError
    names the package of one that cannot be."""
    module = f"{family.package}.builder"
    try:
        return importlib.import_module(module)
    except Exception as e:  # whatever the package raises
        raise CheckpointError(
            f"family {family.name} of {family.origin}: {module} cannot be imported: {type(e).__name__}: {e}"
        ) from e
