"""Building an image without Docker: what pip in it is told, and what a machine that cannot build says."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "scripts" / "image_check.py"


@pytest.fixture(scope="module")
def check() -> ModuleType:
    spec = importlib.util.spec_from_file_location("image_check", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_pip_in_the_image_looks_where_that_of_this_machine_does(check: ModuleType, tmp_path: Path):
    (tmp_path / "mirror" / "simple").mkdir(parents=True)
    listed = (
        f":env:.find-links='{tmp_path}'\n"
        f"global.extra-index-url='file://{tmp_path}/mirror/simple https://example.org/simple'\n"
        "global.timeout='60'\n"
    )
    settings = check.pip_settings(listed)
    assert settings == {
        "extra-index-url": f"file://{tmp_path}/mirror/simple https://example.org/simple",
        "find-links": str(tmp_path),
    }
    assert check.folders(settings) == [str(tmp_path), str(tmp_path / "mirror")]
    assert check.pip_settings("") == {}


def test_what_runs_in_the_image_is_shell_whatever_its_words_hold(check: ModuleType):
    health = [
        "python",
        "-c",
        "import urllib.request; urllib.request.urlopen('http://127.0.0.1:8000/ready')",
    ]
    script = check._script(
        "/root", "10001:10001", ["PATH=/bin", "A=b c"], ["stentor", "serve"], health
    )
    subprocess.run(["bash", "-n", "-c", script], check=True)
    assert "remount,bind,ro /root" in script
    assert "--userspec=10001:10001" in script


def test_a_machine_that_cannot_build_says_why_and_finds_nothing_wrong(tmp_path: Path):
    done = subprocess.run(
        [sys.executable, str(SCRIPT)],
        env={"PATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0
    assert "image: skipped after 0 s: " in done.stdout
