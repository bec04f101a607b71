"""What the name of a model means: a local directory, a Hub id, or `dummy:NAME`. Nothing is loaded here.

Torch is not imported, so the command line tells of a mistyped name at once.
"""

from __future__ import annotations

import importlib
import os
import pkgutil
from pathlib import Path
from types import ModuleType

import stentor.models
from stentor.config import path_of
from stentor.errors import CheckpointError, ModelNotFound

DUMMY = "dummy:"
CONFIG = "config.json"
NOT_LOADED = ("*.md", "*.png", "*.jpg", "*.mp4", "*.wav")
"""Files that no family reads. They are not downloaded, nor are the UNUSED_FILES of the families."""


def families() -> list[ModuleType]:
    """The family folders. Each names its ARCHITECTURES, DUMMIES, FILES and UNUSED_FILES. Importing one is cheap."""
    found = pkgutil.iter_modules(stentor.models.__path__)
    return [importlib.import_module(f"stentor.models.{m.name}") for m in found if m.ispkg]


def family_of_files(path: Path) -> ModuleType | None:
    """The family whose checkpoints have a file that this directory has. None where config.json has to say it."""
    return next((f for f in families() if any((path / name).is_file() for name in f.FILES)), None)


def check(model: str | Path | None) -> None:
    """ModelNotFound if no model can have this name. A Hub id is not looked up. None is the embedded voice."""
    name = str(model)
    if model is None:
        return
    if name.startswith(DUMMY):
        dummy_family(name.removeprefix(DUMMY))
        return
    path = path_of("model", model)
    exists = os.path.exists(path)  # not an error where a name is too long
    if exists and not (path / CONFIG).is_file() and family_of_files(path) is None:
        raise ModelNotFound(f"model {name!r}: this directory holds no model: it has no {CONFIG}")
    if not exists and (name.startswith((".", "/", "~")) or name.count("/") != 1):
        raise ModelNotFound(
            f"model {name!r}: no such directory, and not a Hub id of the form owner/name. "
            "Without a model the embedded voice speaks"
        )


def dummy_family(name: str) -> ModuleType:
    """The family folder that makes `dummy:NAME`. ModelNotFound lists the known names."""
    for family in families():
        if name in family.DUMMIES:
            return family
    known = sorted(DUMMY + d for f in families() for d in f.DUMMIES)
    raise ModelNotFound(f"model {DUMMY + name!r} is not known; known: {', '.join(known)}")


def directory(model: str | Path) -> Path:
    """A local directory as it is. Otherwise a Hugging Face Hub id, downloaded or found in the local cache."""
    check(model)
    path, name = path_of("model", model), str(model)
    if os.path.exists(path):
        return path
    from huggingface_hub import errors, snapshot_download

    try:
        unused = [pattern for family in families() for pattern in family.UNUSED_FILES]
        return Path(snapshot_download(name, ignore_patterns=[*NOT_LOADED, *unused]))
    except (errors.RepositoryNotFoundError, errors.HFValidationError) as e:
        raise ModelNotFound(f"model {name!r}: not a local directory, and the Hub has no such model: {e}") from e
    except (errors.HfHubHTTPError, errors.LocalEntryNotFoundError, OSError) as e:
        raise CheckpointError(f"model {name!r}: not a local directory, and the Hub download failed: {e}") from e
