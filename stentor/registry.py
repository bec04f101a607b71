"""From a model name to a loaded family: config.json says which folder under stentor/models serves it."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType

import torch

import stentor.models
from stentor.errors import CheckpointError
from stentor.models.base import SpeechModel
from stentor.models.load_options import check_load_options
from stentor.models.weights import read_config

DUMMY = "dummy:"


def families() -> list[ModuleType]:
    """The family folders. Each names its ARCHITECTURES and DUMMIES, and importing one is cheap."""
    found = pkgutil.iter_modules(stentor.models.__path__)
    return [importlib.import_module(f"stentor.models.{m.name}") for m in found if m.ispkg]


def resolve(model: str | Path) -> Path:
    """A local directory as it is. Otherwise a Hugging Face Hub id, downloaded or found in the local cache."""
    path = Path(model).expanduser()
    if path.exists():
        return path
    name = str(model)
    if name.startswith((".", "/", "~")) or name.count("/") != 1:
        raise CheckpointError(f"model {name!r}: no such directory, and not a Hub id of the form owner/name")
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    try:
        return Path(snapshot_download(name, ignore_patterns=["*.md", "*.png", "*.jpg", "*.mp4", "*.wav"]))
    except (HfHubHTTPError, HFValidationError, LocalEntryNotFoundError, OSError) as e:
        raise CheckpointError(f"model {name!r}: not a local directory, and the Hub download failed: {e}") from e


def load(
    model: str | Path, device: torch.device, dtype: torch.dtype | None, options: Mapping[str, object]
) -> SpeechModel:
    """Load a model directory, a Hub id or `dummy:NAME` (full released sizes, random weights).

    `dtype` None takes the checkpoint's own. `options` are load-time options of the family (e.g. LoRA weights).
    """
    name = str(model)
    if name.startswith(DUMMY):
        check_load_options(options, ())
        return _dummy(name.removeprefix(DUMMY), device, dtype)
    path = resolve(model)
    config = read_config(path)
    architecture = config.get("architecture", config.get("model_type"))
    for family in families():
        if architecture in family.ARCHITECTURES:
            loaded: SpeechModel = _module(family, "loader").load(path, config, device, dtype, options)
            return loaded
    known = sorted(a for f in families() for a in f.ARCHITECTURES)
    raise CheckpointError(f"{path / 'config.json'} says architecture {architecture!r}; known: {', '.join(known)}")


def _module(family: ModuleType, name: str) -> ModuleType:
    """`loader` (`load`) or `dummy` (`make`) of a family. Only a family that is used has its modules imported."""
    return importlib.import_module(f"{family.__name__}.{name}")


def _dummy(name: str, device: torch.device, dtype: torch.dtype | None) -> SpeechModel:
    for family in families():
        if name in family.DUMMIES:
            model: SpeechModel = _module(family, "dummy").make(name, device, dtype)
            return model
    known = sorted(DUMMY + d for f in families() for d in f.DUMMIES)
    raise CheckpointError(f"model {DUMMY + name!r} is not known; known: {', '.join(known)}")
