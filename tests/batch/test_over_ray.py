"""`stentor batch --replicas` with a Ray that is started here. Where Ray is not installed, nothing here runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.replicas.apart import apart
from tests.batch.runs import SOME_FAILED, audio, check, command, manifest, speak
from tests.helpers.child import python
from tests.helpers.replicas import PATIENT
from tests.helpers.server_live import decoded

pytest.importorskip("ray")
pytestmark = pytest.mark.slow

ITEMS = [{"id": f"i{n}", "text": f"text {n}"} for n in range(12)] + [
    {"id": "bad", "text": "x", "cfg": 99}
]


def test_two_replicas_speak_what_one_process_speaks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ray is started by processes of their own, as by a user. This one has an engine, and threads of torch."""
    one, two = tmp_path / "one", tmp_path / "two"
    one.mkdir()
    two.mkdir()
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    with apart() as place:

        def over_ray(items: list[dict[str, Any]], *flags: str) -> None:
            words = command(two, items, "--replicas", "2", "--shards", "4", *flags)
            done = python("-m", "stentor", *words, **(place.environment | PATIENT))
            assert done.returncode == SOME_FAILED, done.stdout + done.stderr + place.logs()

        over_ray(ITEMS[:6] + ITEMS[12:])
        over_ray(ITEMS, "--resume")
    assert speak(one, ITEMS) == SOME_FAILED
    assert check(two / "out") == check(one / "out") == [f"i{n}" for n in range(12)]
    assert manifest(two / "out")[-1]["error"] == {
        "field": "cfg",
        "message": "must be from 0 to 10, got 99",
    }
    found, wanted = audio(two / "out"), audio(one / "out")
    for id, data in wanted.items():
        assert np.abs(decoded(data)[0] - decoded(found[id])[0]).max() <= 1.01 / 32768
