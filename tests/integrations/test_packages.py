"""The packages in integrations/: what their wheels hold, and that their READMEs show the block that is tested."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests.helpers.markdown import blocks
from tests.helpers.patience import STUCK_S

ROOT = Path(__file__).parents[2]
PACKAGES = {
    "livekit-plugins-stentor": "livekit/plugins/stentor",
    "pipecat-stentor": "pipecat_stentor",
}


@pytest.mark.parametrize("name", PACKAGES)
def test_a_wheel_holds_the_package_and_nothing_else(name: str, tmp_path: Path) -> None:
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    subprocess.run(
        build, cwd=ROOT / "integrations" / name, check=True, capture_output=True, timeout=STUCK_S
    )
    with zipfile.ZipFile(next(tmp_path.glob("*.whl"))) as wheel:
        held = {n for n in wheel.namelist() if ".dist-info/" not in n}
    assert held == {f"{PACKAGES[name]}/{file}" for file in ("__init__.py", "tts.py", "py.typed")}


@pytest.mark.parametrize("name", PACKAGES)
def test_the_readme_shows_a_block_of_the_page_of_clients(name: str) -> None:
    tested = {block.text for block in blocks(ROOT / "docs" / "clients.md", "python")}
    shown = {block.text for block in blocks(ROOT / "integrations" / name / "README.md", "python")}
    assert shown & tested
