"""Files of a run: a flat JSON with vLLM's key names, one JSONL line per request, Markdown, WAV
files."""

import json
import math
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np

from stentor.bench.load.record import Samples
from stentor.bench.metrics.measure import METRICS, RequestResult
from stentor.bench.metrics.summary import MetricStats, Summary
from stentor.output.encode import wav_header

SCHEMA = "stentor-bench/1"
DESCRIBED = (
    *(
        "backend",
        "model_id",
        "tokenizer_id",
        "dataset_name",
        "dataset_language",
        "burstiness",
        "duration_s",
    ),
    *(
        "warmup_s",
        "num_warmups",
        "response_format",
        "voice",
        "language",
        "request_seed",
        "extra_body",
    ),
)
"""Settings in a result, beside the load."""
OF_ENGINE = ("device", "dtype", "quantization", "mode")
"""Settings that only `bench offline` has."""


def flat(summary: Summary, settings: Mapping[str, Any]) -> dict[str, Any]:
    """A run as one JSON object: `settings` first, then totals, then `mean_<metric>_<unit>` and so
    on.

    Keys that `vllm bench serve` also writes have its names and meaning. Times are in the unit that
    their key names.
    """
    apart = ("metrics", "chunk_gap", "loop_delay", "sample_rates", "verdict", "quality", "extra")
    row: dict[str, Any] = {
        "schema": SCHEMA,
        **settings,
        **{name: value for name, value in vars(summary).items() if name not in apart},
        "real_time_maintained": summary.verdict.maintained,
        "real_time_reasons": list(summary.verdict.reasons),
        "sample_rates": [
            {"hz": hz, "told_by": by, "answers": n} for (hz, by), n in summary.sample_rates.items()
        ],
        "client_was_late": summary.client_was_late,
        "quality": asdict(summary.quality),
        **summary.extra,
    }
    for name, stats in summary.metrics.items():
        row |= _keys(METRICS[name].key, stats, METRICS[name].scale)
    if summary.chunk_gap:
        row |= _keys("chunk_gap_ms", summary.chunk_gap, 1000)
    if summary.loop_delay:
        row |= _keys("client_loop_delay_ms", summary.loop_delay, 1000)
    return row


def _keys(key: str, stats: MetricStats, scale: float) -> dict[str, float]:
    marks = {
        "mean": stats.mean,
        "median": stats.median,
        "std": stats.std,
        "min": stats.low,
        "max": stats.high,
    }
    marks |= {f"p{p:g}": value for p, value in stats.percentiles.items()}
    return {f"{mark}_{key}": value * scale for mark, value in marks.items()}


def request_row(result: RequestResult, origin: float) -> dict[str, Any]:
    """One request for the JSONL file. Times of day are seconds from `origin`, the start of the
    run."""
    at = {f"{name}_s": vars(result)[name] for name in ("planned", "sent", "ended")}
    return {
        "index": result.index,
        "text": result.text,
        **{name: None if time is None else time - origin for name, time in at.items()},
        "in_window": result.in_window,
        "failure": result.failure.kind if result.failure else None,
        "failure_message": result.failure.message if result.failure else None,
        **{
            METRICS[name].key: value * METRICS[name].scale for name, value in result.metrics.items()
        },
        **{name: vars(result)[name] for name in _AS_IT_IS},
        "chunk_times_s": [round(float(t) - origin, 6) for t in result.chunk_times],
        "chunk_samples": [int(n) for n in result.chunk_samples],
    }


_AS_IT_IS = (
    *("stalls", "audible", "samples", "sample_rate", "sample_rate_source", "audio_sha256"),
    *("input_tokens", "output_tokens", "quality", "notes"),
)


def clean(value: Any) -> Any:
    """The value with infinities as the string "inf" (as vLLM writes request_rate) and NaN as null:
    strict JSON."""
    if isinstance(value, dict):
        return {str(key): clean(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [clean(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        if math.isnan(value):
            return None
        if value > 0:
            return "inf"
        return "-inf"
    return value


@dataclass(frozen=True)
class ReportFiles:
    """Where the files of one invocation go: `<folder>/<stem>.json` and so on. OSError names a file
    that cannot be written, of which nothing is left."""

    folder: Path
    stem: str

    def path(self, suffix: str) -> Path:
        return self.folder / f"{self.stem}{suffix}"

    def write_json(self, value: Mapping[str, Any], append: bool = False) -> Path:
        """Write the result. `append` adds it as one line, so that many runs share a file."""
        text = json.dumps(
            clean(dict(value)), ensure_ascii=False, indent=None if append else 1, allow_nan=False
        )
        return self.write_text(".json", text + "\n", append)

    def write_lines(self, rows: Iterable[Mapping[str, Any]], append: bool = False) -> Path:
        """Write one line per request. `append` keeps those of the runs that `write_json` has added
        before."""
        lines = [
            json.dumps(clean(dict(row)), ensure_ascii=False, allow_nan=False) + "\n" for row in rows
        ]
        return self.write_text(".requests.jsonl", "".join(lines), append)

    def write_text(self, suffix: str, text: str, append: bool = False) -> Path:
        path = self.path(suffix)
        _write(path, text.encode(), append)
        return path


def default_stem(label: str, rate: float, concurrency: int | None, model: str) -> str:
    """vLLM's file name: `<label>-<rate>qps[-concurrency<n>]-<model>-<time>`."""
    name = re.sub(r"[^\w.-]+", "-", model.rstrip("/").split("/")[-1]).strip("-") or "model"
    if concurrency:
        parallel = f"-concurrency{concurrency}"
    else:
        parallel = ""
    return f"{label}-{rate:g}qps{parallel}-{name}-{datetime.now():%Y%m%d-%H%M%S}"


def save_wav(path: Path, samples: Samples, rate: int) -> None:
    """16-bit mono WAV, non-finite samples as silence. OSError as from `ReportFiles`."""
    scaled = np.clip(np.round(np.nan_to_num(samples) * 32768), -32768, 32767).astype("<i2")
    _write(path, wav_header(rate, scaled.nbytes) + scaled.tobytes())


def _write(path: Path, data: bytes, append: bool = False) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    file = path.open("ab" if append else "wb")
    before = file.tell()
    try:
        with file:
            file.write(data)
    except OSError as e:
        if before:
            os.truncate(path, before)
        else:
            path.unlink()
        raise OSError(e.errno, e.strerror, str(path)) from e
