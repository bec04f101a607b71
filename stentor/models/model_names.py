"""Names of models: a local directory, a Hub id, or `dummy:NAME`. Nothing is loaded here.

Torch is not imported, so the command line rejects a mistyped name at once.
"""

from __future__ import annotations

import importlib
import os
from difflib import get_close_matches
from pathlib import Path

from stentor.arguments.untrusted import Unreadable, parse_json
from stentor.config import path_of
from stentor.errors import ModelNotFound
from stentor.models.families import Family, families, only, unusable

DUMMY = "dummy:"
DEFAULT_VOICE = Path(__file__).parents[1] / "assets" / "voice"
"""The built-in voice, which speaks where no model is named."""
CONFIG = "config.json"
WEIGHTS = "model.safetensors"
INDEX = f"{WEIGHTS}.index.json"
GRAPHS = Path("graphs", "graphs.json")
"""The table of a checkpoint's graphs for onnxruntime, which few have."""
MAX_HEADER = 100_000_000
"""Bytes of the header of a safetensors file at most, as the format has it."""


def family_of_files(path: Path) -> Family | None:
    """The family whose checkpoints have a file that this directory has, or where there is no
    config.json a tensor. None where config.json decides."""
    family = only(
        (f for f in families() if any((path / name).is_file() for name in f.files)), str(path)
    )
    if family is not None or (path / CONFIG).is_file():
        return family
    names = _tensor_names(path / WEIGHTS)
    return only((f for f in families() if not names.isdisjoint(f.tensors)), str(path))


def _tensor_names(file: Path) -> set[str]:
    """Names in a safetensors file, which begins with the length of its header. None of a file that
    is no such."""
    try:
        with file.open("rb") as opened:
            size = int.from_bytes(opened.read(8), "little")
            if size <= MAX_HEADER:
                return set(parse_json(opened.read(size)))
            return set()
    except (OSError, Unreadable, TypeError):
        return set()


def local(model: str | Path) -> Path:
    """The path that a name means: itself, or where a family keeps the checkpoint of its short name.
    ModelNotFound names the command that installs one."""
    path = path_of("model", model)
    name = str(model)
    if not name or os.path.exists(path):
        return path
    family = only((f for f in families() if f.short_name == name), name)
    if family is None:
        return path
    installed: Path = importlib.import_module(f"{family.package}.install").folder()
    return installed


def check(model: str | Path | None) -> None:
    """ModelNotFound if no model can have this name. A Hub id is not looked up. None is the built-in
    voice."""
    name = str(model)
    if model is None:
        return
    if name.startswith(DUMMY):
        dummy_family(name.removeprefix(DUMMY))
        return
    path = local(model)
    exists = os.path.exists(path)  # not an error where a name is too long
    if exists and not (path / CONFIG).is_file() and family_of_files(path) is None:
        raise ModelNotFound(f"model {name!r}: this directory holds no model: it has no {CONFIG}")
    if not exists and (name.startswith((".", "/", "~")) or not _is_hub_id(name)):
        raise ModelNotFound(
            f"model {name!r}: no such directory, and not a Hub id of the form owner/name. "
            f"{did_you_mean(name)}`stentor models` lists all; without a model the built-in voice speaks"
        )


def hub_parts(name: str) -> tuple[str, str]:
    """The repository owner/name of a Hub id, and the folder in it that the id goes on with, or
    ""."""
    parts = name.split("/")
    return "/".join(parts[:2]), "/".join(parts[2:])


def folder_of(repository: str) -> str:
    """The folder of the checkpoint that the bare id of a repository with several means. "": it has
    one."""
    family = only((f for f in families() if repository in f.folders), repository)
    if family is None:
        return ""
    return family.folders[repository]


def _is_hub_id(name: str) -> bool:
    """Whether a name may be that of a repository, or of a folder in one that holds several
    checkpoints."""
    repository, folder = hub_parts(name)
    if not folder:
        return name.count("/") == 1
    return folder_of(repository) != "" and not {"", ".", ".."} & set(folder.split("/"))


def did_you_mean(name: str) -> str:
    """Return a question that names the release to which a name is near, else ""."""
    ids: dict[str, str] = {}
    for family in families():
        for id in family.releases:
            for alias in (id, id.partition("/")[2], family.name):
                ids.setdefault(_plain(alias), id)
    near = get_close_matches(_plain(name), ids, 1)
    if not near:
        near = [alias for alias in ids if _plain(name) and alias.startswith(_plain(name))][:1]
    if not near or ids[near[0]] == name:
        return ""
    return f"Did you mean {ids[near[0]]}? "


def _plain(name: str) -> str:
    return "".join(c for c in name.lower() if c.isalnum())


def graphs_of(model: str | Path) -> Path | None:
    """The directory of a checkpoint with graphs for onnxruntime. None: the model is not local, or
    has none."""
    path = local(model)
    if os.path.isfile(path / GRAPHS):  # False for a name that is too long for a path
        return path
    if has_released_graph(path):
        return path
    return None


def has_released_graph(path: Path) -> bool:
    """Whether onnxruntime runs a file of this directory as it was released."""
    if not os.path.isdir(path):
        return False
    family = family_of_files(path)
    return family is not None and family.graph != "" and (path / family.graph).is_file()


def dummy_family(name: str) -> Family:
    """The family that makes `dummy:NAME`. ModelNotFound lists the known names."""
    family = only((f for f in families() if name in f.dummies), DUMMY + name)
    if family is None:
        names = sorted(DUMMY + d for f in families() for d in f.dummies)
        raise ModelNotFound(
            f"model {DUMMY + name!r} is not known; known: {', '.join(names)}{unusable()}"
        )
    return family
