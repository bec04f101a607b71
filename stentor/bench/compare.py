"""`stentor bench compare A.json B.json`: what changed, by how much, and whether it is more than the
runs' spread."""

import json
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from stentor.bench.report.output import DESCRIBED, OF_ENGINE, SCHEMA
from stentor.bench.report.table import markdown

_SETTINGS = (
    *DESCRIBED,
    *OF_ENGINE,
    "num_prompts",
    "request_rate",
    "max_concurrency",
    "ramp_up_strategy",
    "seed",
)


@dataclass(frozen=True)
class _Row:
    key: str
    better: str
    digits: int


_ROWS = (
    _Row("request_throughput", "higher", 3),
    _Row("audio_throughput", "higher", 3),
    _Row("failed", "lower", 0),
    _Row("underrun_requests", "lower", 0),
    *(
        _Row(f"{mark}_{key}", "lower", digits)
        for key, digits in (
            ("ttfb_ms", 1),
            ("audio_ttfp_ms", 1),
            ("audible_ttfa_ms", 1),
            ("e2el_ms", 1),
            ("audio_rtf", 4),
            ("start_buffer_ms", 1),
            ("chunk_gap_ms", 1),
        )
        for mark in ("median", "p95", "p99")
    ),
    _Row("median_audio_duration_s", "", 2),
    _Row("wer", "lower", 4),
    _Row("mos", "higher", 3),
)


@dataclass(frozen=True)
class Comparison:
    """The text to print and the keys that got worse by more than the threshold."""

    text: str
    regressions: tuple[str, ...]


def load(path: Path) -> list[dict[str, Any]]:
    """The runs in a result file: one, or those of a sweep, or the lines of an appended file.

    Raises:
        ValueError: unreadable, not a result of `stentor bench`, or without runs.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"cannot read {path}: {error}") from None
    try:
        values = _values_in(text.strip())
    except ValueError as error:
        raise ValueError(f"{path} is not JSON: {error}") from None
    runs = [
        run for value in values if isinstance(value, dict) for run in value.get("runs", [value])
    ]
    if not runs or any(run.get("schema") != SCHEMA for run in runs):
        raise ValueError(f'{path} is not a result of `stentor bench` (no "schema": "{SCHEMA}")')
    return runs


def _values_in(text: str) -> list[Any]:
    """JSON values that follow each other, however they are broken into lines: a run may be appended
    to one in lines of its own, and a text in it may hold a line separator."""
    values = []
    at = 0
    decoder = json.JSONDecoder()
    while at < len(text):
        value, at = decoder.raw_decode(text, at)
        values.append(value)
        while text[at : at + 1].isspace():
            at += 1
    return values


def compare(first: Path, second: Path, threshold: float) -> Comparison:
    """Compare two result files, load level by load level. `threshold` is a fraction (0.05 = 5 %).

    Repeats of a level are averaged. A change is marked only if it exceeds both the threshold and
    their spread.
    """
    a = _by_level(load(first))
    b = _by_level(load(second))
    shared = [level for level in a if level in b]
    if not shared:
        raise ValueError(
            f"{first} ({', '.join(a)}) and {second} ({', '.join(b)}) have no load level in common"
        )
    parts = [f"A: {first}", f"B: {second}"]
    regressions: list[str] = []
    for level in shared:
        old = a[level][0]
        new = b[level][0]
        changed = [name for name in _SETTINGS if old.get(name) != new.get(name)]
        differing = [
            f"! {name} differs: {old.get(name)!r} against {new.get(name)!r}" for name in changed
        ]
        parts += ["", f"## {level}", *differing, ""]
        head, body, worse = _table(a[level], b[level], threshold)
        regressions += [f"{level}: {key}" for key in worse]
        parts += [
            markdown(head, body),
            "",
            f"Real-time maintained: A {_kept(a[level])}, B {_kept(b[level])}",
        ]
    return Comparison("\n".join(parts), tuple(regressions))


def _by_level(runs: list[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    levels: dict[str, list[dict[str, Any]]] = {}
    for run in runs:
        rate = run.get("request_rate")
        limit = run.get("max_concurrency")
        if rate in (None, "inf"):
            parts = []
        else:
            parts = [f"{rate:g} req/s"]
        if run.get("ramp_up_strategy"):
            parts.append(f"{run['ramp_up_start_rps']:g} to {run['ramp_up_end_rps']:g} req/s")
        parts += [f"concurrency {limit}"] if limit is not None else []
        name = ", ".join(parts) or "all at once"
        levels.setdefault(name, []).append(run)
    return levels


def _table(
    a: list[dict[str, Any]], b: list[dict[str, Any]], threshold: float
) -> tuple[list[str], list[list[str]], list[str]]:
    body = []
    worse = []
    for row in _ROWS:
        before = _values(a, row.key)
        right = _values(b, row.key)
        if not before or not right:
            continue
        old = fmean(before)
        new = fmean(right)
        if old:
            change = (new - old) / abs(old)
        elif new == old:
            change = 0.0
        else:
            change = float("inf")
        mark = _mark(row, before, right, change, threshold)
        if mark == "worse":
            worse.append(row.key)
        if new == old:
            difference = "="
        elif change == float("inf"):
            difference = "new"
        else:
            difference = f"{100 * change:+.1f} %"
        body.append([row.key, f"{old:.{row.digits}f}", f"{new:.{row.digits}f}", difference, mark])
    return ["", "A", "B", "change", ""], body, worse


def _values(runs: list[dict[str, Any]], key: str) -> list[float]:
    return [float(run[key]) for run in runs if isinstance(run.get(key), (int, float))]


def _mark(
    row: _Row, before: list[float], right: list[float], change: float, threshold: float
) -> str:
    if not row.better or abs(change) <= threshold:
        return ""
    if (
        len(before) > 1
        and len(right) > 1
        and min(before) <= max(right)
        and min(right) <= max(before)
    ):
        return "within spread"
    if (change < 0) == (row.better == "lower"):
        return "better"
    return "worse"


def _kept(runs: list[dict[str, Any]]) -> str:
    if all(run.get("real_time_maintained") for run in runs):
        return "YES"
    return "NO"
