"""onnxruntime reports to nobody: what speaks on a laptop leaves no identifier of it and sends nothing."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.helpers.child import ROOT


def files_left_by(program: str, home: Path, **variables: str) -> list[str]:
    """Names of files that a Python program leaves in an empty home."""
    kept = {name: os.environ[name] for name in ("PATH", "LD_LIBRARY_PATH") if name in os.environ}
    environment = {**kept, "HOME": str(home), "PYTHONPATH": str(ROOT), **variables}
    subprocess.run([sys.executable, "-c", program], cwd=home, env=environment, check=True)
    return sorted(file.name for file in home.rglob("*") if file.is_file())


def test_the_voice_leaves_no_identifier_of_the_machine(tmp_path: Path) -> None:
    program = "import stentor; stentor.TTS().generate('Hello.', seed=1)"
    assert files_left_by(program, tmp_path) == []


@pytest.mark.parametrize("module", ["stentor.doctor", "stentor.graphs.sessions"])
def test_what_imports_it_leaves_none(module: str, tmp_path: Path) -> None:
    assert files_left_by(f"import {module}", tmp_path) == []


def test_a_user_who_set_the_variable_keeps_the_value(tmp_path: Path) -> None:
    program = """
import os
import stentor.graphs.sessions
assert os.environ["ORT_DISABLE_TELEMETRY"] == "0"
"""
    files_left_by(program, tmp_path, ORT_DISABLE_TELEMETRY="0", ORT_RUNNING_UNIT_TESTS="1")


def test_only_one_module_imports_onnxruntime() -> None:
    importing = [
        file.relative_to(ROOT).as_posix()
        for folder in ("stentor", "tools")
        for file in (ROOT / folder).rglob("*.py")
        if any(
            line.split()[:2] in (["import", "onnxruntime"], ["from", "onnxruntime"])
            for line in file.read_text().splitlines()
        )
    ]
    assert importing == ["stentor/host/onnx_runtime.py"]
