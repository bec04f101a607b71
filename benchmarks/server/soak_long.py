"""A long soak: rounds of honest clients alone (quiet) and then beside hostile ones (mixed), and what they show.

Used by soak.py. Quiet and mixed windows alternate, so that both see the same machine and the same other load of it.
After each round the result so far is written. Meanwhile a curve is taken of what the server holds, how fast it answers
and how busy the machine is. `judge` says what "nothing was lost" means for a run of an hour.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROUND_S = 240.0
QUIET_SHARE = 0.2  # of a round
SETTLE_S = 3.0  # at the beginning of a window, which is not judged
SAMPLE_S = 5.0
WARM_S = 600.0  # after which resident memory must be flat
FLAT = 1.05  # memory at the end over memory after WARM_S, at most
SLOWER = 2.0  # p99 of honest requests beside hostile ones over that of a quiet server, at most
TICK = os.sysconf("SC_CLK_TCK")


def percentile(values: list[float], share: float) -> float | None:
    """Nearest rank."""
    return sorted(values)[min(len(values) - 1, int(share * len(values)))] if values else None


def median(values: list[float]) -> float:
    return sorted(values)[len(values) // 2]


def speeds(requests: list[dict[str, Any]]) -> dict[str, Any]:
    """Latencies of honest requests, in ms."""
    ms = [round(1e3 * r["seconds"], 1) for r in requests if r["status"] == 200]
    return {
        "requests": len(requests), "refused": sum(r["status"] in (429, 503) for r in requests),
        "p50_ms": percentile(ms, 0.5), "p90_ms": percentile(ms, 0.9), "p99_ms": percentile(ms, 0.99),
        "max_ms": max(ms, default=None),
    }  # fmt: skip


def cpu_seconds(pid: int) -> float:
    """CPU seconds of a process and its threads."""
    words = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(words[11]) + int(words[12])) / TICK


def machine_seconds() -> tuple[float, float]:
    """CPU seconds of the whole machine so far: at work, and taken by its host (steal)."""
    user, nice, system, _, _, irq, soft, steal = map(
        int, Path("/proc/stat").read_text().split(None, 9)[1:9]
    )
    return (user + nice + system + irq + soft) / TICK, steal / TICK


@dataclass
class Curve:
    """Samples of a server. `ours`: processes of the load, by pid. `engine` awaits what /health says of the engine."""

    pid: int
    statuses: Counter[int]
    engine: Callable[[], Awaitable[dict[str, Any]]]
    ours: list[int] = field(default_factory=list)
    samples: list[dict[str, Any]] = field(default_factory=list)

    def memory_mb(self) -> dict[str, float]:
        lines = Path(f"/proc/{self.pid}/status").read_text().splitlines()
        of = {
            name: int(rest.split()[0]) / 1024
            for name, _, rest in (s.partition(":") for s in lines)
            if "kB" in rest
        }
        return {"memory_mb": round(of["VmRSS"], 1), "anonymous_mb": round(of["RssAnon"], 1)}

    def _used(self) -> dict[str, float]:
        busy, steal = machine_seconds()
        ours = sum(map(cpu_seconds, self.ours))
        server = cpu_seconds(self.pid)
        return {
            "server_cpu": server,
            "load_cpu": ours,
            "other_cpu": busy - server - ours,
            "steal": steal,
        }

    async def watch(self, every: float) -> None:
        """Take a sample every so many seconds, until cancelled. CPU figures are shares of one core since the last."""
        begin = last = time.monotonic()
        used = self._used()
        while True:
            await asyncio.sleep(every)
            now, before, used = time.monotonic(), used, self._used()
            proc = Path(f"/proc/{self.pid}")
            engine = await self.engine()
            self.samples.append({
                "second": round(now - begin, 1), "at": round(now, 2), **self.memory_mb(),
                "files": len(list((proc / "fd").iterdir())), "threads": len(list((proc / "task").iterdir())),
                "running": engine.get("running"), "queued": engine.get("queued"),
                **{k: round((used[k] - before[k]) / (now - last), 3) for k in used},
                "loadavg": float(Path("/proc/loadavg").read_text().split()[0]),
                "requests": sum(self.statuses.values()), "status_503": self.statuses[503],
                "other_5xx": sum(n for s, n in self.statuses.items() if s >= 500 and s != 503),
            })  # fmt: skip
            last = now


def within(rows: list[dict[str, Any]], windows: list[Any], key: str) -> list[float]:
    """The figure `key` of the rows that were taken in one of the windows."""
    return [r[key] for r in rows if any(w.begin <= r["at"] < w.end for w in windows)]


def judge(honest: Any, curve: Curve, windows: list[Any]) -> dict[str, Any]:
    """Summarize memory and speed. `problems` is empty for runs too short to judge."""
    found: dict[str, Any] = {"honest_requests": len(honest.requests), "problems": []}
    wrong = [
        r
        for r in honest.requests
        if not r.get("right") or (r["status"] != 200 and r["status"] not in (429, 503))
    ]
    found["problems"] += [f"honest: {r}" for r in wrong[:10]]
    for kind in ("quiet", "mixed"):
        these = [w for w in windows if w.kind == kind]
        machine = {
            k: round(sum(v) / len(v), 3) if (v := within(curve.samples, these, k)) else None
            for k in ("server_cpu", "load_cpu", "other_cpu", "steal", "loadavg")
        }
        lags = [1e3 * x for x in within(honest.lags, these, "lag")]
        found[kind] = {
            **speeds(honest.within(these)),
            **machine,
            "client_lag_p99_ms": percentile(lags, 0.99),
        }
    before, during = found["quiet"]["p99_ms"], found["mixed"]["p99_ms"]
    found["p99_ratio"] = round(during / before, 3) if before and during else None
    found["rounds"] = [
        _round(honest, windows, i) for i in range(1 + max((w.round for w in windows), default=-1))
    ]
    after = [s["memory_mb"] for s in curve.samples if s["second"] >= WARM_S]
    if len(after) < 10:
        return found
    tenth = max(1, len(after) // 10)
    found["memory_warm_mb"], found["memory_end_mb"] = median(after[:tenth]), median(after[-tenth:])
    found["memory_ratio"] = round(found["memory_end_mb"] / found["memory_warm_mb"], 4)
    if found["memory_ratio"] > FLAT:
        found["problems"].append(
            f"memory grew to {found['memory_ratio']:.2f} times of what it was when warm"
        )
    if found["p99_ratio"] is None or found["p99_ratio"] > SLOWER:
        found["problems"].append(
            f"p99 of honest requests: {during} ms instead of {before} ms on a quiet server"
        )
    return found


def _round(honest: Any, windows: list[Any], i: int) -> dict[str, Any]:
    p99 = {
        k: speeds(honest.within([w for w in windows if w.round == i and w.kind == k]))
        for k in ("quiet", "mixed")
    }
    return {
        f"{k}_{name}": v[name] for k, v in p99.items() for name in ("requests", "p50_ms", "p99_ms")
    }


def text(result: dict[str, Any]) -> str:
    """A result as JSON, with its curve, if there is one, as a table of one line per sample."""
    curve = result.get("curve")
    if not curve:
        return json.dumps(result, indent=1)
    rows = ",\n   ".join(json.dumps(list(sample.values())) for sample in curve)
    table = f'{{\n  "columns": {json.dumps(list(curve[0]))},\n  "rows": [\n   {rows}\n  ]\n }}'
    return json.dumps({**result, "curve": "CURVE"}, indent=1).replace('"CURVE"', table)


def summary(result: dict[str, Any]) -> str:
    """The run in a few lines."""
    curve, judged = result["curve"], result["judged"]
    last = curve[-1]
    return "\n".join((
        f"{result['seconds']:.0f} s, {result['honest']} honest and {result['clients']} hostile clients, "
        f"{result['requests']} hostile and {judged['honest_requests']} honest requests, 503: {last['status_503']}, "
        f"other 5xx: {last['other_5xx']}",
        f"resident memory {curve[0]['memory_mb']} -> {last['memory_mb']} MB "
        f"(highest {max(s['memory_mb'] for s in curve)}), ratio after {WARM_S:.0f} s: {judged.get('memory_ratio')}",
        f"p99 ratio {judged['p99_ratio']}",
        *(f"{kind}: {judged[kind]}" for kind in ("quiet", "mixed")),
        f"problems: {result['problems'] or 'none'}",
    ))  # fmt: skip


@dataclass
class Window:
    """A part of a round. Requests that begin from `begin` to `end` (time.monotonic) are judged with it."""

    round: int
    kind: str  # quiet or mixed
    begin: float
    end: float


@dataclass
class Honest:
    """The process of the honest clients and what it says."""

    url: str
    clients: int
    seed: int
    lsb: float
    requests: list[dict[str, Any]] = field(default_factory=list)
    lags: list[dict[str, float]] = field(default_factory=list)
    process: asyncio.subprocess.Process | None = None
    reading: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Returns when the clients know what is right and have begun."""
        script, words = (
            Path(__file__).with_name("soak_honest.py"),
            [self.url, self.clients, self.seed, self.lsb],
        )
        self.process = await asyncio.create_subprocess_exec(
            sys.executable,
            str(script),
            *map(str, words),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        ready = asyncio.Event()
        self.reading = asyncio.create_task(self._read(self.process, ready))
        async with asyncio.timeout(120):
            await ready.wait()

    async def _read(self, process: asyncio.subprocess.Process, ready: asyncio.Event) -> None:
        assert process.stdout is not None
        async for line in process.stdout:
            event = json.loads(line)
            if "begin" in event:
                self.requests.append(event)
            elif "lag" in event:
                self.lags.append(event)
            else:
                ready.set()

    async def stop(self) -> None:
        assert self.process is not None
        assert self.process.stdin is not None
        assert self.reading is not None
        self.process.stdin.close()
        await self.process.wait()
        await self.reading

    def within(self, windows: list[Window]) -> list[dict[str, Any]]:
        return [r for r in self.requests if any(w.begin <= r["begin"] < w.end for w in windows)]


async def rounds(
    seconds: float,
    honest: Honest,
    curve: Curve,
    attack: Callable[[float], Awaitable[None]],
    write: Callable[[list[Window]], None],
) -> list[Window]:
    """Quiet and mixed windows for so many seconds. `attack(seconds)` runs hostile clients. `write` is called after
    each round."""
    assert honest.process is not None
    curve.ours += [os.getpid(), honest.process.pid]
    windows: list[Window] = []
    count = max(1, round(seconds / ROUND_S))
    quiet = QUIET_SHARE * seconds / count
    watching = asyncio.create_task(curve.watch(SAMPLE_S))
    try:
        for i in range(count):
            if watching.done():
                watching.result()
            windows.append(await _window(i, "quiet", asyncio.sleep(quiet), quiet))
            windows.append(
                await _window(i, "mixed", attack(seconds / count - quiet), seconds / count - quiet)
            )
            write(windows)
    finally:
        watching.cancel()
    return windows


async def _window(i: int, kind: str, what: Awaitable[None], seconds: float) -> Window:
    begin = time.monotonic()
    await what
    return Window(i, kind, begin + SETTLE_S, begin + seconds)
