"""Summaries and verdicts from made-up results whose every figure is known."""

import numpy as np
import pytest

from stentor.bench.load.record import Failure
from stentor.bench.metrics.measure import RequestResult
from stentor.bench.metrics.quality import speech_units
from stentor.bench.metrics.summary import Window, summarise
from stentor.bench.report.table import TableOptions, levels_table, summary_table

RATE = 24000


def result(index, sent=0.0, e2el=1.0, audio=2.0, ttfp=0.1, **changes):
    """A good answer: two chunks, the first half at `ttfp`, the second at the end."""
    row = RequestResult(index, f"text number {index}", planned=sent, sent=sent, ended=sent + e2el)
    row.metrics = {
        "send_lag": 0.0,
        "client_queue": 0.0,
        "ttfb": ttfp / 2,
        "audio_ttfp": ttfp,
        "first_pcm": ttfp,
        "audible_ttfa": ttfp + 0.05,
        "leading_silence": 0.05,
        "e2el": e2el,
        "audio_duration": audio,
        "audio_rtf": e2el / audio,
        "rtf_gen": (e2el - ttfp) / (audio / 2),
        "first_chunk": audio / 2,
        "audio_underrun": 0.0,
        "start_buffer": 0.0,
        "stall_total": 0.0,
        "stall_max": 0.0,
    }
    row.samples = round(audio * RATE)
    row.sample_rate, row.sample_rate_source, row.audible = RATE, "x-sample-rate", True
    row.chunk_times = np.array([sent + ttfp, sent + e2el])
    row.chunk_samples = np.array([row.samples // 2, row.samples // 2])
    row.gaps = np.array([e2el - ttfp])
    row.quality = {
        "silent": False,
        "nonfinite_samples": 0,
        "clipped_fraction": 0.0,
        "longest_pause_s": 0.1,
    }
    row.quality["seconds_per_unit"] = audio / speech_units(row.text)
    row.audio_sha256 = "same"
    for name, value in changes.items():
        setattr(row, name, value)
    return row


def stalled(index, seconds):
    row = result(index)
    row.stalls = 1
    row.metrics |= dict.fromkeys(
        ("audio_underrun", "start_buffer", "stall_total", "stall_max"), seconds
    )
    return row


def failed(index, kind):
    return result(index, failure=Failure(kind, f"because of {kind}"), metrics={"send_lag": 0.0})


def test_throughputs_count_what_finished_and_what_arrived_inside_the_window():
    rows = [result(i, sent=float(i)) for i in range(10)]
    whole = summarise(rows, Window(0.0, 10.0), [50])
    assert whole.request_throughput == pytest.approx(1.0)
    assert whole.audio_throughput == pytest.approx(2.0)
    for row in rows:
        row.in_window = 2.0 <= row.planned < 6.0
    steady = summarise(rows, Window(2.0, 6.0), [50])
    assert steady.scheduled == 4
    # Those that end at 2, 3, 4, 5 and 6 s; audio of the answer sent at 1 s still arrives in the window.
    assert steady.request_throughput == pytest.approx(5 / 4)
    assert steady.audio_throughput == pytest.approx((1 + 4 * 2) / 4)


def test_percentiles_interpolate_as_vllm_does():
    rows = [result(i, ttfp=(i + 1) / 100) for i in range(10)]
    found = summarise(rows, Window(0, 1), [90]).metrics["audio_ttfp"]
    assert found.percentiles[90] == pytest.approx(np.percentile(np.arange(1, 11) / 100, 90))
    assert (found.mean, found.median) == (pytest.approx(0.055), pytest.approx(0.055))


def test_peak_concurrency_of_requests_that_follow_each_other_is_one():
    rows = [result(i, sent=float(i), e2el=1.0) for i in range(5)]
    assert summarise(rows, Window(0, 5), [50]).max_concurrent_requests == 1
    rows = [result(i, sent=float(i), e2el=2.5) for i in range(5)]
    assert summarise(rows, Window(0, 8), [50]).max_concurrent_requests == 3


def test_both_underrun_rules_count_requests():
    rows = [result(0), stalled(1, 0.03), stalled(2, 0.4)]
    summary = summarise(rows, Window(0, 1), [50])
    assert (summary.underrun_requests, summary.discontinuous_requests, summary.stalls) == (2, 1, 2)


def test_real_time_is_maintained_when_all_complete_audibly_without_a_stall():
    verdict = summarise([result(i) for i in range(3)], Window(0, 1), [50]).verdict
    assert verdict.maintained
    assert verdict.reasons == ()


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        (stalled(9, 0.12), "1 of 4 requests underran, longest stall 120 ms"),
        (failed(9, "http_429"), "1 of 4 requests failed: http_429 1"),
        (failed(9, "dropped"), "1 of 4 requests failed: dropped 1"),
        (failed(9, "timeout"), "1 of 4 requests failed: timeout 1"),
        (result(9, audible=False), "1 of 4 answers have no audible audio"),
    ],
)
def test_one_bad_request_breaks_real_time_and_the_reason_is_given(bad, reason):
    verdict = summarise([*[result(i) for i in range(3)], bad], Window(0, 1), [50]).verdict
    assert not verdict.maintained
    assert verdict.reasons == (reason,)


def test_no_request_at_all_is_not_real_time():
    assert not summarise([], Window(0, 1), [50]).verdict.maintained


def test_goodput_counts_requests_that_keep_every_limit():
    rows = [result(i, ttfp=0.1 * (i + 1)) for i in range(4)]
    summary = summarise(rows, Window(0, 2.0), [50], goodput={"audio_ttfp": 0.25, "e2el": 2.0})
    assert summary.request_goodput == pytest.approx(1.0)


def test_failures_stay_out_of_the_latencies_but_not_out_of_the_counts():
    summary = summarise(
        [result(0), failed(1, "http_503"), failed(2, "http_503")], Window(0, 1), [50]
    )
    assert summary.metrics["e2el"].count == 1
    assert summary.failed == 2
    assert summary.failures == {"http_503": 2}
    assert summary.failure_examples == {"http_503": "because of http_503"}


def test_token_counts_are_summed_only_where_the_server_told_them():
    rows = [
        result(0, input_tokens=5, output_tokens=50),
        result(1, input_tokens=7, output_tokens=None),
    ]
    summary = summarise(rows, Window(0, 1), [50])
    assert (summary.total_input_tokens, summary.total_output_tokens) == (12, 50)
    assert summarise([result(0)], Window(0, 1), [50]).total_input_tokens is None


def test_a_late_client_is_reported():
    on_time = summarise([result(0)], Window(0, 1), [50], loop_delays=[0.001] * 100)
    late = summarise([result(0)], Window(0, 1), [50], loop_delays=[0.001] * 90 + [0.02] * 10)
    assert not on_time.client_was_late
    assert late.client_was_late
    assert "load generator itself was late" in summary_table(late, {}, TableOptions(["e2el"], [50]))


VLLM_TABLE = """\
============ Serving Benchmark Result ============
Successful requests:                     2
Failed requests:                         0
Maximum request concurrency:             1
Benchmark duration (s):                  4.00
Request throughput (req/s):              0.50
Peak concurrent requests:                1.00
----------------End-to-end Latency----------------
Mean E2EL (ms):                          1000.00
Median E2EL (ms):                        1000.00
P99 E2EL (ms):                           1000.00
================== Text Result ===================
Total input tokens:                      n/a
Total generated tokens:                  n/a
Output token throughput (tok/s):         n/a
================== Audio Result ==================
Total audio duration generated(s):       4.00
Total audio frames generated:            96000
Audio throughput(audio duration/s):      1.00
---------------Time to First Packet---------------
Mean AUDIO_TTFP (ms):                    100.00
Median AUDIO_TTFP (ms):                  100.00
P99 AUDIO_TTFP (ms):                     100.00
-----------------Real Time Factor-----------------
Mean AUDIO_RTF:                          0.5000
Median AUDIO_RTF:                        0.5000
P99 AUDIO_RTF:                           0.5000
------------------Audio Duration------------------
Mean AUDIO_DURATION (s):                 2.000
Median AUDIO_DURATION (s):               2.000
P99 AUDIO_DURATION (s):                  2.000
-------------Streaming Audio Underrun-------------
Mean AUDIO_UNDERRUN (s):                 0.000
Median AUDIO_UNDERRUN (s):               0.000
P99 AUDIO_UNDERRUN (s):                  0.000
Streaming continuity OK rate (%):        100.00
================ Playback Result ================="""


def test_the_table_is_the_one_that_vllm_users_know():
    summary = summarise([result(0), result(1, sent=2.0)], Window(0.0, 4.0), [99])
    shown = TableOptions(
        ["e2el", "audio_ttfp", "audio_rtf", "audio_duration", "audio_underrun"], [99]
    )
    text = summary_table(summary, {"max_concurrency": 1, "request_rate": float("inf")}, shown)
    assert text.startswith(VLLM_TABLE)
    assert all(len(line) <= 60 or line.startswith("  ") for line in text.splitlines())


def test_the_playback_block_states_percentiles_rules_and_verdict():
    summary = summarise([result(0), stalled(1, 0.3)], Window(0, 4), [50, 99])
    lines = summary_table(summary, {}, TableOptions([], [50, 99])).splitlines()
    assert "                               P50     P99" in lines
    assert "First PCM sample (ms)        100.0   100.0" in lines
    assert "Audible TTFA (ms)            150.0   150.0" in lines
    assert "Gap between chunks (ms)      900.0   900.0" in lines
    assert "Underrun requests, zero buffer:          1 (50.0%)" in lines
    assert "Underrun requests, > 0.1 s (vLLM rule):  1 (50.0%)" in lines
    assert "Start buffer, all gapless (ms):          300.00" in lines
    assert "Real-time maintained:                    NO" in lines
    assert "  - 1 of 2 requests underran, longest stall 300 ms" in lines


def test_a_run_without_a_single_success_can_still_be_printed():
    summary = summarise([failed(0, "connect")], Window(0, 1), [50])
    text = summary_table(summary, {}, TableOptions(["e2el", "audio_underrun"], [50]))
    assert "Mean E2EL (ms):                          n/a" in text
    assert "  ! connect: because of connect" in text
    assert "| all" in levels_table([("all", summary)])
