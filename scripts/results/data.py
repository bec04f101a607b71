"""Published runs of benchmarks, by model and card.

A file of benchmarks/results/published holds a model on a card: `model`, `card`, `weights` and
`runs`. A run is what one benchmark wrote (`result`), with its `benchmark` (a key of READERS),
`date`, `commit`, `command`, and `raw`, its file in benchmarks/results/raw or the history. Where
runs overlap, the newest has the figure. peers.json has other engines, assumptions.json prices,
doors.json one run of benchmarks/server/doors.py.
"""

from __future__ import annotations

import json
import re
import statistics
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
PUBLISHED = ROOT / "benchmarks" / "results" / "published"
OTHERS = ("peers", "assumptions", "doors")  # files there that hold no runs
STREAMS = re.compile(r"c(\d+)")  # the key of a level in a result


@dataclass(frozen=True)
class Level:
    """A closed loop of so many streams: seconds of audio per second, first audio in ms, and
    requests that stalled."""

    streams: int
    rate: float
    p50: float
    p95: float
    stalled: int
    failed: int


@dataclass(frozen=True)
class Figures:
    """The figures of one run. What its benchmark does not measure is empty."""

    levels: list[Level] = field(default_factory=list)
    processes: list[Level] = field(default_factory=list)  # with --api-processes 1
    ready: float | None = None  # seconds from a server's start until /ready
    reserved: float | None = None  # GiB
    cloned: dict[str, float] = field(default_factory=dict)  # ms to first audio
    cpu: dict[str, float] = field(default_factory=dict)


def serve(result: dict[str, Any]) -> Figures:
    """Read benchmarks/server/serve.py."""
    levels = []
    for name, c in result.items():
        if at := STREAMS.fullmatch(name):
            first = c["median_audio_ttfp_ms"], c["p95_audio_ttfp_ms"]
            levels.append(
                Level(
                    int(at[1]), c["audio_throughput"], *first, c["underrun_requests"], c["failed"]
                )
            )
    return Figures(levels, ready=result["ready_seconds"])


def turns(result: dict[str, Any]) -> Figures:
    """Read benchmarks/server/turns.py: medians of its rounds, stalls of all of them, the last
    start."""
    return Figures(
        _rounds(result["new"]),
        _rounds(result.get("also", [])),
        ready=result["new"][-1]["ready_seconds"],
    )


def _rounds(rounds: list[dict[str, Any]]) -> list[Level]:
    levels = []
    for name in rounds[0] if rounds else ():
        if at := STREAMS.fullmatch(name):
            of = {
                key: [r[name][key] for r in rounds]
                for key in rounds[0][name]
                if key != "server_threads"
            }
            rate, p50, p95 = (
                statistics.median(of[key]) for key in ("audio-s/s", "ttfa p50", "ttfa p95")
            )
            levels.append(
                Level(int(at[1]), rate, p50, p95, sum(of["underrun_requests"]), sum(of["failed"]))
            )
    return levels


def step(result: dict[str, Any]) -> Figures:
    """Read benchmarks/engine/step.py or cosyvoice3.py: what a load reserves."""
    return Figures(reserved=result["start"]["gib"]["reserved"])


def voices(result: dict[str, float]) -> Figures:
    """Read benchmarks/server/voices.py."""
    keys = ("plain", "uploaded", "new", "16 at once, plain, median", "16 at once, uploaded, median")
    return Figures(cloned={key: result[key] for key in keys})


def voice_cpu(result: dict[str, Any]) -> Figures:
    """Read benchmarks/voice/voice_cpu.py: one thread."""
    return Figures(cpu=next(r for r in result["results"] if r["threads"] == 1))


READERS: dict[str, Callable[[Any], Figures]] = {
    reader.__name__: reader for reader in (serve, turns, step, voices, voice_cpu)
}


@dataclass(frozen=True)
class Served:
    """A model on a card, with its runs from the newest to the oldest and the figures of each."""

    model: str
    card: str
    runs: list[dict[str, Any]]
    figures: list[Figures]

    def levels(self, which: str = "levels") -> list[tuple[Level, int]]:
        """Levels by streams, each with the number of its run, from 1."""
        best_levels: dict[int, tuple[Level, int]] = {}
        for number, figures in enumerate(self.figures, 1):
            for level in figures.processes if which == "processes" else figures.levels:
                best_levels.setdefault(level.streams, (level, number))
        return [best_levels[streams] for streams in sorted(best_levels)]

    def best(self) -> Level | None:
        """The level with the most streams at which no request stalled or failed."""
        fine = [level for level, _ in self.levels() if not level.stalled and not level.failed]
        return fine[-1] if fine else None

    @property
    def ready(self) -> float | None:
        return next((f.ready for f in self.figures if f.ready is not None), None)

    @property
    def reserved(self) -> float | None:
        return next((f.reserved for f in self.figures if f.reserved is not None), None)

    @property
    def cloned(self) -> dict[str, float]:
        return next((f.cloned for f in self.figures if f.cloned), {})


def parsed(data: dict[str, Any]) -> Served:
    """Read the content of one published file."""
    runs = sorted(data["runs"], key=lambda r: r["date"], reverse=True)
    return Served(
        data["model"],
        data["card"],
        runs,
        [READERS[run["benchmark"]](run["result"]) for run in runs],
    )


def published(folder: Path = PUBLISHED) -> list[Served]:
    """Read all files: cards by name from the last, the models of a card by throughput."""
    results = [
        parsed(load(folder, file.stem))
        for file in sorted(folder.glob("*.json"))
        if file.stem not in OTHERS
    ]
    results.sort(key=lambda s: -(best.rate if (best := s.best()) else 0))
    return sorted(results, key=lambda s: s.card, reverse=True)


def load(folder: Path, name: str) -> dict[str, Any]:
    data: dict[str, Any] = json.loads((folder / f"{name}.json").read_text(encoding="utf-8"))
    return data
