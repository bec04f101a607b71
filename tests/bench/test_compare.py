"""The comparison of two result files."""

import json

import pytest

from stentor.bench.compare import compare, load
from stentor.bench.report.output import SCHEMA


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
    a, b = files(
        tmp_path, [run(), run(request_rate=8.0)], [run(request_rate=8.0), run(request_rate=16.0)]
    )
    text = compare(a, b, 0.03).text
    assert "## 8 req/s" in text
    assert "## 4 req" not in text
    assert "## 16 req" not in text


def test_ramps_are_levels_of_their_own(tmp_path):
    ramp = {
        "request_rate": "inf",
        "ramp_up_strategy": "linear",
        "ramp_up_start_rps": 1.0,
        "ramp_up_end_rps": 8.0,
    }
    a, b = files(
        tmp_path,
        [run(**ramp)],
        [run(request_rate="inf"), run(**ramp | {"ramp_up_strategy": "exponential"})],
    )
    text = compare(a, b, 0.03).text
    assert "## 1 to 8 req/s" in text
    assert "all at once" not in text
    assert "! ramp_up_strategy differs: 'linear' against 'exponential'" in text


def test_settings_of_the_engine_are_settings(tmp_path):
    a, b = files(
        tmp_path, [run(quantization="auto", voice="amy")], [run(quantization="int8", voice="bob")]
    )
    text = compare(a, b, 0.03).text
    assert "! quantization differs: 'auto' against 'int8'" in text
    assert "! voice differs: 'amy' against 'bob'" in text


def test_runs_are_read_however_their_file_is_broken_into_lines(tmp_path):
    path = tmp_path / "a.json"
    rows = [run(), run(quality={"hashes": {"One.\u2028Two.": 1}})]
    path.write_text(
        json.dumps(rows[0], indent=1) + "\n" + json.dumps(rows[1], ensure_ascii=False) + "\n",
        "utf-8",
    )
    assert load(path) == rows


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
    other.write_bytes(b"\xff")
    with pytest.raises(ValueError, match=r"cannot read .*o\.json"):
        compare(other, b, 0.03)
