"""Compiled kernels that come with an image: copied into the caches of Triton and of
`kernels.cuda_cpp` before a GPU is used.

The environment variable STENTOR_KERNELS names a folder with what `stentor compile` left in
TRITON_CACHE_DIR (`triton`) and XDG_CACHE_HOME (`stentor/cubins`). Triton and NVRTC look kernels up
by hashes of their sources, versions and options, so kernels of another version are never loaded.

Triton lists the files of a kernel by absolute paths, and compiles it again if they do not exist.
The copies list their own.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path

from stentor.kernels.cuda_cpp.launch import CACHE

VARIABLE = "STENTOR_KERNELS"


def install_shipped_kernels() -> None:
    """Copy the kernels that the caches lack. A cache that cannot be written stays as it is."""
    folder = os.environ.get(VARIABLE)
    if not folder:
        return
    triton = Path(os.environ.get("TRITON_CACHE_DIR") or "~/.triton/cache").expanduser()
    _copy_missing(Path(folder) / "triton", triton)
    _copy_missing(Path(folder) / "stentor" / "cubins", CACHE.expanduser())


def _copy_missing(source: Path, cache: Path) -> None:
    if not source.is_dir():
        return
    with suppress(OSError):
        cache.mkdir(parents=True, exist_ok=True)
        missing = [entry for entry in source.iterdir() if not (cache / entry.name).exists()]
        if missing:
            with tempfile.TemporaryDirectory(dir=cache) as partial:
                for entry in missing:
                    _copy_whole(entry, Path(partial) / entry.name, cache / entry.name)


def _copy_whole(entry: Path, partial: Path, target: Path) -> None:
    """Copy a file or folder, so that other processes see all of it or nothing."""
    if entry.is_dir():
        shutil.copytree(entry, partial)
        for group in partial.glob("__grp__*.json"):
            _list_files_of(target, group)
    else:
        shutil.copyfile(entry, partial)
    with suppress(OSError):  # another process was faster
        os.replace(partial, target)


def _list_files_of(folder: Path, group: Path) -> None:
    contents = json.loads(group.read_text(encoding="utf-8"))
    names = contents.get("child_paths", {})
    contents["child_paths"] = {name: str(folder / name) for name in names}
    group.write_text(json.dumps(contents), encoding="utf-8")
