"""Result files: strict JSON, appended runs, names, saved audio."""

import json

import numpy as np
import pytest
import soundfile

from stentor.bench.compare import load
from stentor.bench.report.output import SCHEMA, ReportFiles, clean, default_stem, save_wav
from tests.bench.fake_server import tone
from tests.helpers.full_disk import files_of_at_most


def test_saved_json_is_strict_and_keeps_infinity_as_vllm_writes_it(tmp_path):
    path = ReportFiles(tmp_path / "new", "r").write_json(
        {"request_rate": float("inf"), "x": float("nan"), "y": [1.5]}
    )
    assert json.loads(path.read_text()) == {"request_rate": "inf", "x": None, "y": [1.5]}
    assert clean({"a": (float("-inf"),)}) == {"a": ["-inf"]}


def test_appending_adds_a_line_each_time(tmp_path):
    files = ReportFiles(tmp_path, "r")
    for value in (1, 2):
        files.write_json({"schema": SCHEMA, "request_rate": value}, append=True)
        requests = files.write_lines([{"index": value}], append=True)
    assert [run["request_rate"] for run in load(tmp_path / "r.json")] == [1, 2]
    assert [json.loads(line)["index"] for line in requests.read_text().splitlines()] == [1, 2]


def test_what_cannot_be_written_whole_is_named_and_leaves_nothing(tmp_path):
    files = ReportFiles(tmp_path, "r")
    files.write_json({"schema": SCHEMA, "request_rate": 1}, append=True)
    kept = (tmp_path / "r.json").read_bytes()
    lost = {
        "r.json": lambda: files.write_json({"schema": SCHEMA, "x": "y" * 999}, append=True),
        "r.requests.jsonl": lambda: files.write_lines([{"x": "y" * 999}]),
        "a.wav": lambda: save_wav(tmp_path / "a.wav", tone(0.1, 22050), 22050),
    }
    for name, write in lost.items():
        with (
            files_of_at_most(200),
            pytest.raises(OSError, match=f"File too large: '{tmp_path / name}'"),
        ):
            write()
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == {"r.json": kept}


def test_the_default_name_is_vllms():
    stem = default_stem("serve", 4.0, 16, "org/My Model:1")
    assert stem.startswith("serve-4qps-concurrency16-My-Model-1-")
    assert default_stem("x", float("inf"), None, "m").startswith("x-infqps-m-")


def test_saved_audio_is_what_was_heard_with_not_a_number_as_silence(tmp_path):
    samples = tone(0.1, 22050)
    samples[3] = np.nan
    save_wav(tmp_path / "a" / "b.wav", samples, 22050)
    read, rate = soundfile.read(tmp_path / "a" / "b.wav", dtype="float32")
    assert rate == 22050
    assert np.allclose(read, np.nan_to_num(samples), atol=1 / 32768)
