"""The benchmark against `stentor serve` in a process of its own: the embedded voice if this build has one."""

import argparse
import importlib.util
import json
import re
import subprocess
import sys
import threading
from pathlib import Path

import pytest

import stentor
from stentor.bench.cli import add_parser
from tests.helpers.patience import STUCK_S

VOICE = Path(stentor.__file__).parent / "assets" / "voice" / "config.json"
MODEL = [] if VOICE.is_file() else ["dummy:toy"]
PROMPTS = 3 if VOICE.is_file() else 6  # the voice takes more than half as long as it speaks
pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("fastapi") is None, reason="the extra `server` is not installed: no fastapi"
)


@pytest.fixture(scope="module")
def url():
    """A server on a free port, ready."""
    words = [sys.executable, "-m", "stentor", "serve", *MODEL, "--host", "127.0.0.1", "--port", "0"]
    log: list[str] = []
    started = threading.Event()
    with subprocess.Popen(words, stderr=subprocess.STDOUT, stdout=subprocess.PIPE, text=True) as process:

        def read():
            for line in process.stdout:
                log.append(line)
                if "running on" in line:
                    started.set()
            started.set()

        threading.Thread(target=read, daemon=True).start()
        started.wait(STUCK_S)
        found = re.search(r"running on (http://127\.0\.0\.1:\d+)", "".join(log))
        try:
            assert found, "".join(log)
            yield found.group(1)
        finally:
            process.terminate()
            process.wait(STUCK_S)


@pytest.mark.parametrize("backend", ["stentor", "openai-audio-speech-sse", "websocket"])
def test_stentor_serve_is_measured_and_answers_alike_alone_and_under_load(url, backend, tmp_path, capsys):
    parser = argparse.ArgumentParser()
    add_parser(parser.add_subparsers(required=True))
    words = ["bench", "serve", "--base-url", url, "--backend", backend, "--max-concurrency", "2"]
    words += ["--num-prompts", str(PROMPTS)]
    words += ["--dataset-name", "short", "--num-warmups", "1", "--request-seed", "1", "--determinism-check", "2"]
    words += ["--save-result", "--result-dir", str(tmp_path), "--result-filename", "run.json"]
    words += [] if VOICE.is_file() else ["--extra-body", '{"max_frames": 60}']
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
