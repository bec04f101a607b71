"""From a model name to a loaded family: which one serves a checkpoint.

A family's own file decides (its FILES), or else config.json.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from stentor.errors import CheckpointError
from stentor.models.config_files import read_config
from stentor.models.families import Family, families, only, unusable
from stentor.models.hub import directory
from stentor.models.model_names import CONFIG, DUMMY, dummy_family, family_of_files

if TYPE_CHECKING:
    import torch

    from stentor.models.base import HostModel, ModelSpec, SpeechModel


def load(
    model: str | Path,
    device: torch.device,
    dtype: torch.dtype | None,
    options: Mapping[str, object],
) -> SpeechModel:
    """Load a model directory, a Hub id or `dummy:NAME` (full released sizes, random weights), with
    torch.

    `dtype` None takes the checkpoint's own. `options` are load-time options of the family (e.g.
    LoRA weights).
    """
    from stentor.models.source import Checkpoint, Source, random_weights

    name = str(model)
    if name.startswith(DUMMY):
        name = name.removeprefix(DUMMY)
        family = dummy_family(name)
        module = _module(family, "builder")
        source: Source = random_weights(Path(str(module.__file__)).parent, name)
    else:
        path = directory(model)
        family, config = _family(path)
        module = _module(family, "builder")
        source = Checkpoint(path, config)
    loaded: SpeechModel = module.build(source, device, dtype, options)
    _check_spec(family, loaded.spec)
    return loaded


def load_graphs(path: Path, eight_bits: bool, options: Mapping[str, object]) -> HostModel:
    """Load a model directory that has graphs, with onnxruntime. eight_bits: products take weights
    of 8 bits."""
    family, _ = _family(path)
    loaded: HostModel = _module(family, "graphs").build(path, eight_bits, options)
    _check_spec(family, loaded.spec)
    return loaded


def _family(path: Path) -> tuple[Family, Mapping[str, object]]:
    """The family of a model directory, and its config.json, empty where there is none."""
    by_files = family_of_files(path)
    config: Mapping[str, object] = {}
    if by_files is None or (path / CONFIG).is_file():
        config = read_config(path)
    return by_files or _family_of_config(path, config), config


def _check_spec(family: Family, spec: ModelSpec) -> None:
    """Raises CheckpointError, naming fields of a spec that contradict each other."""
    if spec.family != family.name:
        raise CheckpointError(
            f"family {family.name} of {family.origin}: its spec.family is {spec.family!r}"
        )
    if spec.default_voice is not None and spec.default_voice not in spec.voices:
        raise CheckpointError(
            f"family {family.name}: spec.default_voice {spec.default_voice!r} is not in spec.voices"
        )


def _family_of_config(path: Path, config: Mapping[str, object]) -> Family:
    """The family that serves what config.json names."""
    architecture = config.get("architecture", config.get("model_type"))
    family = only(
        (f for f in families() if architecture in f.architectures), f"architecture {architecture!r}"
    )
    if family is None:
        names = ", ".join(sorted(a for f in families() for a in f.architectures))
        raise CheckpointError(
            f"{path / CONFIG} says architecture {architecture!r}; known: {names}{unusable()}"
        )
    return family


def _module(family: Family, name: str) -> ModuleType:
    """Import a module of a family: `builder` or `graphs`. Only a family that is used has its
    modules imported. CheckpointError names the package of one that cannot be."""
    module = f"{family.package}.{name}"
    try:
        return importlib.import_module(module)
    except Exception as e:  # whatever the package raises
        raise CheckpointError(
            f"family {family.name} of {family.origin}: {module} cannot be imported: {type(e).__name__}: {e}"
        ) from e
