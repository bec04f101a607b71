"""The report of one load in at most 15 lines, with a small plot of first audio."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from stentor.bench.metrics.measure import RequestResult
from stentor.bench.metrics.summary import CONTINUITY_S, MetricStats, Summary

BARS = "▁▂▃▄▅▆▇█"
NUM_BINS = 40
"""Columns of the plot."""
MAX_FAILURES = 3
_LATENCIES = (
    ("audible_ttfa", "first audio"),
    ("e2el", "complete"),
)


def short_report(summary: Summary, results: Sequence[RequestResult]) -> str:
    """Return the report of a run. `--verbose` prints every metric."""
    lines = [_requests(summary), _throughput(summary)]
    lines += [
        f"{title:<13}{_latency(summary.metrics[name])}"
        for name, title in _LATENCIES
        if name in summary.metrics
    ]
    lines += _plot(results)
    lines += _problems(summary)
    return "\n".join(lines)


def _requests(summary: Summary) -> str:
    failed = f", {summary.failed} failed" if summary.failed else ""
    return (
        f"{'requests':<13}{summary.completed} done{failed}, "
        f"{summary.max_concurrent_requests} at a time, {summary.duration:.1f} s"
    )


def _throughput(summary: Summary) -> str:
    return (
        f"{'throughput':<13}{summary.audio_throughput:.1f} s of audio per second, "
        f"{summary.request_throughput:.2f} requests per second"
    )


def _latency(stats: MetricStats) -> str:
    marks = {"p50": stats.median}
    marks |= {f"p{p:g}": value for p, value in sorted(stats.percentiles.items()) if p > 50}
    return "  ".join(f"{mark} {1000 * value:.0f} ms" for mark, value in marks.items())


def _plot(results: Sequence[RequestResult]) -> Iterator[str]:
    """How many requests had their first audio when, as a line of bars over its scale."""
    values = [r.metrics["audible_ttfa"] for r in results if "audible_ttfa" in r.metrics]
    if len(values) < 2:
        return
    counts, edges = np.histogram(np.array(values) * 1000, NUM_BINS)
    steps = np.ceil(counts * (len(BARS) - 1) / counts.max()).astype(int)
    bars = "".join(BARS[step] if count else " " for step, count in zip(steps, counts, strict=True))
    low = f"{edges[0]:.0f}"
    high = f"{edges[-1]:.0f} ms"
    yield f"{'':<13}{bars.rstrip()}"
    yield f"{'':<13}{low}{high:>{NUM_BINS - len(low)}}"


def _problems(summary: Summary) -> Iterator[str]:
    """Whether streams played in real time, and what went wrong."""
    verdict = summary.verdict
    if verdict.maintained:
        yield f"{'real time':<13}yes"
    else:
        yield f"{'real time':<13}no: {'; '.join(verdict.reasons)[:100]}"
    if summary.discontinuous_requests:
        count = summary.discontinuous_requests
        yield f"{'gaps':<13}{count} requests with more than {CONTINUITY_S:g} s"
    for kind, count in sorted(summary.failures.items())[:MAX_FAILURES]:
        yield f"{'failed':<13}{count} {kind}: {summary.failure_examples.get(kind, '')[:80]}"
    if summary.client_was_late:
        yield f"{'warning':<13}the load generator itself was late: use a faster or idle machine"
