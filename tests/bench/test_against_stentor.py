"""The benchmark against stentor's own server with the toy model, over real sockets."""

import argparse
import importlib.util
import json

import pytest

from stentor.bench.cli import define

if importlib.util.find_spec("fastapi") is None:
    pytest.skip("the extra `server` is not installed: no fastapi", allow_module_level=True)

from tests.helpers.server_live import serving

PROMPTS = 6


@pytest.fixture(scope="module")
def url(tmp_path_factory):
    with serving(tmp_path_factory.mktemp("voices")) as live:
        yield live.url


@pytest.mark.parametrize("backend", ["stentor", "openai-audio-speech-sse", "websocket"])
def test_stentor_serve_is_measured_and_answers_alike_alone_and_under_load(
    url, backend, tmp_path, capsys
):
    parser = argparse.ArgumentParser()
    define(parser.add_subparsers(required=True).add_parser("bench"))
    words = ["bench", "serve", "--base-url", url, "--backend", backend, "--max-concurrency", "2"]
    words += ["--num-prompts", str(PROMPTS)]
    words += [
        "--dataset-name",
        "short",
        "--num-warmups",
        "1",
        "--request-seed",
        "1",
        "--determinism-check",
        "2",
    ]
    words += ["--save-result", "--result-dir", str(tmp_path), "--result-filename", "run.json"]
    words += ["--extra-body", '{"max_frames": 60}']
    args = parser.parse_args(words)
    assert args.func(args) == 0, capsys.readouterr().err
    print(capsys.readouterr().out)
    row = json.loads((tmp_path / "run.json").read_text())
    assert (row["completed"], row["failed"], row["failures"]) == (PROMPTS, 0, {})
    assert row["sample_rates"][0]["told_by"] != "assumed"
    assert 0 < row["median_ttfb_ms"] <= row["median_first_pcm_ms"] <= row["median_audible_ttfa_ms"]
    assert row["median_first_pcm_ms"] < row["median_e2el_ms"]
    assert row["quality"]["silent"] == row["quality"]["nonfinite"] == 0
    determinism = row["determinism"]
    assert determinism["checked"] == 2
    assert determinism["other_length"] == 0
    assert determinism["largest_difference"] < 1e-3
    assert "/v1/models" in row["facts"]["server"]
