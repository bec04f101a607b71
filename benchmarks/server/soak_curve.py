"""A long soak: honest requests beside hostile ones, and a curve of what the server holds and how fast it answers.

Used by soak.py. `judge` says what "nothing was lost" means for a run of an hour.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

WARM_S = 600.0  # after which resident memory must be flat
FLAT = 1.05  # memory at the end over memory after WARM_S, at most
SLOWER = 2.0  # p99 of honest requests over that of a quiet server, at most
POINTS = 240  # of a curve


def percentile(values: list[float], share: float) -> float | None:
    """Nearest rank."""
    return sorted(values)[min(len(values) - 1, int(share * len(values)))] if values else None


def median(values: list[float]) -> float:
    return sorted(values)[len(values) // 2]


def speeds(seconds: list[float]) -> dict[str, float | int | None]:
    """Of honest requests, in ms."""
    ms = [round(1e3 * s, 1) for s in seconds]
    return {"honest": len(ms), "honest_p50_ms": percentile(ms, 0.5), "honest_p99_ms": percentile(ms, 0.99)}


@dataclass
class Curve:
    """Samples of a server process. `times`: seconds of each honest request, and `statuses`: of all, as clients append
    to them."""

    pid: int
    times: list[float]
    statuses: Counter[int]
    samples: list[dict[str, Any]] = field(default_factory=list)

    def _memory_mb(self) -> float:
        lines = Path(f"/proc/{self.pid}/status").read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS:")) / 1024

    def _sample(self, second: float, since: int) -> dict[str, Any]:
        proc = Path(f"/proc/{self.pid}")
        return {
            "second": round(second, 1),
            "memory_mb": round(self._memory_mb(), 1),
            "files": len(list((proc / "fd").iterdir())),
            "threads": len(list((proc / "task").iterdir())),
            **speeds(self.times[since:]),
            "requests": sum(self.statuses.values()),
            "status_503": self.statuses[503],
            "other_5xx": sum(n for s, n in self.statuses.items() if s >= 500 and s != 503),
        }

    async def watch(self, seconds: float) -> None:
        """Take a sample every 1/POINTS of so many seconds, at most one a second."""
        begin, every, since = time.monotonic(), max(1.0, seconds / POINTS), len(self.times)
        while (now := time.monotonic() - begin) < seconds:
            await asyncio.sleep(min(every, seconds - now))
            self.samples.append(self._sample(time.monotonic() - begin, since))
            since = len(self.times)


def judge(quiet: list[float], mixed: list[float], curve: Curve) -> dict[str, Any]:
    """What the run says about memory and speed. `problems` is empty for runs too short to judge."""
    after = [s["memory_mb"] for s in curve.samples if s["second"] >= WARM_S]
    found: dict[str, Any] = {"quiet": speeds(quiet), "mixed": speeds(mixed), "problems": []}
    before, during = found["quiet"]["honest_p99_ms"], found["mixed"]["honest_p99_ms"]
    found["p99_ratio"] = during / before if before and during else None
    if len(after) < 10:
        return found
    tenth = max(1, len(after) // 10)
    found["memory_ratio"] = median(after[-tenth:]) / median(after[:tenth])
    if found["memory_ratio"] > FLAT:
        found["problems"].append(f"memory grew to {found['memory_ratio']:.2f} times of what it was when warm")
    if found["p99_ratio"] is None or found["p99_ratio"] > SLOWER:
        found["problems"].append(f"p99 of honest requests: {during} ms instead of {before} ms on a quiet server")
    return found


def summary(result: dict[str, Any]) -> str:
    """The run in a few lines."""
    curve, judged = result["curve"], result["judged"]
    first, last = curve[0], curve[-1]
    return "\n".join((
        f"{result['seconds']:.0f} s, {result['honest']} honest and {result['clients']} hostile clients, "
        f"{result['requests']} requests, 503: {last['status_503']}, other 5xx: {last['other_5xx']}",
        f"resident memory {first['memory_mb']} -> {last['memory_mb']} MB "
        f"(highest {max(s['memory_mb'] for s in curve)}), ratio after {WARM_S:.0f} s: {judged.get('memory_ratio')}",
        f"honest p50 {judged['mixed']['honest_p50_ms']} ms, p99 {judged['mixed']['honest_p99_ms']} ms, "
        f"quiet p50 {judged['quiet']['honest_p50_ms']} ms, p99 {judged['quiet']['honest_p99_ms']} ms",
        f"problems: {result['problems'] or 'none'}",
    ))  # fmt: skip
