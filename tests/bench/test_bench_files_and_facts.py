"""Result files, plots, comparison, the capacity search and the facts about the machine."""

import asyncio
import json
import stat
import time
import xml.etree.ElementTree as ET

import numpy as np
import pytest
import soundfile

from stentor.bench.compare import compare, load
from stentor.bench.report.facts import client_facts, gpu_watch, is_local
from stentor.bench.report.output import SCHEMA, Files, clean, default_stem, save_wav
from stentor.bench.report.plot import Chart, Series, page
from stentor.bench.search import highest_passing
from tests.bench.fake_server import tone

# ---- files


def test_saved_json_is_strict_and_keeps_infinity_as_vllm_writes_it(tmp_path):
    path = Files(tmp_path / "new", "r").write_json({"request_rate": float("inf"), "x": float("nan"), "y": [1.5]})
    assert json.loads(path.read_text()) == {"request_rate": "inf", "x": None, "y": [1.5]}
    assert clean({"a": (float("-inf"),)}) == {"a": ["-inf"]}


def test_appending_adds_a_line_each_time(tmp_path):
    files = Files(tmp_path, "r")
    for value in (1, 2):
        files.write_json({"schema": SCHEMA, "request_rate": value}, append=True)
    assert [run["request_rate"] for run in load(tmp_path / "r.json")] == [1, 2]


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


# ---- plots


def test_the_page_is_well_formed_and_draws_every_point_inside_the_frame():
    series = [Series("p50 <&>", [1, 2, 4], [10, 12, 30]), Series("p99", [1, 2, 4], [20, 25, 90])]
    text = page("title <&>", [Chart("TTFA", "load", "ms", series, limit=50.0)], "table <b>")
    assert "title &lt;&amp;&gt;" in text
    assert "table &lt;b&gt;" in text
    svg = ET.fromstring(text[text.index("<svg") : text.index("</svg>") + 6])
    _, _, width, height = map(float, svg.attrib["viewBox"].split())
    lines = [[tuple(map(float, p.split(","))) for p in e.attrib["points"].split()] for e in svg.iter("polyline")]
    assert [len(line) for line in lines] == [3, 3]
    assert all(0 <= x <= width and 0 <= y <= height for line in lines for x, y in line)
    # More load is further right, more latency is higher up.
    assert lines[0][0][0] < lines[0][1][0] < lines[0][2][0]
    assert lines[1][2][1] < lines[1][0][1] < lines[0][0][1]
    assert any(e.text == "limit 50" for e in svg.iter("text"))


@pytest.mark.parametrize("y", [[0.0], [5.0], [1e-5, 1e-4], [1e6, 3e6]])
def test_any_range_of_values_can_be_drawn(y):
    page("t", [Chart("c", "x", "y", [Series("s", list(range(len(y))), y)])])


def test_a_chart_without_points_is_left_out():
    assert "<svg" not in page("t", [Chart("c", "x", "y", [Series("s", [], [])])])


# ---- comparison


def run(**changes):
    base = {
        "schema": SCHEMA,
        "backend": "stentor",
        "request_rate": 4.0,
        "max_concurrency": None,
        "request_throughput": 4.0,
        "failed": 0,
        "median_audible_ttfa_ms": 50.0,
        "real_time_maintained": True,
    }
    return base | changes


def files(tmp_path, a, b):
    paths = []
    for name, runs in (("a", a), ("b", b)):
        path = tmp_path / f"{name}.json"
        path.write_text(json.dumps(runs[0] if len(runs) == 1 else {"schema": SCHEMA, "runs": runs}))
        paths.append(path)
    return paths


def test_a_slower_first_audio_is_marked_worse_and_a_faster_one_better(tmp_path):
    a, b = files(tmp_path, [run()], [run(median_audible_ttfa_ms=60.0, request_throughput=5.0)])
    outcome = compare(a, b, 0.03)
    assert outcome.regressions == ("4 req/s: median_audible_ttfa_ms",)
    row = next(line for line in outcome.text.splitlines() if "median_audible_ttfa_ms" in line)
    assert row.split() == [
        "|",
        "median_audible_ttfa_ms",
        "|",
        "50.0",
        "|",
        "60.0",
        "|",
        "+20.0",
        "%",
        "|",
        "worse",
        "|",
    ]
    row = next(line for line in outcome.text.splitlines() if "request_throughput" in line)
    assert row.split()[-4:] == ["+25.0", "%", "|", "better", "|"][-4:]


def test_changes_below_the_threshold_or_within_the_spread_of_repeats_are_no_news(tmp_path):
    a, b = files(tmp_path, [run()], [run(median_audible_ttfa_ms=51.0)])
    assert compare(a, b, 0.03).regressions == ()
    noisy = [run(median_audible_ttfa_ms=v) for v in (45.0, 60.0)]
    worse = [run(median_audible_ttfa_ms=v) for v in (58.0, 70.0)]
    a, b = files(tmp_path, noisy, worse)
    outcome = compare(a, b, 0.03)
    assert outcome.regressions == ()
    assert "within spread" in outcome.text


def test_a_new_failure_is_a_regression_from_zero(tmp_path):
    a, b = files(tmp_path, [run()], [run(failed=2, real_time_maintained=False)])
    outcome = compare(a, b, 0.03)
    assert outcome.regressions == ("4 req/s: failed",)
    assert "Real-time maintained: A YES, B NO" in outcome.text


def test_differing_settings_are_pointed_out(tmp_path):
    a, b = files(tmp_path, [run()], [run(backend="nanovllm")])
    assert "! backend differs: 'stentor' against 'nanovllm'" in compare(a, b, 0.03).text


def test_sweeps_are_compared_level_by_level(tmp_path):
    a, b = files(tmp_path, [run(), run(request_rate=8.0)], [run(request_rate=8.0), run(request_rate=16.0)])
    text = compare(a, b, 0.03).text
    assert "## 8 req/s" in text
    assert "## 4 req" not in text
    assert "## 16 req" not in text


def test_files_that_cannot_be_compared_say_why(tmp_path):
    a, b = files(tmp_path, [run()], [run(request_rate=9.0)])
    with pytest.raises(ValueError, match="no load level in common"):
        compare(a, b, 0.03)
    other = tmp_path / "o.json"
    other.write_text('{"hello": 1}')
    with pytest.raises(ValueError, match="not a result of `stentor bench`"):
        compare(other, b, 0.03)
    other.write_text("hello")
    with pytest.raises(ValueError, match="is not JSON"):
        compare(other, b, 0.03)
    with pytest.raises(ValueError, match="cannot read"):
        compare(tmp_path / "none.json", b, 0.03)


# ---- search


@pytest.mark.parametrize("limit", [0.6, 1.0, 3.7, 17.2, 63.9])
def test_the_search_finds_the_highest_rate_that_passes_to_its_tolerance(limit):
    tried = []

    async def passes(rate):
        tried.append(rate)
        return rate <= limit

    found = asyncio.run(highest_passing(passes, 0.5, 64.0, 0.05))
    assert found <= limit
    assert limit / found <= 1.05
    assert len(tried) == len(set(tried)) <= 13


def test_the_search_stops_at_its_bounds():
    async def never(rate):
        return False

    async def always(rate):
        return True

    assert asyncio.run(highest_passing(never, 0.5, 64.0, 0.05)) is None
    assert asyncio.run(highest_passing(always, 0.5, 50.0, 0.05)) == 50.0


# ---- facts


def test_the_client_states_its_machine_without_names_of_hosts_or_users():
    facts = client_facts()
    assert facts["cores"] >= 1
    assert facts["packages"]["aiohttp"]
    assert set(facts) == {"platform", "python", "processor", "cores", "memory_gb", "packages"}


def test_only_loopback_addresses_are_this_machine():
    assert is_local("http://127.0.0.1:8000")
    assert is_local("http://[::1]:8000")
    assert not is_local("http://10.0.0.1:8000")


def test_gpu_samples_are_folded_into_ranges_per_gpu(tmp_path):
    program = tmp_path / "nvidia-smi"
    program.write_text(
        "#!/bin/sh\n"
        "echo '0, NVIDIA H200, 580.1, 143771, 1000, 1980, 3201, 300.5, 40'\n"
        "echo '1, NVIDIA H200, 580.1, 143771, 10, 345, 3201, [N/A], 30'\n"
        "echo '0, NVIDIA H200, 580.1, 143771, 25000, 1755, 3201, 690.0, 61'\n"
        "exec sleep 60\n"
    )
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    with gpu_watch(program=str(program)) as gpus:
        deadline = time.monotonic() + 10
        while len(gpus().get("gpus", [])) < 2 and time.monotonic() < deadline:
            time.sleep(0.02)
        first, second = gpus()["gpus"]
    assert (first["name"], first["driver"], first["memory_total_mib"]) == ("NVIDIA H200", "580.1", 143771)
    assert first["memory_used_mib"] == {"min": 1000, "max": 25000}
    assert first["sm_clock_mhz"] == {"min": 1755, "max": 1980}
    assert "power_w" not in second


def test_no_gpu_program_means_no_gpu_facts():
    with gpu_watch(program="no-such-program") as gpus:
        assert gpus() == {}
    with gpu_watch(wanted=False) as gpus:
        assert gpus() == {}
