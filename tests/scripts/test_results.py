"""docs/results.md and its chart are what the published runs say."""

from __future__ import annotations

import json
import re
import shutil
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pytest

from scripts.results import __main__ as command
from scripts.results.chart import chart
from scripts.results.data import OTHERS, PUBLISHED, READERS, ROOT, load, parsed
from scripts.results.page import cost, page

FILES = sorted(path.stem for path in PUBLISHED.glob("*.json") if path.stem not in OTHERS)


def level(rate: float, stalled: int = 0) -> dict[str, Any]:
    audio = {"audio_throughput": rate, "median_audio_ttfp_ms": 9.0, "p95_audio_ttfp_ms": 10.0}
    return audio | {"underrun_requests": stalled, "failed": 0}


def served(*runs: tuple[str, dict[str, Any]]) -> dict[str, Any]:
    made = [
        {"benchmark": "serve", "date": date, "result": {"ready_seconds": 1.0} | result}
        for date, result in runs
    ]
    return {"model": "M", "card": "H200", "runs": made}


def test_the_page_and_the_chart_are_what_the_published_runs_say(capsys: pytest.CaptureFixture[str]):
    assert command.main(["--check"]) == 0, capsys.readouterr().out + "run python -m scripts.results"


def test_another_figure_in_a_run_changes_the_page_and_the_chart(tmp_path: Path):
    folder = tmp_path / "published"
    shutil.copytree(PUBLISHED, folder)
    data = load(folder, "voxcpm2_h200")
    for run in data["runs"]:
        if run["benchmark"] == "turns":
            run["result"]["new"][0]["c64"]["audio-s/s"] += 100
    (folder / "voxcpm2_h200.json").write_text(json.dumps(data))
    assert page(folder) != page()
    assert chart(folder) != chart()


@pytest.mark.parametrize("file", FILES)
def test_every_run_names_its_day_its_commit_its_raw_file_and_a_script_that_exists(file: str):
    data = load(PUBLISHED, file)
    assert {"model", "card", "weights", "runs"} == set(data)
    for run in data["runs"]:
        assert re.fullmatch(r"2\d{3}-\d\d-\d\d", run["date"])
        assert re.fullmatch(r"[0-9a-f]{7,}", run["commit"])
        assert re.fullmatch(r"[\w\-]+/[\w\-./]+\.json", run["raw"])
        script = re.match(r"python ([\w/]+\.py)", run["command"])
        assert script is not None
        assert (ROOT / script[1]).exists()
        assert run["benchmark"] in READERS


def test_every_figure_of_another_engine_has_its_version_its_card_its_weights_and_a_source():
    peers = load(PUBLISHED, "peers")
    assert all(
        p[key]
        for p in peers["published"]
        for key in ("version", "card", "weights", "figures", "source", "url")
    )
    assert all(p["version"] and p["levels"] for p in peers["measured"])
    assert peers["card"] in peers["conditions"]


def test_no_protocol_takes_a_millisecond_more_than_the_api_that_it_is_compared_with():
    doors = load(PUBLISHED, "doors")["result"]["doors"]
    protocols = {name: door for name, door in doors.items() if door["beside"] != "in process"}
    assert len(protocols) >= 9
    assert [name for name, door in protocols.items() if door["more_cpu_ms"] > 1] == []


def test_the_newest_run_gives_a_figure_and_an_older_one_what_it_lacks():
    old = "2026-11-01", {"c1": level(30.0), "c4": level(100.0)}
    new = "2026-11-02", {"c1": level(40.0)}
    for runs in ((old, new), (new, old)):
        found = parsed(served(*runs)).levels()
        assert [(v.streams, v.rate, run) for v, run in found] == [(1, 40.0, 1), (4, 100.0, 2)]


def test_streams_in_real_time_are_the_most_at_which_no_request_stalled():
    best = parsed(
        served(("2026-11-01", {"c16": level(300.0), "c64": level(700.0, stalled=1)}))
    ).best()
    assert best is not None
    assert best.streams == 16
    assert parsed(served(("2026-11-01", {"c64": level(700.0, stalled=1)}))).best() is None


def test_the_tree_keeps_published_runs_and_the_benchmarks_behind_them_only():
    """Older raw output is in the history, a one-off investigation at its log entry. What docs
    name since lies in raw/."""
    results = ROOT / "benchmarks" / "results"
    files = [
        path
        for path in results.rglob("*")
        if path.is_file() and (results / "raw") not in path.parents
    ]
    assert {path.parent for path in files} == {PUBLISHED}
    docs = "".join(page.read_text(encoding="utf-8") for page in (ROOT / "docs").rglob("*.md"))
    raw = [path for path in (results / "raw").rglob("*") if path.is_file()]
    assert [path.name for path in raw if path.parent.name not in docs] == []
    scripts = [
        path
        for path in (ROOT / "benchmarks").rglob("*.py")
        if "__main__" in path.read_text(encoding="utf-8")
    ]
    assert len(scripts) <= 53


def test_a_million_characters_cost_what_the_hours_for_them_cost():
    """100 seconds of audio per second and 10 characters a second are 3.6 million characters an hour."""
    assert (
        cost(100.0, "H200", {"characters_per_second": 10, "dollars_per_hour": {"H200": 7.2}})
        == "$2.00"
    )


def test_a_run_is_added_to_a_published_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    folder = tmp_path / "published"
    shutil.copytree(PUBLISHED, folder)
    monkeypatch.setattr(command, "PUBLISHED", folder)
    raw = tmp_path / "2099-01-01-h200" / "serve.json"
    raw.parent.mkdir()
    raw.write_text(
        json.dumps(
            [{"model": "dummy:voxcpm2", "ready_seconds": 5.0, "c64": level(9999.0)}, {"model": "x"}]
        )
    )
    words = [
        "add",
        str(raw),
        "--into",
        "voxcpm2_h200",
        "--benchmark",
        "serve",
        "--select",
        "dummy:voxcpm2",
    ]
    words += ["--date", "2099-01-01", "--commit", "abcdef0", "--command", "python x"]
    command.add(command.arguments().parse_args(words))
    assert load(folder, "voxcpm2_h200")["runs"][-1]["raw"] == "2099-01-01-h200/serve.json"
    found, run = parsed(load(folder, "voxcpm2_h200")).levels()[-1]
    assert (found.streams, found.rate, run) == (64, 9999.0, 1)
    assert "9,999" in page(folder)


def test_the_chart_is_an_image_that_follows_the_readers_colours():
    image = ET.fromstring(chart())
    assert image.tag.endswith("svg")
    assert "prefers-color-scheme: dark" in chart()
    words = [text.text for text in image.iter("{http://www.w3.org/2000/svg}text")]
    assert words.count("stentor") == 4
