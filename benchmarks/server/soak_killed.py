"""Two API processes whose engine is killed every minute: does the server end as it began?

Run: python benchmarks/server/soak_killed.py --minutes 60 --output benchmarks/results/raw/FOLDER/soak_killed.json
Needs: Linux and the packages of `stentor[server]`. No GPU.

Clients ask for speech of `dummy:toy` all the time, each over a connection of its own. Every minute the engine's process
is killed with SIGKILL, and each fourth minute the second API process too. A request may then break off, be a 503, or a
500 `engine_error` if the engine had it; an answer with status 200 that is whole is that of the same request
before the first kill, but for rounding. The curve has memory,
descriptors and threads of each process, and the answers since the row before.

A run ends as it began if `/ready` is 200 for every connection at the end, every answer was right, no status was 5xx but
503, counters of `/metrics` never went back, and the first API process holds no more than at first.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import json
import os
import platform
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(
    0, str(Path(__file__).resolve().parents[2])
)  # this tree, also where none is installed
from benchmarks import processes
from benchmarks.processes import API, ENGINE

SPEECH = {
    "input": "Hello there.",
    "seed": 7,
    "response_format": "pcm",
    "guard": False,
    "max_frames": 200,
    "min_frames": 200,
}
COUNTER = "stentor:requests_success_total"
READY_S = 120.0  # for a start, or a restart at the end, beside other work
LSB = 2.1  # answers alone and beside others differ by rounding
SLACK_FILES = 3
FLAT = 1.15  # memory at the end over that after a tenth of the run, at most


@dataclass
class Served:
    """A server of two API processes."""

    process: subprocess.Popen[str]
    port: int
    log: list[str]

    def ask(self, method: str, path: str, body: object = None) -> tuple[int, bytes]:
        """Status and body of an answer over a connection of its own."""
        client = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        with contextlib.closing(client):
            data = None if body is None else json.dumps(body)
            client.request(method, path, data, {"Content-Type": "application/json"})
            answer = client.getresponse()
            return answer.status, answer.read()

    def children(self, module: str) -> list[int]:
        """Process ids of this server that run a module."""
        return sorted(processes.running(self.process.pid, module))

    def is_ready(self, times: int = 8) -> bool:
        """Whether every one of some fresh connections reaches a process that is ready."""
        with contextlib.suppress(OSError, http.client.HTTPException):
            return all(self.ask("GET", "/ready")[0] == 200 for _ in range(times))
        return False


def differs_by(audio: bytes, expected: bytes) -> float:
    """The largest difference of two answers in steps of 16 bits."""
    if len(audio) != len(expected):
        return float("inf")
    first, second = (np.frombuffer(data, "<i2").astype(np.int64) for data in (audio, expected))
    return float(np.abs(first - second).max())


def usage(pid: int) -> dict[str, float]:
    """Resident MB, descriptors and threads of a process."""
    proc = Path(f"/proc/{pid}")
    status = (proc / "status").read_text()
    resident = re.search(r"VmRSS:\s*(\d+)", status)
    return {
        "memory_mb": round(int(resident[1]) / 1024, 1) if resident else 0.0,
        "files": len(list((proc / "fd").iterdir())),
        "threads": len(list((proc / "task").iterdir())),
    }


@contextlib.contextmanager
def serving(folder: Path) -> Any:
    """`stentor serve` with two API processes, ready."""
    words = [sys.executable, "-m", "stentor", "serve", "dummy:toy", "--port", "0", "--threads", "1"]
    words += ["--memory-gb", "0.01", "--max-num-seqs", "2", "--api-processes", "2"]
    words += ["--voices-dir", str(folder)]
    server = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert server.stdout is not None
    log: list[str] = []
    port = 0
    for line in server.stdout:
        log.append(line)
        address = re.search(r"running on http://[\d.]+:(\d+)", line)
        if address:
            port = int(address[1])
            break
    reader = threading.Thread(
        target=log.extend, args=(iter(server.stdout.readline, ""),), daemon=True
    )
    reader.start()
    served = Served(server, port, log)
    try:
        wait_until(lambda: len(served.children(API)) == 1 and served.is_ready())
        yield served
    finally:
        server.send_signal(signal.SIGTERM)
        try:
            server.wait(READY_S)
        except subprocess.TimeoutExpired:
            server.kill()


def wait_until(condition: Any) -> None:
    """Return once a condition holds. TimeoutError after READY_S."""
    end = time.monotonic() + READY_S
    while not condition():
        if time.monotonic() > end:
            raise TimeoutError("the server is not ready")
        time.sleep(0.2)


@dataclass
class Run:
    """Clients of a server, and what they have been answered."""

    server: Served
    expected: bytes
    counts: Counter[str] = field(default_factory=Counter)
    stop: threading.Event = field(default_factory=threading.Event)
    examples: dict[str, str] = field(default_factory=dict)

    def client(self, pause: float) -> None:
        """Ask again and again until the run stops."""
        while not self.stop.wait(pause):
            self.counts[self.outcome()] += 1

    def outcome(self) -> str:
        """One word for an answer."""
        try:
            status, body = self.server.ask("POST", "/v1/audio/speech", SPEECH)
        except (OSError, http.client.HTTPException):
            return "broken off"
        if status == 200 and differs_by(body, self.expected) <= LSB:
            return "right"
        outcome = "wrong" if status == 200 else f"status {status}"
        if b'"engine_error"' in body:  # it was in the engine that was killed
            outcome = "engine error"
        example = body[:200].decode(errors="replace")
        if status == 200:
            example = f"{len(body)} bytes, differ by {differs_by(body, self.expected)}"
        self.examples.setdefault(outcome, example)
        return outcome

    def counter(self) -> float | None:
        """Requests that the server says it has answered."""
        with contextlib.suppress(OSError, http.client.HTTPException):
            status, body = self.server.ask("GET", "/metrics")
            lines = body.decode().splitlines()
            if status == 200:
                return sum(float(s.split()[-1]) for s in lines if s.startswith(COUNTER))
        return None

    def row(self, began: float, before: Counter[str]) -> dict[str, Any]:
        """A row of the curve: all processes, and the answers since the row before."""
        row: dict[str, Any] = {"seconds": round(time.monotonic() - began, 1)}
        named = {"first": [self.server.process.pid], "second": self.server.children(API)}
        named["engine"] = self.server.children(ENGINE)
        for name, pids in named.items():
            for pid in pids[:1]:
                with contextlib.suppress(OSError):
                    row[name] = usage(pid)
        row["answers"] = dict(self.counts - before)
        row["counter"] = self.counter()
        return row


def kill(pids: list[int]) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def watched(
    run: Run, minutes: float, every: float, kill_every: float
) -> tuple[list[Any], Counter[str]]:
    """The curve of a run whose engine is killed, and how often each process was."""
    rows, kills = [run.row(time.monotonic(), Counter())], Counter[str]()
    began = time.monotonic()
    next_kill = began + kill_every
    while time.monotonic() < began + 60 * minutes:
        before = run.counts.copy()
        time.sleep(every)
        rows.append(run.row(began, before))
        if time.monotonic() >= next_kill:
            next_kill += kill_every
            kill(run.server.children(ENGINE))
            kills["engine"] += 1
            if kills["engine"] % 4 == 0:
                kill(run.server.children(API))
                kills["second"] += 1
    return rows, kills


def judge(rows: list[dict[str, Any]], counts: Counter[str]) -> list[str]:
    """Differences between the end and the start."""
    problems = []
    wrong = [k for k in counts if k == "wrong" or (k.startswith("status 5") and k != "status 503")]
    problems += [f"{counts[k]} answers: {k}" for k in wrong]
    counters = [row["counter"] for row in rows if row["counter"] is not None]
    if counters != sorted(counters):
        problems.append("a counter of /metrics went back")
    warm = rows[len(rows) // 10 + 1]["first"]["memory_mb"]
    last = rows[-1]["first"]
    if last["memory_mb"] > FLAT * warm:
        problems.append(f"the first process grew from {warm} to {last['memory_mb']} MB")
    if last["files"] > rows[0]["first"]["files"] + SLACK_FILES:
        problems.append(f"the first process holds {last['files']} descriptors")
    return problems


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--clients", type=int, default=4)
    parser.add_argument(
        "--pause", type=float, default=0.5, help="seconds of a client between requests"
    )
    parser.add_argument("--every", type=float, default=10.0, help="seconds between rows")
    parser.add_argument("--kill-every", type=float, default=60.0, help="seconds between kills")
    parser.add_argument("--output", type=Path)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, serving(Path(folder)) as server:
        status, expected = server.ask("POST", "/v1/audio/speech", SPEECH)
        assert status == 200, expected
        run = Run(server, expected)
        clients = [
            threading.Thread(target=run.client, args=(args.pause,)) for _ in range(args.clients)
        ]
        for client in clients:
            client.start()
        rows, kills = watched(run, args.minutes, args.every, args.kill_every)
        run.stop.set()
        for client in clients:
            client.join()
        wait_until(lambda: len(server.children(API)) == 1 and server.is_ready())
        rows.append(run.row(time.monotonic() - 60 * args.minutes, run.counts))
        problems = judge(rows, run.counts)
        problems += [
            f"{pid} answers otherwise at the end" for pid in range(4) if run.outcome() != "right"
        ]
    errors = [line.strip() for line in server.log if "Traceback" in line]
    report = {
        "minutes": args.minutes,
        "clients": args.clients,
        "kill_every_s": args.kill_every,
        "kills": dict(kills),
        "answers": dict(run.counts),
        "examples": run.examples,
        "tracebacks": len(errors),
        "exit_code": server.process.returncode,
        "problems": problems,
        "python": platform.python_version(),
        "cores": os.cpu_count(),
        "load_at_end": os.getloadavg()[0],
        "curve": rows,
    }
    if args.output:
        args.output.parent.mkdir(parents=True, exist_ok=True)
        args.output.write_text(json.dumps(report) + "\n", encoding="utf-8")
    print(json.dumps({k: v for k, v in report.items() if k != "curve"}, indent=1))
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
