"""The in-process benchmark on an engine whose timings are known."""

import argparse
import errno
import json
import sys
import tempfile
import threading
from dataclasses import dataclass, replace
from types import SimpleNamespace

import numpy as np
import pytest

from stentor.bench.campaign import BenchJob, Capacity
from stentor.bench.cli import define
from stentor.bench.load.prompts import TextItem
from stentor.bench.load.record import Spool, SpoolError
from stentor.bench.offline import CallOptions, InProcess, offline
from stentor.bench.report.output import ReportFiles
from stentor.bench.report.table import TableOptions
from stentor.bench.session import Level, RunSettings
from tests.bench.fake_server import silence, tone
from tests.helpers.full_disk import FULL, files_of_at_most, full
from tests.helpers.patience import STUCK_S

RATE = 16000


@dataclass
class Speech:
    samples: np.ndarray
    sample_rate: int = RATE


class FakeTTS:
    """Three chunks of 0.1 s with pauses before them; notes every call. `clock` is moved by the pauses and only by them."""

    def __init__(self, *args, pauses=(0.05, 0.02, 0.3), together=None, **kwargs):
        self.made_with = (args, kwargs)
        self.pauses = pauses
        self.together = together
        self.now = 1000.0
        self.calls = []
        self.closed = False
        self.running = self.most = 0
        self.lock = threading.Lock()

    def clock(self):
        return self.now

    def stream(self, text, **options):
        with self.lock:
            self.calls.append((text, options))
            self.running += 1
            self.most = max(self.most, self.running)
        audio = np.concatenate([silence(0.05, RATE), tone(0.25, RATE)])
        try:
            for i, pause in enumerate(self.pauses):
                if self.together:
                    self.together.wait()
                with self.lock:
                    self.now += pause
                if text == "fail" and i == 1:
                    raise RuntimeError("out of pages")
                part = audio[i * RATE // 10 : (i + 1) * RATE // 10]
                yield Speech(part * np.float32(np.nan) if text == "nan" and i == 2 else part)
        finally:
            with self.lock:
                self.running -= 1

    def generate(self, text, **options):
        self.calls.append((text, options))
        with self.lock:
            self.now += 0.05
        return Speech(tone(0.5, RATE))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.closed = True


def job(texts, **changes):
    settings = RunSettings(
        num_prompts=len(texts), framing="float32", watch_client=False, progress=False
    )
    base = {
        "texts": [TextItem(i, text) for i, text in enumerate(texts)],
        "settings": settings,
        "levels": [Level(float("inf"), 2, 0)],
        "table": TableOptions(["e2el", "audio_ttfp", "audio_rtf"], [50.0]),
        "describe": {"backend": "offline"},
    }
    return BenchJob(**(base | changes))


def test_chunks_of_the_engine_are_timed_like_those_of_a_server(capsys):
    engine = FakeTTS()
    one_by_one = job(["one", "two", "three", "four"], levels=[Level(float("inf"), 1, 0)])
    assert offline(engine, CallOptions(), one_by_one, threads=4, clock=engine.clock) == 0
    out = capsys.readouterr().out
    assert "Successful requests:                     4" in out
    values = {line[:26].strip(): line[26:].strip() for line in out.splitlines()}
    assert values["First PCM sample (ms)"] == "50.0"
    assert float(values["Leading silence (ms)"]) == pytest.approx(
        50, abs=1
    )  # the detector's own grain
    assert float(values["Audible TTFA (ms)"]) == pytest.approx(100, abs=1)
    # Chunk 3 comes 0.32 s after chunk 1, with 0.2 s played: 0.12 s late.
    assert values["Largest stall (ms)"] == "120.0"
    assert "Sample rate by x-sample-rate (Hz):       16000" in out


def test_as_many_requests_run_at_once_as_the_concurrency_says(capsys):
    engine = FakeTTS(
        together=threading.Barrier(2, timeout=STUCK_S)
    )  # a request that ran alone would break it
    assert offline(engine, CallOptions(), job(["one", "two", "three", "four"]), threads=4) == 0
    assert "Successful requests:                     4" in capsys.readouterr().out
    assert engine.most == 2


def test_whole_generation_is_one_chunk(capsys):
    engine = FakeTTS()
    assert offline(engine, CallOptions("generate"), job(["one", "two"]), threads=2) == 0
    assert "Underrun requests, zero buffer:          0 (0.0%)" in capsys.readouterr().out


def test_an_exception_of_the_engine_is_a_failed_request_with_its_message(capsys):
    assert offline(FakeTTS(), CallOptions(), job(["fail", "fine"]), threads=2) == 0
    out = capsys.readouterr().out
    assert "Failed requests:                         1" in out
    assert "  ! exception: RuntimeError: out of pages" in out


def test_not_a_number_in_the_engines_audio_is_found(capsys):
    offline(FakeTTS(), CallOptions(), job(["nan", "fine"]), threads=2)
    assert "Silent / non-finite / clipped answers:   0 / 1 / 0" in capsys.readouterr().out


def test_all_failing_is_a_failed_run():
    assert offline(FakeTTS(), CallOptions(), job(["fail", "fail"]), threads=2) == 1


def test_a_result_file_that_finds_the_disk_full_is_named_and_the_others_are_written(
    capsys, tmp_path
):
    lost = [full(tmp_path / name) for name in ("r.json", "r.md")]
    saved = job(["one", "two"], files=ReportFiles(tmp_path, "r"))
    assert offline(FakeTTS(), CallOptions(), saved, threads=2) == 1
    told = capsys.readouterr()
    assert told.err == "".join(f"error: cannot write {path}: {FULL}\n" for path in lost)
    assert "Successful requests:                     2" in told.out
    assert {path.name for path in tmp_path.iterdir()} == {"r.requests.jsonl", "r.html"}


def test_audio_that_finds_the_disk_full_is_named_once_and_everything_is_measured(capsys, tmp_path):
    lost = full(tmp_path / "run-01" / "00001.wav")
    sweep = job(
        ["one", "two", "three"],
        levels=[Level(float("inf"), 1, 0)] * 2,
        files=ReportFiles(tmp_path, "r"),
    )
    sweep = replace(sweep, settings=replace(sweep.settings, save_audio=tmp_path))
    assert offline(FakeTTS(), CallOptions(), sweep, threads=1) == 1
    told = capsys.readouterr()
    assert told.err == f"error: --save-audio: cannot write {lost}: {FULL}\n"
    assert told.out.count("3 of 3 done") == 2
    assert len(json.loads((tmp_path / "r.json").read_text())["runs"]) == 2
    assert [path.name for path in tmp_path.glob("run-*/*")] == ["00000.wav"]


@pytest.mark.parametrize(
    "capacity", [None, Capacity(None, 1.0, 64.0, 0.01)], ids=["sweep", "search"]
)
def test_a_full_disk_of_temporary_files_ends_the_load_and_reports_earlier_runs(
    capacity, capsys, tmp_path, monkeypatch
):
    write, calls = Spool._write, []

    def until_full(self, *arguments):
        calls.append(1)
        if len(calls) > 3:
            raise OSError(errno.ENOSPC, FULL)
        write(self, *arguments)

    monkeypatch.setattr(Spool, "_write", until_full)
    levels = [Level(float("inf"), 1, 0)] * 2
    sweep = job(
        ["one", "two", "three"], levels=levels, capacity=capacity, files=ReportFiles(tmp_path, "r")
    )
    assert offline(FakeTTS(), CallOptions(), sweep, threads=1) == 1
    told = capsys.readouterr()
    assert (
        told.err
        == f"error: cannot keep answers in {tempfile.gettempdir()}, which TMPDIR may change: {FULL}\n"
    )
    assert told.out.count("3 of 3 done") == 1
    assert "Capacity" not in told.out
    assert json.loads((tmp_path / "r.json").read_text())["completed"] == 3


def test_a_full_disk_of_temporary_files_in_the_first_run_is_an_error():
    with (
        files_of_at_most(99),
        pytest.raises(SpoolError, match=r"cannot keep answers in .*: File too large"),
    ):
        offline(FakeTTS(), CallOptions(), job(["one"]), threads=1)


def test_the_prompts_own_options_go_over_the_shared_ones():
    engine = FakeTTS(pauses=(0,))
    reference = CallOptions(
        shared={"voice": "amy", "seed": 3}, reference=lambda path, text: (path, text)
    )
    spool = Spool()
    sender = InProcess(engine, reference, spool, 1)
    prompt = TextItem(
        0, "x", voice="bob", language="en", ref_audio="r.wav", ref_text="t", extra_body={"cfg": 2}
    )
    sender._speak(prompt)
    spool.close()
    assert engine.calls == [
        ("x", {"voice": "bob", "seed": 3, "language": "en", "reference": ("r.wav", "t"), "cfg": 2}),
    ]


def test_the_command_makes_the_engine_from_its_flags_and_closes_it(monkeypatch, capsys, tmp_path):
    made = []

    def make(*args, **kwargs):
        made.append(FakeTTS(*args, **kwargs))
        return made[0]

    monkeypatch.setitem(
        sys.modules,
        "stentor",
        SimpleNamespace(TTS=make, Reference=None, bench=sys.modules["stentor.bench"]),
    )
    parser = argparse.ArgumentParser()
    define(parser.add_subparsers(required=True).add_parser("bench"))
    words = "bench offline --model dummy:toy --device cpu --dtype float32 --quantization int8 --num-prompts 3 --max-concurrency 3 --voice amy"
    words += " --max-frames 40 --ignore-eos --request-seed 5 --save-result --result-filename off --metric-percentiles 50,99 --verbose"
    args = parser.parse_args([*words.split(), "--result-dir", str(tmp_path)])
    assert args.func(args) == 0
    given = {"device": "cpu", "runtime": "auto", "dtype": "float32", "quantization": "int8"}
    assert made[0].made_with == (("dummy:toy",), given)
    assert made[0].closed
    options = made[0].calls[0][1]
    assert options == {"voice": "amy", "seed": 5, "max_frames": 40, "ignore_eos": True}
    assert {path.name for path in tmp_path.iterdir()} == {
        "off.json",
        "off.requests.jsonl",
        "off.md",
        "off.html",
    }
    assert "Successful requests:                     3" in capsys.readouterr().out
