"""From the results of one run to its summary: the numbers that are printed, stored and compared."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from stentor.bench.load.record import Floats
from stentor.bench.metrics import quality
from stentor.bench.metrics.measure import METRICS, RequestResult
from stentor.bench.metrics.quality import Quality

CONTINUITY_S = 0.1
LATE_LOOP_S = 0.005
ALWAYS = (50.0, 95.0, 99.0)
"""Percentiles that are computed even if not asked for: verdicts and level tables use them."""


@dataclass(frozen=True)
class MetricStats:
    """Statistics of one metric over the completed requests, in its base unit (seconds or ratio)."""

    count: int
    mean: float
    median: float
    std: float
    low: float
    high: float
    percentiles: dict[float, float]
    """By linear interpolation, as NumPy and vLLM do it."""


def stats(values: Sequence[float] | Floats, percentiles: Sequence[float]) -> MetricStats | None:
    """None when there are no values."""
    array = np.asarray(values, dtype=np.float64)
    if not array.size:
        return None
    marks = {p: float(np.percentile(array, p)) for p in sorted({*ALWAYS, *percentiles})}
    return MetricStats(
        array.size,
        float(array.mean()),
        float(np.median(array)),
        float(array.std()),
        float(array.min()),
        float(array.max()),
        marks,
    )


@dataclass(frozen=True)
class Window:
    """The part of the run that counts, in `time.perf_counter` seconds."""

    start: float
    end: float

    @property
    def length(self) -> float:
        return max(self.end - self.start, 1e-9)


@dataclass(frozen=True)
class Verdict:
    """Real-time maintained, or why not."""

    maintained: bool
    reasons: tuple[str, ...]


@dataclass(frozen=True)
class Summary:
    """One run. Times in seconds. What the result file has as it is has its name there."""

    metrics: dict[str, MetricStats]
    chunk_gap: MetricStats | None
    duration: float
    scheduled: int
    completed: int
    failed: int
    failures: dict[str, int]
    failure_examples: dict[str, str]
    request_throughput: float
    request_goodput: float | None
    max_concurrent_requests: int
    total_input_tokens: int | None
    total_output_tokens: int | None
    total_audio_duration_s: float
    total_audio_frames: int
    audio_throughput: float
    underrun_requests: int
    discontinuous_requests: int
    """Requests whose audio_underrun exceeds 0.1 s: vLLM-Omni's continuity rule."""
    stalls: int
    sample_rates: dict[tuple[int, str], int]
    """Answers by (rate, source of the rate)."""
    notes: tuple[str, ...]
    verdict: Verdict
    quality: Quality
    loop_delay: MetricStats | None = None
    client_cpu: float = 0.0
    """Share of one core that this process used."""
    extra: dict[str, Any] = field(default_factory=dict)
    """Determinism, WER and MOS, which later steps add."""

    @property
    def client_was_late(self) -> bool:
        """Whether this process may have delayed what it measured."""
        return self.loop_delay is not None and self.loop_delay.percentiles[99] > LATE_LOOP_S


def summarise(
    results: Sequence[RequestResult],
    window: Window,
    percentiles: Sequence[float],
    goodput: dict[str, float] | None = None,
    loop_delays: Sequence[float] = (),
    client_cpu: float = 0.0,
) -> Summary:
    """Summarise the results whose `in_window` is set.

    Args:
        results: of the whole run.
        window: where throughput is counted.
        percentiles: 0 to 100.
        goodput: upper limits in base units by metric name. A request that keeps them all is good.
        loop_delays: seconds, from the load generator.
        client_cpu: share of one core used by this process.
    """
    rows = [result for result in results if result.in_window]
    good = [row for row in rows if row.completed]
    samples = {name: [row.metrics[name] for row in good if name in row.metrics] for name in METRICS}
    measured = {name: stats(values, percentiles) for name, values in samples.items()}
    ended = sum(
        1
        for row in results
        if row.completed and row.ended and window.start <= row.ended <= window.end
    )
    return Summary(
        scheduled=len(rows),
        completed=len(good),
        failed=len(rows) - len(good),
        failures=dict(Counter(row.failure.kind for row in rows if row.failure)),
        failure_examples={
            row.failure.kind: row.failure.message for row in reversed(rows) if row.failure
        },
        duration=window.length,
        max_concurrent_requests=_peak([row for row in results if row.sent and row.ended]),
        metrics={name: value for name, value in measured.items() if value},
        chunk_gap=stats(np.concatenate([row.gaps for row in good]), percentiles) if good else None,
        total_audio_duration_s=sum(row.samples / row.sample_rate for row in good),
        total_audio_frames=sum(row.samples for row in good),
        request_throughput=ended / window.length,
        audio_throughput=_received_audio(results, window) / window.length,
        request_goodput=_goodput(good, goodput, window) if goodput else None,
        total_input_tokens=_total([row.input_tokens for row in good]),
        total_output_tokens=_total([row.output_tokens for row in good]),
        underrun_requests=sum(row.stalls > 0 for row in good),
        discontinuous_requests=sum(row.metrics["audio_underrun"] > CONTINUITY_S for row in good),
        stalls=sum(row.stalls for row in good),
        sample_rates=dict(Counter((row.sample_rate, row.sample_rate_source) for row in good)),
        notes=tuple(sorted({note for row in rows for note in row.notes})),
        verdict=_verdict(rows, good),
        quality=quality.summarise(rows),
        loop_delay=stats(loop_delays, percentiles),
        client_cpu=client_cpu,
    )


def _peak(rows: Sequence[RequestResult]) -> int:
    """Most requests in flight at once. At equal times an end counts before a start, so one at a
    time makes 1."""
    events = [(row.sent or 0.0, 1) for row in rows] + [(row.ended or 0.0, -1) for row in rows]
    running = peak = 0
    for _, step in sorted(events):
        running += step
        peak = max(peak, running)
    return peak


def _received_audio(results: Sequence[RequestResult], window: Window) -> float:
    """Seconds of audio of completed requests that arrived inside the window, whenever they were
    sent."""
    total = 0.0
    for row in results:
        if row.completed:
            inside = (row.chunk_times >= window.start) & (row.chunk_times <= window.end)
            total += float(row.chunk_samples[inside].sum()) / row.sample_rate
    return total


def _goodput(good: Sequence[RequestResult], limits: dict[str, float], window: Window) -> float:
    in_limits = [
        row
        for row in good
        if all(row.metrics.get(name, np.inf) <= limit for name, limit in limits.items())
    ]
    return len(in_limits) / window.length


def _total(counts: Sequence[int | None]) -> int | None:
    counted = [count for count in counts if count is not None]
    if counted:
        return sum(counted)
    return None


def _verdict(rows: Sequence[RequestResult], good: Sequence[RequestResult]) -> Verdict:
    """nari-labs' rule: every scheduled request started and completed with audible audio, none
    underran."""
    reasons = []
    total = len(rows)
    if not total:
        reasons.append("no request was scheduled")
    kinds = Counter(row.failure.kind for row in rows if row.failure)
    if kinds:
        listed = ", ".join(f"{kind} {count}" for kind, count in kinds.most_common())
        reasons.append(f"{sum(kinds.values())} of {total} requests failed: {listed}")
    if silent := sum(not row.audible for row in good):
        reasons.append(f"{silent} of {total} answers have no audible audio")
    if stalled := [row for row in good if row.stalls]:
        worst = max(row.metrics["stall_max"] for row in stalled) * 1000
        reasons.append(f"{len(stalled)} of {total} requests underran, longest stall {worst:.0f} ms")
    return Verdict(not reasons, tuple(reasons))
