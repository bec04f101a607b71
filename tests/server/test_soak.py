"""The soak of benchmarks/server/soak.py, short."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.helpers.patience import STUCK_S

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "server" / "soak.py"


@pytest.mark.slow
def test_a_crowd_of_good_and_bad_clients_leaves_nothing_behind(tmp_path: Path) -> None:
    out = tmp_path / "soak.json"
    words = [sys.executable, str(SCRIPT), "--clients", "16", "--seconds", "3", "--output", str(out)]
    run = subprocess.run(words, capture_output=True, text=True, timeout=2 * STUCK_S, check=False)
    assert run.returncode == 0, run.stdout + run.stderr
    found = json.loads(out.read_text())
    assert found["problems"] == []
    right = {k: n for k, n in found["counts"].items() if k.endswith(": right")}
    assert sum(right.values()) > 10
    assert found["errors_logged"] == {}
