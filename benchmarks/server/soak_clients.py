"""An hour of mixed traffic through both clients of an engine: does each end as it began?

Run: python benchmarks/server/soak_clients.py --minutes 60 --output benchmarks/results/FOLDER/soak_clients.json
Needs: Linux, aiohttp and the packages of `stentor[server]`. No GPU.

One engine is in the process of `TTS`, where threads generate, stream, cancel, clone and send what is refused
(soak_in_process.py). The other is in a process of its own behind `stentor serve`, with the clients of soak.py over HTTP
and WebSocket, hostile ones among them. Each answer of a well-behaved client is compared with the one that the same
request got alone.

The curve has resident memory, descriptors and threads of the three processes, and free slots and pages of both engines.
A run has ended as it began if memory is flat after a tenth of the time, no process holds more descriptors than at
first, all slots and pages are free, no answer was wrong, and no status was 5xx but 503 with Retry-After.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import functools
import json
import os
import platform
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import soak
from soak_honest import session
from soak_hostile import HOSTILE
from soak_long import FLAT, median, text

HERE = Path(__file__).resolve().parent
WARM = 0.1  # share of the run after which memory must be flat
SLACK = 3  # descriptors more than at first: a pool that was not used yet


def used(pid: int) -> dict[str, float]:
    """Resident MB, descriptors and threads of a process."""
    proc = Path(f"/proc/{pid}")
    rss = re.search(r"VmRSS:\s*(\d+)", (proc / "status").read_text())
    assert rss is not None
    files, threads = len(list((proc / "fd").iterdir())), len(list((proc / "task").iterdir()))
    return {"memory_mb": round(int(rss[1]) / 1024, 1), "files": files, "threads": threads}


def engine_of(pid: int) -> int:
    """The process of the engine of a server."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    found = [int(c) for c in children if b"stentor" in Path(f"/proc/{c}/cmdline").read_bytes()]
    assert len(found) == 1, children
    return found[0]


class InProcess:
    """A process with an engine of its own, which is asked for its state line by line."""

    def __init__(self, model: str, threads: int, pause: float, seed: int) -> None:
        words = [
            sys.executable,
            str(HERE / "soak_in_process.py"),
            model,
            str(threads),
            str(pause),
            str(seed),
        ]
        self.process = subprocess.Popen(
            words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self._to, self._from = self.process.stdin, self.process.stdout
        assert json.loads(self._from.readline()) == "ready"

    def ask(self, what: str) -> dict[str, Any]:
        """`state`, or `settle`: stop the clients, wait until nothing runs, and give free memory back."""
        self._to.write(what + "\n")
        self._to.flush()
        found: dict[str, Any] = json.loads(self._from.readline())
        return found

    def stop(self) -> int:
        self._to.close()
        return self.process.wait(60)


async def sample(
    server: soak.Server, run: soak.Soak, ours: InProcess, begin: float
) -> dict[str, Any]:
    """One row of the curve."""
    engine, direct = await run.engine(), await asyncio.to_thread(ours.ask, "state")
    row: dict[str, Any] = {"second": round(time.monotonic() - begin, 1)}
    for name, pid in (
        ("api", server.process.pid),
        ("engine", engine_of(server.process.pid)),
        ("direct", ours.process.pid),
    ):
        row |= {f"{name}_{key}": value for key, value in used(pid).items()}
    for name, state in (("engine", engine), ("direct", direct)):
        row |= {
            f"{name}_{key}": state[key]
            for key in ("running", "queued", "free_slots", "free_pages", "pages")
        }
    return {**row, "http_requests": sum(run.statuses.values()), "direct_calls": direct["calls"]}


async def traffic(run: soak.Soak, clients: int, pause: float, seconds: float) -> None:
    """Clients of all kinds, one request after another, with pauses."""
    kinds = [*run.kinds * 2, *(functools.partial(f, run) for f in HOSTILE)]
    end = time.monotonic() + seconds
    await asyncio.gather(*(run.client(end, kinds, pause) for _ in range(clients)))


async def watched(
    args: argparse.Namespace, server: soak.Server, ours: InProcess, voices: Path
) -> dict[str, Any]:
    """The whole run."""
    async with session() as http:
        run = soak.Soak(server.url, http, args.seed, soak.LSB[args.model])
        await run.learn()
        begin, rows = time.monotonic(), list[dict[str, Any]]()
        seconds = 60 * args.minutes
        load = asyncio.create_task(traffic(run, args.clients, args.pause, seconds))
        while not load.done():
            rows.append(await sample(server, run, ours, begin))
            write(args.output, result(args, run, rows, {}))
            await asyncio.wait([load], timeout=args.every)
        await load
        direct, engine = await asyncio.to_thread(ours.ask, "settle"), await run.settled()
        await soak.counted(server, [])
        await asyncio.sleep(5)
        rows.append(await sample(server, run, ours, begin))
        left = [p.name for p in voices.iterdir() if not p.name.endswith(".safetensors")]
        return result(args, run, rows, {"direct": direct, "engine": engine, "files_left": left})


def result(
    args: argparse.Namespace, run: soak.Soak, rows: list[dict[str, Any]], end: dict[str, Any]
) -> dict[str, Any]:
    problems = [*run.problems, *(judge(rows) if end else [])]
    if end:
        problems += [f"direct: {p}" for p in end["direct"]["problems"]]
        problems += [f"not idle at the end: {end['engine']}"] if not end["engine"]["idle"] else []
        problems += (
            [f"files left in the voice directory: {end['files_left']}"] if end["files_left"] else []
        )
    return {
        "model": args.model, "minutes": args.minutes, "clients": args.clients, "threads": args.threads,
        "pause_s": args.pause, "seed": args.seed, "python": platform.python_version(), "cores": os.cpu_count(),
        "nice": os.nice(0), "statuses": {str(k): v for k, v in sorted(run.statuses.items())},
        "http": dict(sorted(run.counts.items())), "direct": end.get("direct", {}).get("counts", {}),
        "problems": problems, "curve": rows,
    }  # fmt: skip


def judge(rows: list[dict[str, Any]]) -> list[str]:
    """Differences between the end and the start."""
    problems, last = [], rows[-1]
    warm = rows[int(WARM * len(rows)) : -1]
    tenth = max(1, len(warm) // 10)
    for name in ("api", "engine", "direct"):
        memory = [r[f"{name}_memory_mb"] for r in warm]
        before, after = median(memory[:tenth]), median(memory[-tenth:])
        if after > FLAT * before:
            problems.append(f"{name}: resident memory grew from {before} to {after} MB")
        if last[f"{name}_files"] > rows[0][f"{name}_files"] + SLACK:
            problems.append(
                f"{name}: {rows[0][f'{name}_files']} descriptors at first, {last[f'{name}_files']} at the end"
            )
    for name in ("engine", "direct"):
        if (
            last[f"{name}_running"]
            or last[f"{name}_queued"]
            or last[f"{name}_free_pages"] != last[f"{name}_pages"]
        ):
            problems.append(f"{name}: slots or pages are taken at the end")
    return problems


def write(output: Path | None, found: dict[str, Any]) -> None:
    if output is not None:
        output.parent.mkdir(parents=True, exist_ok=True)
        output.write_text(text(found) + "\n")


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", choices=list(soak.LSB), default="dummy:toy")
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--clients", type=int, default=8, help="over HTTP and WebSocket")
    parser.add_argument("--threads", type=int, default=4, help="in process")
    parser.add_argument(
        "--pause",
        type=float,
        default=1.0,
        help="seconds between two requests of a client, on average",
    )
    parser.add_argument(
        "--every", type=float, default=15.0, help="seconds between two rows of the curve"
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output", type=Path)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, soak.running(args.model, Path(folder)) as server:
        ours = InProcess(args.model, args.threads, args.pause, args.seed)
        with contextlib.closing(ours._to):
            found = asyncio.run(watched(args, server, ours, Path(folder)))
        codes = {"server": server.stop(), "direct": ours.stop()}
        errors = [line.strip() for line in server.log if " ERROR " in line or "Traceback" in line]
        found["errors_logged"] = dict(
            Counter(re.sub(r"^\S+ \S+ ", "", e)[:160] for e in errors).most_common(10)
        )
    found["exit_codes"] = codes
    found["problems"] += [f"{name} ended with {code}" for name, code in codes.items() if code]
    write(args.output, found)
    print(json.dumps({k: v for k, v in found.items() if k != "curve"}, indent=1))
    return 1 if found["problems"] else 0


if __name__ == "__main__":
    sys.exit(main())
