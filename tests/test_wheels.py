"""Every dependency of the core has a wheel for each system that the README names, so that `pip
install stentor` compiles nothing there. pip resolves them for that system. None is run."""

from __future__ import annotations

import json
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
LARGEST = 20
"""Packages of the core with everything that they need."""
GLIBC = ("2_28", "2_27", "2_26", "2_24", "2_17", "2_5")
"""Versions that a wheel for Linux may have been built for. pip has no order of them."""
SYSTEMS = {
    "Linux x86-64": [f"manylinux_{version}_x86_64" for version in GLIBC],
    "Linux aarch64": [f"manylinux_{version}_aarch64" for version in GLIBC],
    "macOS on Apple silicon": ["macosx_14_0_arm64"],
    "Windows x64": ["win_amd64"],
}


def resolved(platforms: list[str], python: str, folder: Path) -> dict[str, str]:
    """Files of the wheels that pip takes for a system, by package."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    report = folder / "report.json"
    options = [
        "--dry-run",
        "--ignore-installed",
        "--only-binary",
        ":all:",
        "--implementation",
        "cp",
    ]
    options += ["--python-version", python, "--target", str(folder)]
    options += [f"--platform={platform}" for platform in platforms]
    command = [sys.executable, "-m", "pip", "install", "--quiet", *options, "--report", str(report)]
    run = subprocess.run(
        [*command, *project["dependencies"]], capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stderr
    installed = json.loads(report.read_text(encoding="utf-8"))["install"]
    return {
        each["metadata"]["name"]: each["download_info"]["url"].rpartition("/")[2]
        for each in installed
    }


@pytest.mark.slow
@pytest.mark.parametrize("python", ["3.11", "3.13"])
@pytest.mark.parametrize("system", SYSTEMS)
def test_all_dependencies_have_wheels(system: str, python: str, tmp_path: Path) -> None:
    wheels = resolved(SYSTEMS[system], python, tmp_path)
    assert "onnxruntime" in wheels
    assert "torch" not in wheels
    assert len(wheels) <= LARGEST
    assert all(file.endswith(".whl") for file in wheels.values())


def test_the_readme_names_these_systems() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert [system for system in SYSTEMS if system not in readme] == []
