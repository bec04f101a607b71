"""The commands as a user types them, against a server that speaks real HTTP and WebSocket."""

import argparse
import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import soundfile
from aiohttp import web

from stentor.bench import serve
from stentor.bench.cli import define
from stentor.host.installed import pip_install
from tests.bench.speech_server import Behaviour, SpeechServer, on_socket, serving
from tests.bench.unix_client import URL, UnixClient
from tests.helpers import virtual_time
from tests.helpers.patience import STUCK_S


@pytest.fixture(autouse=True)
def no_key(monkeypatch):
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)


def bench(*words):
    parser = argparse.ArgumentParser(prog="stentor")
    define(parser.add_subparsers(required=True).add_parser("bench"))
    verbose = ["--verbose"] if words[0] == "serve" else []
    args = parser.parse_args(["bench", *map(str, words), *verbose])
    return args.func(args)


def value(out, label):
    """Cells of the table after a label."""
    return next(line for line in out.splitlines() if line.startswith(label))[40:].strip()


@pytest.fixture
def virtually(monkeypatch):
    """`virtually(behaviour)`: commands and a server share a loop of virtual time from now on."""

    def begin(behaviour=None):
        server = SpeechServer(behaviour or Behaviour())

        def run(command):
            async def main(loop):
                async with on_socket(server.app()) as path:
                    monkeypatch.setattr(
                        serve, "Client", lambda target, spool: UnixClient(target, spool, path)
                    )
                    return await command

            return virtual_time.run(main)

        monkeypatch.setattr(asyncio, "run", run)
        return server

    return begin


SOME = ("--dataset-name", "short", "--num-prompts", 8, "--max-concurrency", 4)


@pytest.mark.parametrize(
    "backend",
    ["stentor", "openai-audio-speech", "openai-audio-speech-sse", "websocket", "nanovllm", "fish"],
)
def test_every_kind_of_server_gives_the_same_table(backend, capsys):
    # The first chunk lasts 5 s and the second one is sent 20 ms later: no busy machine makes such a stream stall.
    behaviour = Behaviour(rate=16000, seconds_per_letter=0.4, piece_s=5.0)
    with serving(behaviour) as (url, server):
        assert bench("serve", "--base-url", url, "--backend", backend, *SOME) == 0
    out = capsys.readouterr().out
    assert value(out, "Successful requests:") == "8"
    assert value(out, "Failed requests:") == "0"
    assert value(out, "Sample rate by") == "16000"
    assert value(out, "Real-time maintained:") == "YES"
    assert float(value(out, "Peak concurrent requests:")) == 4
    first_pcm = next(line for line in out.splitlines() if line.startswith("First PCM sample"))
    assert float(first_pcm.split()[4]) >= 1000 * behaviour.first_s
    # The readiness probe, then eight.
    assert len(server.bodies) == 9
    if backend == "openai-audio-speech-sse":
        assert value(out, "Total generated tokens:") == str(8 * 40)


def test_the_first_listed_model_is_asked_for_and_named_in_the_files(tmp_path, capsys):
    words = (
        "--save-result",
        "--save-detailed",
        "--result-dir",
        tmp_path,
        "--metadata",
        "note=x",
        "--seed",
        3,
    )
    with serving() as (url, server):
        assert bench("serve", "--base-url", url, *SOME, *words) == 0
    assert {body["model"] for body in server.bodies} == {"fake/tone-1"}
    paths = {
        path.suffix: path
        for path in tmp_path.iterdir()
        if not path.name.endswith(".requests.jsonl")
    }
    assert paths[".json"].name.startswith("serve-infqps-concurrency4-tone-1-")
    row = json.loads(paths[".json"].read_text())
    expected = {
        "backend": "stentor",
        "model_id": "fake/tone-1",
        "request_rate": "inf",
        "completed": 8,
        "note": "x",
    }
    assert expected.items() <= row.items()
    for key in (
        "mean_e2el_ms",
        "p99_audio_ttfp_ms",
        "median_audio_rtf",
        "p95_audible_ttfa_ms",
        "std_chunk_gap_ms",
    ):
        assert row[key] > 0, key
    assert row["facts"]["server"]["/version"] == {"version": "1.2.3"}
    assert row["facts"]["client"]["cores"] >= 1
    assert len(row["requests"]) == 8
    lines = next(tmp_path.glob("*.requests.jsonl")).read_text().splitlines()
    first = json.loads(lines[0])
    assert len(lines) == 8
    assert len(first["audio_sha256"]) == 16
    assert sum(first["chunk_samples"]) == first["samples"]
    assert "Real-time maintained" in paths[".md"].read_text()
    assert "<svg" in paths[".html"].read_text()


def test_open_loop_load_follows_the_rate_and_refusals_are_counted(virtually, capsys):
    words = (
        "--dataset-name",
        "short",
        "--num-prompts",
        30,
        "--request-rate",
        60,
        "--goodput",
        "audio_ttfp:1000",
    )
    slow = Behaviour(capacity=3, pace_s=0.06, seconds_per_letter=0.02)
    virtually(slow)
    assert bench("serve", "--base-url", URL, *words) == 0
    assert bench("serve", "--base-url", URL, *words, "--require-real-time") == 1
    out = capsys.readouterr().out
    failed = int(value(out, "Failed requests:"))
    assert 0 < failed < 30
    assert value(out, "Refused (429 / 503):") == f"{failed} / 0"
    assert value(out, "Real-time maintained:") == "NO"
    assert f"  - {failed} of 30 requests failed: http_429 {failed}" in out
    assert "  ! http_429: too many requests" in out
    assert value(out, "Request rate configured (RPS):") == "60.00"
    assert "Request goodput (req/s):" in out


def test_a_ramp_sends_faster_and_faster(virtually, tmp_path, capsys):
    words = (
        "--ramp-up-strategy",
        "linear",
        "--ramp-up-start-rps",
        5,
        "--ramp-up-end-rps",
        100,
        "--num-prompts",
        30,
    )
    virtually()
    assert bench("serve", "--base-url", URL, *words, "--save-result", "--result-dir", tmp_path) == 0
    rows = [json.loads(line) for line in next(tmp_path.glob("*.jsonl")).read_text().splitlines()]
    assert rows[0]["load"] == "5 to 100 req/s"
    assert rows[10]["planned_s"] > 2 * (rows[-1]["planned_s"] - rows[-11]["planned_s"])


def test_a_steady_window_counts_only_its_own_requests(virtually, tmp_path, capsys):
    words = (
        "--request-rate",
        40,
        "--warmup-seconds",
        0.5,
        "--duration",
        1.0,
        "--dataset-name",
        "short",
    )
    server = virtually()
    assert bench("serve", "--base-url", URL, *words, "--save-result", "--result-dir", tmp_path) == 0
    out = capsys.readouterr().out
    rows = [json.loads(line) for line in next(tmp_path.glob("*.jsonl")).read_text().splitlines()]
    inside = [row for row in rows if row["in_window"]]
    assert value(out, "Scheduled requests:") == str(len(inside))
    assert all(0.5 <= row["planned_s"] < 1.5 for row in inside)
    assert 0 < len(inside) < len(rows) == len(server.bodies) - 1
    assert value(out, "Benchmark duration (s):") == "1.00"


def test_a_sweep_with_repeats_gives_a_row_each_and_their_spread(tmp_path, capsys):
    words = (
        "--dataset-name",
        "short",
        "--num-prompts",
        4,
        "--sweep-concurrency",
        "1,2",
        "--repeats",
        2,
    )
    with serving() as (url, _):
        assert (
            bench(
                "serve",
                "--base-url",
                url,
                *words,
                "--save-result",
                "--result-filename",
                tmp_path / "s.json",
            )
            == 0
        )
    out = capsys.readouterr().out
    assert [line.split()[1] for line in out.splitlines() if line.startswith("| c=")][:4] == [
        "c=1",
        "c=1",
        "c=2",
        "c=2",
    ]
    assert "audible_ttfa p95 (ms)" in out
    saved = json.loads((tmp_path / "s.json").read_text())
    assert saved["kind"] == "sweep"
    assert [run["max_concurrency"] for run in saved["runs"]] == [1, 1, 2, 2]
    assert (tmp_path / "s.html").read_text().count("<svg") == 4
    assert bench("compare", tmp_path / "s.json", tmp_path / "s.json", "--fail-on-regression") == 0


def test_all_at_once_beside_rates_in_a_sweep_leaves_out_only_its_point_in_the_charts(
    virtually, tmp_path
):
    words = (
        "--dataset-name",
        "short",
        "--num-prompts",
        3,
        "--sweep-rps",
        "inf,20",
        "--save-result",
    )
    virtually()
    assert (
        bench(
            "serve",
            "--base-url",
            URL,
            *words,
            "--result-dir",
            tmp_path,
            "--result-filename",
            "sub/s.json",
        )
        == 0
    )
    saved = json.loads((tmp_path / "sub/s.json").read_text())
    assert [run["request_rate"] for run in saved["runs"]] == ["inf", 20.0]
    page = (tmp_path / "sub/s.html").read_text()
    assert page.count("<svg") == 4
    assert "requests per second" in page


def test_the_capacity_of_a_server_is_found(virtually, capsys, tmp_path):
    # Every answer is one chunk after 0.25 s, and the ninth at once is refused: at 32 requests a second on average.
    behaviour = Behaviour(capacity=8, piece_s=5.0, seconds_per_letter=0.015, first_s=0.25)
    words = (
        "--find-capacity",
        "--slo-ttfa-ms",
        2000,
        "--capacity-min-rps",
        6,
        "--capacity-max-rps",
        200,
    )
    words += ("--capacity-tolerance", 0.5, "--num-prompts", 24, "--dataset-name", "short")
    virtually(behaviour)
    assert (
        bench(
            "serve",
            "--base-url",
            URL,
            *words,
            "--save-result",
            "--result-filename",
            tmp_path / "c.json",
        )
        == 0
    )
    out = capsys.readouterr().out
    saved = json.loads((tmp_path / "c.json").read_text())
    assert 12 <= saved["capacity_rps"] < 60
    assert (
        f"Capacity: {saved['capacity_rps']:.2f} req/s, real time maintained with p95 audible TTFA <= 2000 ms"
        in out
    )
    assert "fails: " in out


def test_an_slo_that_cannot_be_kept_says_so(capsys):
    words = ("--find-capacity", "--slo-ttfa-ms", 5, "--num-prompts", 3, "--dataset-name", "short")
    words += ("--capacity-min-rps", 20)
    with serving() as (url, _):
        assert bench("serve", "--base-url", url, *words, "--require-real-time") == 1
    out = capsys.readouterr().out
    assert "Capacity: below 20 req/s" in out
    assert "is over 5 ms" in out


@pytest.mark.parametrize(("noisy", "equal"), [(False, "3 of 3"), (True, "0 of 3")])
def test_answers_alone_are_compared_with_those_under_load(noisy, equal, capsys):
    with serving(Behaviour(noisy=noisy)) as (url, server):
        words = ("--determinism-check", 3, "--request-seed", 11)
        assert bench("serve", "--base-url", url, *SOME, *words) == 0
    out = capsys.readouterr().out
    assert value(out, "Alone = under load, equal audio:") == equal
    if noisy:
        difference, lengths = value(out, "  largest difference / other length:").split(" / ")
        assert 0.001 < float(difference) < 0.2
        assert lengths == "0"
    assert {body["seed"] for body in server.bodies} == {11}


def test_saved_audio_and_extra_fields_and_headers(tmp_path, capsys):
    extra = json.dumps({"temperature": 0, "voice": "bob"})
    with serving(Behaviour(rate=22050)) as (url, server):
        words = (
            "--save-audio",
            tmp_path / "out",
            "--extra-body",
            extra,
            "--voice",
            "amy",
            "--header",
            "X-A=b=c",
        )
        assert bench("serve", "--base-url", url, *SOME, *words) == 0
    assert server.bodies[0]["temperature"] == 0
    assert server.bodies[0]["voice"] == "bob"
    files = sorted((tmp_path / "out").iterdir())
    assert len(files) == 8
    assert soundfile.info(files[0]).samplerate == 22050


def test_every_answer_of_every_run_is_saved(virtually, tmp_path):
    virtually()
    words = ("--dataset-name", "short", "--save-audio", tmp_path / "out")
    assert (
        bench("serve", "--base-url", URL, *words, "--num-prompts", 2, "--sweep-concurrency", "1,2")
        == 0
    )
    saved = sorted(str(path.relative_to(tmp_path / "out")) for path in tmp_path.glob("out/*/*"))
    assert saved == [f"run-0{run}/0000{answer}.wav" for run in (1, 2) for answer in (0, 1)]
    # one text, again and again
    repeated = (
        "--num-prompts",
        1,
        "--max-concurrency",
        1,
        "--duration",
        1.0,
    )
    server = virtually()
    words = ("--dataset-name", "short", "--save-audio", tmp_path / "again")
    assert bench("serve", "--base-url", URL, *words, *repeated) == 0
    assert len(list((tmp_path / "again").iterdir())) == len(server.bodies) - 1 > 1


def test_more_warmups_than_texts_are_all_sent():
    with serving() as (url, server):
        words = ("--dataset-name", "short", "--num-prompts", 2, "--num-warmups", 5)
        assert bench("serve", "--base-url", url, *words) == 0
    assert len(server.bodies) == 1 + 5 + 2


def test_a_repeated_request_that_fails_is_no_other_audio(virtually, monkeypatch, capsys):
    server = virtually()
    answered = server.speech

    async def speech(request):
        if len(server.bodies) < 1 + 8 + 1:  # the probe, the load and one alone
            return await answered(request)
        return web.json_response({"error": {"message": "engine died"}}, status=503)

    monkeypatch.setattr(server, "speech", speech)
    assert (
        bench("serve", "--base-url", URL, *SOME, "--determinism-check", 3, "--request-seed", 11)
        == 0
    )
    out = capsys.readouterr().out
    assert value(out, "Alone = under load, equal audio:") == "1 of 1"
    assert value(out, "  failed alone:") == "2"
    assert "largest difference" not in out


def test_an_answer_without_valid_audio_stops_the_run_before_the_load(monkeypatch, capsys):
    with serving() as (url, server):
        words = ("--base-url", url, "--backend", "websocket", *SOME, "--voice", "breaks")
        assert bench("serve", *words) == 2
        assert len(server.bodies) == 1
    assert "answers the request without valid audio: engine died" in capsys.readouterr().err


def test_a_server_that_does_not_answer_in_time_is_not_ready(capsys):
    with serving(Behaviour(first_s=STUCK_S)) as (url, _):
        words = ("--request-timeout-s", 0.1, "--ready-check-timeout-sec", 0.05)
        assert bench("serve", "--base-url", url, *SOME, *words) == 2
    assert "is not ready after 0.05 s: no complete answer within 0.1 s" in capsys.readouterr().err


def test_a_request_that_the_server_refuses_stops_the_run_before_the_load(capsys):
    with serving() as (url, server):
        assert bench("serve", "--base-url", url, *SOME, "--voice", "nobody") == 2
        assert len(server.bodies) == 0
        assert bench("serve", "--base-url", url, *SOME, "--endpoint", "/v2/speech") == 2
    errors = capsys.readouterr().err
    assert "refuses the request: 400 voice 'nobody' is unknown" in errors
    assert "/v2/speech refuses the request: 404" in errors


def test_a_server_that_is_not_there_is_waited_for_and_then_named(capsys):
    with serving() as (url, _):
        pass
    assert bench("serve", "--base-url", url, *SOME, "--ready-check-timeout-sec", 0.1) == 2
    waits, ends = capsys.readouterr().err.splitlines()
    assert f"waiting up to 0.1 s for {url}" in waits
    assert "is not ready after 0.1 s" in ends


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ("--dataset-name", "sharegpt"),
            "--dataset-name: 'sharegpt' is unknown; choose one of short",
        ),
        (
            ("--percentile-metrics", "e2el,wrong"),
            "--percentile-metrics: 'wrong' is unknown; choose from e2el",
        ),
        (("--goodput", "wrong:1"), "--goodput: 'wrong' is unknown"),
        (("--goodput", "e2el:fast"), "--goodput: expected METRIC:LIMIT"),
        (("--duration", 3), "--duration: needs --request-rate or --max-concurrency"),
        (("--warmup-seconds", 3), "--warmup-seconds: only counts with --duration"),
        (("--sweep-rps", "1", "--find-capacity"), "choose one of --sweep-rps, --find-capacity"),
        (("--slo-ttfa-ms", 100), "--slo-ttfa-ms: only has a meaning with --find-capacity"),
        (("--determinism-check", 2), "--determinism-check: needs --request-seed"),
        (("--ramp-up-strategy", "linear"), "--ramp-up-strategy: needs --ramp-up-start-rps"),
        (
            (
                "--ramp-up-strategy",
                "linear",
                "--ramp-up-start-rps",
                1,
                "--ramp-up-end-rps",
                2,
                "--find-capacity",
            ),
            "--ramp-up-strategy: cannot be combined",
        ),
        (("--ramp-up-start-rps", 1, "--ramp-up-end-rps", 9), "need --ramp-up-strategy"),
        (
            ("--request-rate", 4, "--sweep-concurrency", "1,2"),
            "--request-rate: cannot be combined with --sweep-conc",
        ),
        (
            ("--request-rate", 4, "--find-capacity"),
            "--request-rate: cannot be combined with --find-capacity",
        ),
        (
            ("--max-concurrency", 4, "--sweep-concurrency", "1,2"),
            "--max-concurrency: cannot be combined",
        ),
        (("--dataset-path", "mine.jsonl"), "--dataset-path: medium is a built-in set"),
        (
            ("--save-result", "--result-dir", __file__),
            f"--result-dir: cannot make the folder {__file__}: ",
        ),
        (
            ("--save-result", "--result-filename", f"{__file__}/r"),
            "--result-filename: cannot make the folder",
        ),
        (("--save-audio", __file__), f"--save-audio: cannot make the folder {__file__}: "),
        (("--header", "nonsense"), "--header: expected KEY=VALUE"),
        (("--metadata", "nonsense"), "--metadata: expected KEY=VALUE"),
        (("--text-rate", 5), "--text-rate: only --backend websocket"),
        (("--base-url", "localhost:8000"), "--base-url: expected http:// or https://"),
        (
            ("--find-capacity", "--capacity-min-rps", 9, "--capacity-max-rps", 3),
            "must not exceed --capacity-max-rps",
        ),
    ],
)
def test_flags_that_make_no_sense_are_explained_before_any_load(words, message, capsys):
    with serving() as (url, server):
        base = () if "--base-url" in words else ("--base-url", url)
        assert bench("serve", *base, *words) == 2
        assert server.bodies == []
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--num-prompts", 0), "expected an integer of at least 1, got '0'"),
        (
            ("--burstiness", "inf"),
            "argument --burstiness: expected a finite number above 0, got 'inf'",
        ),
        (("--duration", "inf"), "argument --duration: expected a finite number above 0, got 'inf'"),
        (("--request-rate", -1), "expected a number above 0, got '-1'"),
        (("--request-rate", "nan"), "expected a number above 0, got 'nan'"),
        (("--metric-percentiles", "50,101"), "expected a percentile from 0 to 100"),
        (("--extra-body", "[1]"), "expected a JSON object"),
        (("--extra-body", "{"), "expected a JSON object"),
        (("--sweep-concurrency", "1,x"), "expected an integer of at least 1, got 'x'"),
        (("--response-format", "mp3"), "invalid choice"),
    ],
)
def test_values_that_make_no_sense_are_refused_by_the_parser(words, message, capsys):
    with pytest.raises(SystemExit) as stopped:
        bench("serve", *words)
    assert stopped.value.code == 2
    assert message in capsys.readouterr().err


def test_text_metrics_of_vllm_are_accepted_and_left_out(capsys):
    with serving() as (url, _):
        words = ("--percentile-metrics", "ttft,tpot,itl,e2el", "--metric-percentiles", "99")
        assert bench("serve", "--base-url", url, *SOME, *words) == 0
    captured = capsys.readouterr()
    assert "left out, since defined for text only: ttft, tpot, itl" in captured.err
    assert "P99 E2EL (ms):" in captured.out
    assert "AUDIO_TTFP" not in captured.out


def test_the_api_key_of_the_environment_is_sent_and_a_header_flag_overrides_it(monkeypatch):
    from stentor.bench.command import server_target

    parser = argparse.ArgumentParser()
    define(parser.add_subparsers(required=True).add_parser("bench"))
    monkeypatch.setenv("OPENAI_API_KEY", "sk-1")
    assert server_target(parser.parse_args(["bench", "serve"])).headers == {
        "Authorization": "Bearer sk-1"
    }
    args = parser.parse_args(["bench", "serve", "--header", "Authorization=Bearer other"])
    assert server_target(args).headers == {"Authorization": "Bearer other"}


def test_the_command_line_is_offered_without_importing_anything_heavy():
    code = (
        "import argparse, sys; from stentor.bench.cli import define\n"
        "define(argparse.ArgumentParser())\n"
        "print([m for m in ('torch', 'numpy', 'aiohttp') if m in sys.modules])"
    )
    root = Path(__file__).parents[2]
    # A bare package stands in for stentor's own __init__, which is not this test's subject.
    stub = "import sys, types; p = types.ModuleType('stentor'); p.__path__ = [sys.argv[1]]; sys.modules['stentor'] = p\n"
    done = subprocess.run(
        [sys.executable, "-c", stub + code, str(root / "stentor")],
        capture_output=True,
        text=True,
        timeout=STUCK_S,
        check=True,
        env=os.environ | {"PYTHONPATH": str(root)},
    )
    assert done.stdout.strip() == "[]"


def test_a_missing_client_library_is_one_clear_line(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "stentor.bench.serve", None)
    assert bench("serve") == 2
    assert pip_install("bench") in capsys.readouterr().err
