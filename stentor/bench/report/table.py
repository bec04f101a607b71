"""The printed report: the table of `vllm bench serve --omni`, line for line, then the blocks that
it lacks."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from stentor.bench.metrics.measure import PLAYBACK_METRICS, VLLM_METRICS, Metric
from stentor.bench.metrics.quality import Quality
from stentor.bench.metrics.summary import CONTINUITY_S, MetricStats, Summary

WIDTH = 50
_ROW = 26


def banner(title: str, fill: str = "=") -> str:
    """A heading over the table's 50 columns."""
    if fill == "=":
        text = f" {title} "
    else:
        text = title
    return f"{text:{fill}^{WIDTH}}"


def line(label: str, value: object, digits: int = 2) -> str:
    """One `{:<40} {:<10}` line. None becomes n/a."""
    if value is None:
        text = "n/a"
    elif isinstance(value, float):
        text = f"{value:.{digits}f}"
    else:
        text = str(value)
    return f"{label:<40} {text:<10}".rstrip()


@dataclass(frozen=True)
class TableOptions:
    """Options of the report: vLLM blocks, percentiles, and whether all metrics are printed."""

    metrics: Sequence[str]
    percentiles: Sequence[float]
    verbose: bool = True


def summary_table(summary: Summary, load: Mapping[str, object], options: TableOptions) -> str:
    """The whole report. `load` holds request_rate and max_concurrency."""
    lines = [
        *_serving_block(summary, load, options),
        *_playback_block(summary, options.percentiles),
        *_load_block(summary),
        *_quality_block(summary.quality, summary),
        "=" * WIDTH,
    ]
    return "\n".join(lines)


def _serving_block(
    summary: Summary, load: Mapping[str, object], options: TableOptions
) -> list[str]:
    chosen = [metric for metric in VLLM_METRICS if metric.name in options.metrics]
    blocks = {
        metric.name: _metric_block(metric, summary.metrics.get(metric.name), options)
        for metric in chosen
    }
    lines = [
        banner("Serving Benchmark Result"),
        line("Successful requests:", summary.completed),
        line("Failed requests:", summary.failed),
    ]
    if load.get("max_concurrency") is not None:
        lines.append(line("Maximum request concurrency:", load["max_concurrency"]))
    rate = load.get("request_rate")
    if isinstance(rate, float) and math.isfinite(rate):
        lines.append(line("Request rate configured (RPS):", rate))
    lines += [
        line("Benchmark duration (s):", summary.duration),
        line("Request throughput (req/s):", summary.request_throughput),
    ]
    if summary.request_goodput is not None:
        lines.append(line("Request goodput (req/s):", summary.request_goodput))
    lines.append(line("Peak concurrent requests:", float(summary.max_concurrent_requests)))
    lines += blocks.pop("e2el", [])
    tokens = summary.total_output_tokens
    lines += [
        banner("Text Result"),
        line("Total input tokens:", summary.total_input_tokens),
        line("Total generated tokens:", tokens),
        line(
            "Output token throughput (tok/s):",
            None if tokens is None else tokens / summary.duration,
        ),
        banner("Audio Result"),
        line("Total audio duration generated(s):", summary.total_audio_duration_s),
        line("Total audio frames generated:", summary.total_audio_frames),
        line("Audio throughput(audio duration/s):", summary.audio_throughput),
    ]
    for block in blocks.values():
        lines += block
    if "audio_underrun" in blocks and summary.completed:
        share = 100 * (summary.completed - summary.discontinuous_requests) / summary.completed
        lines.append(line("Streaming continuity OK rate (%):", share))
    return lines


def _metric_block(metric: Metric, stats: MetricStats | None, options: TableOptions) -> list[str]:
    name = metric.name.upper()
    if metric.unit:
        unit = f" ({metric.unit})"
    else:
        unit = ""
    lines = [banner(metric.title, "-")]
    if stats is None:
        return [*lines, line(f"Mean {name}{unit}:", None)]
    marks = {"Mean": stats.mean, "Median": stats.median}
    # the median is there already
    marks |= {f"P{p:g}": stats.percentiles[p] for p in options.percentiles if p != 50}
    return lines + [
        line(f"{mark} {name}{unit}:", value * metric.scale, metric.digits)
        for mark, value in marks.items()
    ]


def _playback_block(summary: Summary, marks: Sequence[float]) -> list[str]:
    lines = [banner("Playback Result"), " " * _ROW + "".join(f"{f'P{p:g}':>8}" for p in marks)]
    for metric in PLAYBACK_METRICS:
        if percentiles := summary.metrics.get(metric.name):
            lines.append(
                _percentile_row(metric.title, metric.unit, metric.scale, percentiles, marks)
            )
    if summary.chunk_gap:
        lines.append(_percentile_row("Gap between chunks", "ms", 1000, summary.chunk_gap, marks))
    completed = max(summary.completed, 1)
    buffer = summary.metrics.get("start_buffer")
    lines += [
        "-" * WIDTH,
        line("Underrun requests, zero buffer:", _share(summary.underrun_requests, completed)),
        line(
            f"Underrun requests, > {CONTINUITY_S:g} s (vLLM rule):",
            _share(summary.discontinuous_requests, completed),
        ),
        line("Stalls, zero buffer:", summary.stalls),
        line("Start buffer, all gapless (ms):", buffer.high * 1000 if buffer else None),
        line("Real time, all streams together (x):", summary.audio_throughput),
        line("Real-time maintained:", "YES" if summary.verdict.maintained else "NO"),
    ]
    return lines + [f"  - {reason}" for reason in summary.verdict.reasons]


def _percentile_row(
    title: str, unit: str, scale: float, stats: MetricStats, marks: Sequence[float]
) -> str:
    if unit:
        label = f"{title} ({unit})"
    else:
        label = title
    if unit == "ms":
        digits = 1
    else:
        digits = 3
    return f"{label:<{_ROW}}" + "".join(
        f"{stats.percentiles[p] * scale:>8.{digits}f}" for p in marks
    )


def _share(count: int, total: int) -> str:
    return f"{count} ({100 * count / total:.1f}%)"


def _load_block(summary: Summary) -> list[str]:
    failures = summary.failures
    kinds = ("dropped", "http_429", "http_503", "timeout")
    others = {kind: count for kind, count in failures.items() if kind not in kinds}
    lag = summary.metrics.get("send_lag")
    queue = summary.metrics.get("client_queue")
    lines = [
        banner("Load Result"),
        line("Scheduled requests:", summary.scheduled),
        line("Dropped, never sent:", failures.get("dropped", 0)),
        line(
            "Refused (429 / 503):", f"{failures.get('http_429', 0)} / {failures.get('http_503', 0)}"
        ),
        line("Timed out:", failures.get("timeout", 0)),
        line("Other failures:", ", ".join(f"{k} {n}" for k, n in others.items()) or 0),
        line("Mean / max send lag (ms):", _mean_max(lag)),
        line("Mean / max client queue (ms):", _mean_max(queue)),
    ]
    if delay := summary.loop_delay:
        lines.append(
            line(
                "P99 / max client loop delay (ms):",
                f"{delay.percentiles[99] * 1000:.2f} / {delay.high * 1000:.2f}",
            )
        )
        lines.append(line("Client CPU (% of one core):", 100 * summary.client_cpu))
    for (rate, source), count in summary.sample_rates.items():
        lines.append(
            line(
                f"Sample rate by {source} (Hz):",
                rate if count == summary.completed else f"{rate} x {count}",
            )
        )
    lines += [
        f"  ! {kind}: {text}"
        for kind, text in summary.failure_examples.items()
        if kind != "dropped"
    ]
    lines += [f"  ! {note}" for note in summary.notes]
    if any(source == "assumed" for _, source in summary.sample_rates):
        lines.append("  ! the server did not state a sample rate; --sample-rate was assumed")
    if summary.client_was_late:
        lines.append(
            "  ! the load generator itself was late: figures may be worse than the server's true ones"
        )
    return lines


def _mean_max(stats: MetricStats | None) -> str | None:
    if stats:
        return f"{stats.mean * 1000:.2f} / {stats.high * 1000:.2f}"
    return None


def _quality_block(quality: Quality, summary: Summary) -> list[str]:
    outliers = f"{len(quality.run_on)} / {len(quality.cut_short)} / {quality.long_pause}"
    changed = sum(count > 1 for count in quality.hashes.values())
    lines = [
        banner("Quality Result"),
        line(
            "Silent / non-finite / clipped answers:",
            f"{quality.silent} / {quality.nonfinite} / {quality.clipped}",
        ),
        line("Run-on / cut short / pause over 2 s:", outliers),
        line("Median seconds of audio per letter:", f"{quality.seconds_per_unit:.3f}"),
    ]
    if quality.hashes:
        lines.append(
            line(
                "Repeated texts with equal audio:",
                f"{len(quality.hashes) - changed} of {len(quality.hashes)}",
            )
        )
    extra = summary.extra
    if determinism := extra.get("determinism"):
        lines.append(
            line(
                "Alone = under load, equal audio:",
                f"{determinism['equal']} of {determinism['checked']}",
            )
        )
        if determinism["failed"]:
            lines.append(line("  failed alone:", determinism["failed"]))
        if determinism["differing"]:
            what = f"{determinism['largest_difference']:.1e} / {determinism['other_length']}"
            lines.append(line("  largest difference / other length:", what))
    if "wer" in extra:
        lines.append(line(f"WER over {extra['wer_answers']} answers (%):", 100 * extra["wer"]))
    if "mos" in extra:
        lines.append(
            line(
                f"MOS over {extra['mos_answers']} answers, mean / min:",
                f"{extra['mos']:.2f} / {extra['mos_min']:.2f}",
            )
        )
    return lines


def levels_table(rows: Sequence[tuple[str, Summary]]) -> str:
    """A Markdown table with one line per load level (or repeat)."""
    cells = [{"load": label, **_level_cells(summary)} for label, summary in rows]
    return markdown(list(cells[0]), [list(row.values()) for row in cells])


def _level_cells(summary: Summary) -> dict[str, str]:
    def mark(name: str, percentile: float, scale: float, digits: int) -> str:
        stats = summary.metrics.get(name)
        if stats:
            return f"{stats.percentiles[percentile] * scale:.{digits}f}"
        return "-"

    return {
        "done": str(summary.completed),
        "failed": str(summary.failed),
        "req/s": f"{summary.request_throughput:.2f}",
        "audio x": f"{summary.audio_throughput:.2f}",
        "TTFP p50 ms": mark("audio_ttfp", 50, 1000, 1),
        "TTFA p50 ms": mark("audible_ttfa", 50, 1000, 1),
        "TTFA p95 ms": mark("audible_ttfa", 95, 1000, 1),
        "RTF p50": mark("audio_rtf", 50, 1, 3),
        "underrun": _share(summary.underrun_requests, max(summary.completed, 1)),
        "real time": "YES" if summary.verdict.maintained else "NO",
    }


def markdown(head: Sequence[str], body: Sequence[Sequence[str]]) -> str:
    """A Markdown table padded so that it also reads well in a terminal."""
    widths = [max(len(row[i]) for row in (head, *body)) for i in range(len(head))]
    rows = [
        "| " + " | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) + " |"
        for row in (head, *body)
    ]
    rule = "|" + "|".join("-" * (width + 2) for width in widths) + "|"
    return "\n".join([rows[0], rule, *rows[1:]])
