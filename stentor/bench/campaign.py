"""One invocation: a run, repeats, a sweep or a search. Then it prints the report and writes the
files."""

import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np

from stentor.bench import session
from stentor.bench.load.generator import Sender
from stentor.bench.load.prompts import TextItem
from stentor.bench.load.record import Spool, SpoolError
from stentor.bench.metrics.summary import Summary
from stentor.bench.report.output import SCHEMA, ReportFiles, flat, request_row
from stentor.bench.report.plot import Chart, Series, page
from stentor.bench.report.short import short_report
from stentor.bench.report.table import TableOptions, levels_table, markdown, summary_table
from stentor.bench.session import BenchRun, Level, RunSettings
from stentor.score import measures


@dataclass(frozen=True)
class Capacity:
    """A search for the highest rate that keeps real time with p95 audible TTFA within `slo_ttfa_s`
    (None: any)."""

    slo_ttfa_s: float | None
    lowest_rps: float
    highest_rps: float
    tolerance: float


@dataclass(frozen=True)
class Scoring:
    """Choice of the answers that are scored, and how. None: not at all."""

    wer_model: str | None = None
    mos: bool = False
    limit: int = 50


@dataclass(frozen=True)
class BenchJob:
    """Job of a benchmark: the load, and what to do with the outcome."""

    texts: Sequence[TextItem]
    settings: RunSettings
    levels: Sequence[Level]
    """One per run. Repeats of a load follow each other and differ in their seed."""
    table: TableOptions
    describe: Mapping[str, Any]
    """Settings for the result file."""
    repeats: int = 1
    capacity: Capacity | None = None
    scoring: Scoring = field(default_factory=Scoring)
    files: ReportFiles | None = None
    append: bool = False
    save_detailed: bool = False
    require_real_time: bool = False


async def run(
    job: BenchJob, sender: Sender, spool: Spool, facts: Callable[[], Mapping[str, Any]]
) -> int:
    """Do the job, print the report, write the files. facts: called when the load is over, as GPU
    peaks are only known then. Returns the exit code: 1 if nothing succeeded, if real time was
    required and not kept, or if a disk was full. What was measured before is reported then."""
    runs: list[BenchRun] = []
    wrong: list[str] = []
    several = len(job.levels) > 1 or job.capacity is not None

    async def measure(level: Level) -> BenchRun:
        if not wrong:
            settings = job.settings
        else:
            settings = replace(job.settings, save_audio=None)
        if several and settings.save_audio:
            settings = replace(
                settings, save_audio=settings.save_audio / f"run-{len(runs) + 1:02d}"
            )
        plan = session.make_plan(level, settings, job.texts)
        sender.prepare(plan.prompts)
        result = await session.run_level(sender, plan, level, settings, spool)
        _score(result, job, spool)
        runs.append(result)
        if result.unsaved:
            wrong.append(f"--save-audio: {result.unsaved}")
        if several:
            print(_one_line(result))
        return result

    capacity: float | None = None
    try:
        if job.capacity:
            capacity = await _search(job, job.capacity, measure)
        else:
            for level in job.levels:
                await measure(level)
    except SpoolError as e:
        if not runs:
            raise
        wrong.append(str(e))
        job = replace(job, capacity=None)  # a search that did not end has found nothing
    _print(job, runs, capacity)
    if job.files:
        wrong += _write(job, job.files, facts(), runs, capacity)
    for what in wrong:
        print(f"error: {what}", file=sys.stderr)
    in_time = all(result.summary.verdict.maintained for result in runs)
    if job.capacity:
        meets_target = capacity is not None
    else:
        meets_target = in_time
    failed = wrong or not any(result.summary.completed for result in runs)
    if failed or (job.require_real_time and not meets_target):
        return 1
    return 0


async def _search(
    job: BenchJob, capacity: Capacity, measure: Callable[[Level], Any]
) -> float | None:
    async def passes(rate: float) -> bool:
        for repeat in range(job.repeats):
            level = replace(job.levels[0], rate=rate, seed=job.levels[0].seed + repeat)
            run: BenchRun = await measure(level)
            if reason := _misses(run.summary, capacity.slo_ttfa_s):
                print(f"  {rate:.2f} req/s fails: {reason}")
                return False
        return True

    return await highest_passing(
        passes, capacity.lowest_rps, capacity.highest_rps, capacity.tolerance
    )


async def highest_passing(
    passes: Callable[[float], Awaitable[bool]], lowest: float, highest: float, tolerance: float
) -> float | None:
    """Search the highest rate in [lowest, highest] that passes.

    Doubles from `lowest` until a rate fails, then halves the interval (geometrically) until its
    ends differ by less than `tolerance` (0.05 = 5 %). Passing is taken to be monotonic. Noise near
    the edge moves the answer by about the tolerance.

    Returns:
        The highest rate that was tried and passed, or None if even `lowest` failed.
    """
    good: float | None = None
    bad: float | None = None
    rate = lowest
    while bad is None and (good is None or good < highest):
        if await passes(rate):
            good = rate
            rate = min(rate * 2, highest)
        elif good is None:
            return None
        else:
            bad = rate
    while good is not None and bad is not None and bad / good > 1 + tolerance:
        rate = (good * bad) ** 0.5
        if await passes(rate):
            good = rate
        else:
            bad = rate
    return good


def _misses(summary: Summary, slo_ttfa_s: float | None) -> str:
    if not summary.verdict.maintained:
        return "; ".join(summary.verdict.reasons)
    slowest = summary.metrics["audible_ttfa"].percentiles[95.0]
    if slo_ttfa_s is not None and slowest > slo_ttfa_s:
        return f"p95 audible TTFA {slowest * 1000:.0f} ms is over {slo_ttfa_s * 1000:.0f} ms"
    return ""


def _score(run: BenchRun, job: BenchJob, spool: Spool) -> None:
    """WER and MOS of the first answers of the run, into its summary."""
    if not job.scoring.wer_model and not job.scoring.mos:
        return
    answers: list[measures.AnswerAudio] = []
    for exchange, result in zip(run.trace.exchanges, run.results, strict=True):
        if result.completed and result.in_window:
            audio = session.decode_reply(exchange, spool, job.settings)
        else:
            audio = None
        if audio is not None and len(answers) < job.scoring.limit:
            answers.append(
                measures.AnswerAudio(result.index, result.text, audio.samples, audio.rate)
            )
    extra = run.summary.extra
    if job.scoring.wer_model and answers:
        rated = measures.error_rate(answers, measures.whisper(job.scoring.wer_model))
        extra |= {
            "wer": rated.error_rate,
            "wer_answers": rated.counted,
            "wer_model": job.scoring.wer_model,
        }
        extra["wer_worst"] = {"answers": [list(row) for row in rated.worst]}
    if job.scoring.mos and answers:
        marks = measures.opinion_scores(answers)
        extra |= {
            "mos": float(marks.mean()),
            "mos_min": float(marks.min()),
            "mos_answers": len(answers),
        }


# ---- printing


def label(level: Level) -> str:
    """`4 req/s`, `c=16`, `4 req/s, c=16` or `all at once`."""
    if np.isfinite(level.rate):
        parts = [f"{level.rate:.4g} req/s"]
    else:
        parts = []
    parts += [f"{level.ramp.start_rps:g} to {level.ramp.end_rps:g} req/s"] if level.ramp else []
    parts += [f"c={level.max_concurrency}"] if level.max_concurrency else []
    return ", ".join(parts) or "all at once"


def _one_line(run: BenchRun) -> str:
    summary = run.summary
    ttfa = summary.metrics.get("audible_ttfa")
    if ttfa:
        latency = f"TTFA p95 {ttfa.percentiles[95.0] * 1000:.0f} ms"
    else:
        latency = "no audio"
    if summary.verdict.maintained:
        verdict = "real time"
    else:
        verdict = "NOT real time"
    return (
        f"{label(run.level)}: {summary.completed} of {summary.scheduled} done, {latency}, {verdict}"
    )


def _print(job: BenchJob, runs: Sequence[BenchRun], capacity: float | None) -> None:
    if len(runs) == 1 and not job.capacity:
        run = runs[0]
        if job.table.verbose:
            print(summary_table(run.summary, _load(run), job.table))
        else:
            print(short_report(run.summary, run.results))
        return
    print("\n" + _levels(runs))
    if job.repeats > 1 and not job.capacity:
        print("\n" + _spread(runs))
    if job.capacity:
        print("\n" + _capacity_text(job.capacity, capacity))


def _levels(runs: Sequence[BenchRun]) -> str:
    return levels_table([(label(run.level), run.summary) for run in runs])


def _capacity_text(capacity: Capacity, rps: float | None) -> str:
    if capacity.slo_ttfa_s is not None:
        limit = f" with p95 audible TTFA <= {capacity.slo_ttfa_s * 1000:g} ms"
    else:
        limit = ""
    if rps is None:
        return f"Capacity: below {capacity.lowest_rps:g} req/s (the lowest rate tried) real time{limit} is not kept"
    if rps >= capacity.highest_rps:
        more = " or more (the highest rate tried)"
    else:
        more = ""
    return f"Capacity: {rps:.2f} req/s{more}, real time maintained{limit}"


def _spread(runs: Sequence[BenchRun]) -> str:
    """Mean and range over the repeats of each load."""
    body = []
    for name in dict.fromkeys(label(run.level) for run in runs):
        group = [run.summary for run in runs if label(run.level) == name]
        for title, values in _spread_values(group):
            mean = float(np.mean(values))
            std = float(np.std(values))
            body.append(
                [
                    name,
                    title,
                    f"{mean:.3f}",
                    f"{std:.3f}",
                    f"{min(values):.3f}",
                    f"{max(values):.3f}",
                ]
            )
    return markdown(["load", "over repeats", "mean", "std", "min", "max"], body)


def _spread_values(group: Sequence[Summary]) -> list[tuple[str, list[float]]]:
    rows = [
        ("req/s", [s.request_throughput for s in group]),
        ("audio x", [s.audio_throughput for s in group]),
    ]
    for name, mark in (
        ("audio_ttfp", 50.0),
        ("audible_ttfa", 50.0),
        ("audible_ttfa", 95.0),
        ("e2el", 50.0),
    ):
        values = [s.metrics[name].percentiles[mark] * 1000 for s in group if name in s.metrics]
        if values:
            rows.append((f"{name} p{mark:g} (ms)", values))
    return rows


# ---- files


def _write(
    job: BenchJob,
    files: ReportFiles,
    facts: Mapping[str, Any],
    runs: Sequence[BenchRun],
    capacity: float | None,
) -> list[str]:
    """Write the files. Returns what is wrong with those that cannot be written."""
    rows = [_flat(job, run, facts) for run in runs]
    if len(rows) == 1 and not job.capacity:
        document: Mapping[str, Any] = rows[0]
    else:
        if job.capacity:
            kind = "capacity"
        else:
            kind = "sweep"
        document = {"schema": SCHEMA, "kind": kind, "capacity_rps": capacity, "runs": rows}
    requests = [
        {"load": label(run.level), **request_row(result, run.trace.started)}
        for run in runs
        for result in run.results
    ]
    table = _levels(runs)
    single = len(runs) == 1 and not job.capacity
    if single:
        full = summary_table(runs[0].summary, _load(runs[0]), job.table)
    else:
        full = ""
    text = _markdown(job, facts, table, full)
    plots = page(f"stentor bench: {files.stem}", _charts(job, runs), full or table)
    writes: Sequence[Callable[[], Path]] = (
        lambda: files.write_json(document, job.append),
        lambda: files.write_lines(requests, job.append),
        lambda: files.write_text(".md", text),
        lambda: files.write_text(".html", plots),
    )
    wrong = []
    for write in writes:
        try:
            path = write()
        except OSError as e:
            wrong.append(f"cannot write {e.filename}: {e.strerror}")
        else:
            print(f"Saved {path}")
    return wrong


def _load(run: BenchRun) -> dict[str, Any]:
    row: dict[str, Any] = {
        "request_rate": run.level.rate,
        "max_concurrency": run.level.max_concurrency,
    }
    if ramp := run.level.ramp:
        row |= {
            "ramp_up_strategy": ramp.strategy,
            "ramp_up_start_rps": ramp.start_rps,
            "ramp_up_end_rps": ramp.end_rps,
        }
    return row


def _flat(job: BenchJob, run: BenchRun, facts: Mapping[str, Any]) -> dict[str, Any]:
    settings = {
        "date": datetime.now().strftime("%Y%m%d-%H%M%S"),
        **job.describe,
        **_load(run),
        "num_prompts": len(run.results),
        "seed": run.level.seed,
        "facts": dict(facts),
    }
    row = flat(run.summary, settings)
    if job.save_detailed:
        row["requests"] = [request_row(result, run.trace.started) for result in run.results]
    return row


def _markdown(job: BenchJob, facts: Mapping[str, Any], table: str, full: str) -> str:
    lines = ["# stentor bench", "", table, ""]
    if full:
        lines += ["```", full, "```", ""]
    lines += ["## Settings", ""]
    lines += [
        f"- {name}: {value}" for name, value in job.describe.items() if value not in (None, {}, [])
    ]
    for gpu in facts.get("gpus", []):
        lines.append(f"- GPU {gpu['index']}: {gpu['name']}, driver {gpu['driver']}")
    return "\n".join(lines) + "\n"


def _charts(job: BenchJob, runs: Sequence[BenchRun]) -> list[Chart]:
    if len(runs) == 1:
        return [_distribution(runs[0])]
    by_rate = any(np.isfinite(run.level.rate) for run in runs)
    if by_rate:
        axis = "offered load (requests per second)"
    else:
        axis = "concurrent requests"
    # An infinite rate has no place on the axis.
    placed = [run for run in runs if np.isfinite(_load_value(run, by_rate))]
    ordered = sorted(placed, key=lambda run: _load_value(run, by_rate))
    if job.capacity:
        limit = job.capacity.slo_ttfa_s
    else:
        limit = None
    charts = []
    for name, title in (
        ("audible_ttfa", "Audible TTFA"),
        ("audio_ttfp", "First packet"),
        ("e2el", "End-to-end latency"),
    ):
        lines = [_against_load(ordered, name, mark, by_rate) for mark in (50.0, 95.0, 99.0)]
        if limit is not None and name == "audible_ttfa":
            line_at = limit * 1000
        else:
            line_at = None
        charts.append(Chart(f"{title} against load", axis, "ms", lines, line_at))
    x = [_load_value(run, by_rate) for run in ordered]
    throughput = Series("audio s per s", x, [run.summary.audio_throughput for run in ordered])
    return [*charts, Chart("Audio throughput against load", axis, "x real time", [throughput])]


def _load_value(run: BenchRun, by_rate: bool) -> float:
    return float(run.level.rate if by_rate else run.level.max_concurrency or 0)


def _against_load(runs: Sequence[BenchRun], name: str, mark: float, by_rate: bool) -> Series:
    measured = [run for run in runs if name in run.summary.metrics]
    y = [run.summary.metrics[name].percentiles[mark] * 1000 for run in measured]
    return Series(f"p{mark:g}", [_load_value(run, by_rate) for run in measured], y)


def _distribution(run: BenchRun) -> Chart:
    lines = []
    for name, title in (
        ("ttfb", "TTFB"),
        ("audio_ttfp", "first packet"),
        ("audible_ttfa", "audible TTFA"),
    ):
        values = sorted(
            row.metrics[name] * 1000 for row in run.results if row.completed and name in row.metrics
        )
        share = [100 * (i + 1) / len(values) for i in range(len(values))]
        lines.append(Series(title, share, values))
    return Chart(f"First audio, {label(run.level)}", "percent of requests", "ms, at most", lines)
