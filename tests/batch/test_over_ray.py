"""`stentor batch --replicas` with a Ray that is started here. Where Ray is not installed, nothing here runs."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.batch.runs import SOME_FAILED, audio, check, manifest, speak
from tests.helpers.server_live import decoded

pytest.importorskip("ray")
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("default")]  # Ray's own warnings

ITEMS = [{"id": f"i{n}", "text": f"text {n}"} for n in range(12)] + [{"id": "bad", "text": "x", "cfg": 99}]


def test_two_replicas_speak_what_one_process_speaks(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "one").mkdir()
    (tmp_path / "two").mkdir()
    assert speak(tmp_path / "one", ITEMS) == SOME_FAILED
    assert speak(tmp_path / "two", ITEMS[:6] + ITEMS[12:], "--replicas", "2", "--shards", "4") == SOME_FAILED
    assert speak(tmp_path / "two", ITEMS, "--resume", "--replicas", "2", "--shards", "4") == SOME_FAILED
    assert check(tmp_path / "two/out") == check(tmp_path / "one/out") == [f"i{n}" for n in range(12)]
    assert manifest(tmp_path / "two/out")[-1]["error"] == {"field": "cfg", "message": "must be from 0 to 10, got 99"}
    found, wanted = audio(tmp_path / "two/out"), audio(tmp_path / "one/out")
    for id, data in wanted.items():
        assert np.abs(decoded(data)[0] - decoded(found[id])[0]).max() <= 1.01 / 32768
    capfd.readouterr()
