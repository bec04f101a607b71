"""The report that `stentor bench` prints by default."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from stentor.bench.metrics.summary import MetricStats, Verdict
from stentor.bench.report.short import BARS, short_report


def stats(*values: float) -> MetricStats:
    return MetricStats(len(values), 0.1, 0.12, 0.0, 0.1, 0.5, {50.0: 0.12, 95.0: 0.4, 99.0: 0.5})


def summary(**facts: object) -> SimpleNamespace:
    usual = {
        "completed": 200,
        "failed": 0,
        "max_concurrent_requests": 8,
        "duration": 31.25,
        "audio_throughput": 41.26,
        "request_throughput": 6.4,
        "metrics": {"audible_ttfa": stats(0.1), "e2el": stats(0.1)},
        "verdict": Verdict(True, ()),
        "discontinuous_requests": 0,
        "failures": {},
        "failure_examples": {},
        "client_was_late": False,
    }
    return SimpleNamespace(**{**usual, **facts})


def results(*seconds: float) -> list[SimpleNamespace]:
    return [SimpleNamespace(metrics={"audible_ttfa": value}) for value in seconds]


def test_a_good_run_takes_seven_lines():
    assert short_report(summary(), results(0.1, 0.1, 0.1, 0.5)).split("\n") == [
        "requests     200 done, 8 at a time, 31.2 s",
        "throughput   41.3 s of audio per second, 6.40 requests per second",
        "first audio  p50 120 ms  p95 400 ms  p99 500 ms",
        "complete     p50 120 ms  p95 400 ms  p99 500 ms",
        " " * 13 + BARS[-1] + " " * 38 + BARS[3],
        " " * 13 + "100" + " " * 31 + "500 ms",
        "real time    yes",
    ]


def test_a_run_where_all_goes_wrong_takes_fifteen_lines_at_most():
    bad = summary(
        failed=9,
        verdict=Verdict(False, ("stalls", "failures")),
        discontinuous_requests=4,
        failures={f"kind {i}": i for i in range(9)},
        failure_examples={"kind 0": "x" * 500},
        client_was_late=True,
    )
    lines = short_report(bad, results(0.1, 0.2)).split("\n")
    assert len(lines) <= 15
    assert max(map(len, lines)) <= 120
    assert "real time    no: stalls; failures" in lines
    assert lines[0].startswith("requests     200 done, 9 failed, ")


@pytest.mark.parametrize("values", [(), (0.2,), (0.2, 0.2, 0.2)])
def test_few_or_equal_values_make_a_report_too(values: tuple[float, ...]):
    assert "real time" in short_report(summary(metrics={}), results(*values))
