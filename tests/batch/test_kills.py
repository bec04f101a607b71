"""Ten kill -9 at writes chosen by a seed, in the middle of them too, and each id is there once with the same bytes."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from tests.batch.runs import CUT, TOY, audio, check, lines, manifest, speak
from tests.helpers.child import python

pytestmark = pytest.mark.skipif(os.name == "nt", reason="there is no fork")

ITEMS = [{"id": f"i{n}", "text": f"Line number {n}."[: 4 + n % 11]} for n in range(40)]
LAYOUTS = {"files": [], "tar": ["--shards", "7"], "parquet": ["--shards", "7", "--parquet"]}
KILLS = 10


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, dict[str, Any]]]:
    """The folder of each layout after ten kills and a last run, and what was seen of them."""
    top = tmp_path_factory.mktemp("killed")
    (top / "in.jsonl").write_text(lines(*ITEMS))
    jobs = [
        {
            "words": ["batch", str(top / "in.jsonl"), str(top / name), "--resume", *TOY, *flags],
            "kills": [100 * at + n for n in range(KILLS)],
        }
        for at, (name, flags) in enumerate(LAYOUTS.items())
    ]
    done = python(
        "-m", "tests.batch.killed", json.dumps(jobs), OPENBLAS_NUM_THREADS="1", OMP_NUM_THREADS="1"
    )
    assert done.returncode == 0, done.stderr
    return {
        name: (top / name, seen)
        for name, seen in zip(LAYOUTS, json.loads(done.stdout), strict=True)
    }


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("whole")
    assert speak(folder, ITEMS) == CUT
    return folder / "out"


@pytest.mark.slow
@pytest.mark.parametrize("layout", LAYOUTS)
def test_after_ten_kills_each_id_is_there_once_with_the_bytes_of_a_run_that_was_not_killed(
    ended: dict[str, tuple[Path, dict[str, Any]]], uninterrupted: Path, layout: str
) -> None:
    folder, seen = ended[layout]
    assert seen["killed"] == KILLS, seen
    assert seen["last"] == CUT
    assert sorted(check(folder)) == sorted(item["id"] for item in ITEMS)
    assert audio(folder) == audio(uninterrupted)
    assert [row["id"] for row in manifest(folder)] == [item["id"] for item in ITEMS]
    assert list((folder / ".work").iterdir()) == []
    if layout == "files":
        assert (folder / "manifest.jsonl").read_bytes() == (
            uninterrupted / "manifest.jsonl"
        ).read_bytes()
