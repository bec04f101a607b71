"""Start and stop servers at random moments, and check that each ends in time with the right code.

    python scripts/stops.py                       500 stops, about two hours
    python scripts/stops.py --count 60 --busy 4   beside four busy loops

A stop comes while Python starts, while models are loaded, when they are ready, or while they speak,
by SIGTERM, SIGINT or two signals, to one API process or two, with one model or two. The log goes
through a pipe, as a supervisor reads it. Exits with 1 if a server ended late or with another code,
left a process behind, or logged a traceback.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import json
import os
import random
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

DRAIN_SECONDS = 2
EXIT_SECONDS = 15  # Limits.exit_seconds, after which a server ends itself with code 70
SLACK_SECONDS = 20  # for a machine whose cores are all busy
START_SECONDS = 120
ORPHAN_SECONDS = 10
MARK = "STENTOR_STOP"  # of every process of a server, in its environment
MOMENTS = ("starting", "loading", "ready", "speaking")
TERM, INT = signal.SIGTERM, signal.SIGINT
SIGNALS = ((TERM,), (INT,), (TERM, TERM), (INT, INT), (TERM, INT))
UTTERANCE = {"input": "A long text.", "max_frames": 4000, "min_frames": 4000, "guard": False}


@dataclass
class Stop:
    """One server, when and how it is stopped, and what came of that."""

    number: int
    moment: str
    signals: list[str]
    api_processes: int
    models: int
    delay: float  # seconds after the moment has come
    handled: bool = False  # the process had its handlers when the first signal came
    code: int | None = None
    seconds: float = 0.0  # from the first signal to the end
    problem: str = ""


def main() -> int:
    """Run the stops, print a table, and write each as JSON. Returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--count", type=int, default=500)
    parser.add_argument("--busy", type=int, default=0, help="busy loops beside the servers")
    parser.add_argument("--jobs", type=int, default=1, help="servers at a time")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, help="file for the raw figures")
    args = parser.parse_args()

    # a shell that runs this in the background has it ignore SIGINT, and servers would inherit that
    signal.signal(signal.SIGINT, signal.default_int_handler)
    stops = [planned(number, args.seed) for number in range(args.count)]
    with busy_loops(args.busy), ThreadPoolExecutor(args.jobs) as pool:
        for stop in pool.map(run, stops):
            if stop.problem:
                print(f"{stop.number}: {stop.problem}\n  {asdict(stop)}", flush=True)
            if (stop.number + 1) % 20 == 0:
                print(f"{stop.number + 1} of {args.count} stops", file=sys.stderr, flush=True)

    print(table(stops))
    if args.out is not None:
        facts = {"busy": args.busy, "jobs": args.jobs, "cpus": os.cpu_count()}
        args.out.write_text(json.dumps({**facts, "stops": [asdict(s) for s in stops]}) + "\n")
    return int(any(stop.problem for stop in stops))


def planned(number: int, seed: int) -> Stop:
    """The stop of a number, the same for the same seed."""
    chance = random.Random(f"{seed} {number}")
    moment = MOMENTS[number % len(MOMENTS)]
    return Stop(
        number=number,
        moment=moment,
        signals=[s.name for s in chance.choice(SIGNALS)],
        api_processes=chance.choice((1, 2)),
        models=chance.choice((1, 2)),
        delay=chance.uniform(0, 3.0 if moment in ("starting", "loading") else 0.5),
    )


@contextmanager
def busy_loops(count: int) -> Iterator[None]:
    """Keep `count` cores busy inside."""
    # killed below
    loops = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()


class Running:
    """A server of this script: its process, its log, and clients that keep it busy."""

    def __init__(self, stop: Stop, folder: str) -> None:
        self.mark = f"{os.getpid()}-{stop.number}"
        names = [f"model-{i}" for i in range(stop.models)]
        self.process = subprocess.Popen(
            [
                *(sys.executable, "-m", "stentor", "serve", *["dummy:toy"] * stop.models),
                *(word for name in names for word in ("--served-model-name", name)),
                *("--voices-dir", folder),
                *("--port", "0", "--memory-gb", "0.01", "--threads", "1", "--device", "cpu"),
                *("--api-processes", str(stop.api_processes)),
                *("--drain-seconds", str(DRAIN_SECONDS)),
            ],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={**os.environ, MARK: self.mark},
        )
        self.names = names
        self.lines: list[str] = []
        self._clients: list[threading.Thread] = []
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append(line)

    @property
    def log(self) -> str:
        return "".join(self.lines)

    @property
    def port(self) -> int:
        match = re.search(r"running on http://127\.0\.0\.1:(\d+)", self.log)
        assert match is not None
        return int(match.group(1))

    def wait_for(self, words: str) -> None:
        """Wait until the log has these words. RuntimeError if the server ends before."""
        deadline = time.monotonic() + START_SECONDS
        while words not in self.log:
            if self.process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"no {words!r} in the log")
            time.sleep(0.02)

    def speak(self) -> None:
        """Have every model speak, and another client request pages, each a line of the log."""
        first_audio = [threading.Event() for _ in self.names]
        for name, first in zip(self.names, first_audio, strict=True):
            self._begin(partial(self._stream, name, first))
        self._begin(self._ask)
        for first in first_audio:
            first.wait(START_SECONDS)

    def _begin(self, work: Callable[[], None]) -> None:
        client = threading.Thread(target=work, daemon=True)
        client.start()
        self._clients.append(client)

    def _stream(self, name: str, first: threading.Event) -> None:
        body = {**UTTERANCE, "model": name, "response_format": "pcm", "stream_format": "audio"}
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=START_SECONDS)
        with contextlib.suppress(OSError, http.client.HTTPException):
            connection.request("POST", "/v1/audio/speech", json.dumps(body))
            answer = connection.getresponse()
            while answer.read(256):
                first.set()
        first.set()

    def _ask(self) -> None:
        with contextlib.suppress(OSError, http.client.HTTPException):
            connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=START_SECONDS)
            while True:
                connection.request("GET", "/v1/models")
                connection.getresponse().read()

    def handles_signals(self) -> bool:
        """Whether the process has a handler for SIGTERM."""
        try:
            status = Path(f"/proc/{self.process.pid}/status").read_text(encoding="ascii")
        except OSError:
            return False
        caught = next(line for line in status.splitlines() if line.startswith("SigCgt:"))
        return bool(int(caught.split()[1], 16) >> (TERM - 1) & 1)

    def left_behind(self) -> list[int]:
        """Processes that this server has started and that still run."""
        pids = []
        for folder in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                if f"{MARK}={self.mark}\0".encode() in (folder / "environ").read_bytes():
                    pids.append(int(folder.name))
        return pids

    def close(self) -> None:
        """Kill what is left, and read the log to its end."""
        for pid in {self.process.pid, *self.left_behind()}:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.wait()
        self._reader.join()


def run(stop: Stop) -> Stop:
    """Start a server, stop it, and note how it ended."""
    with tempfile.TemporaryDirectory() as folder:
        server = Running(stop, folder)
        try:
            reach(server, stop.moment)
            time.sleep(stop.delay)
            send(server, stop)
            stop.problem = judge(server, stop)
        except RuntimeError as e:
            stop.problem = f"{e}: {server.log[-2000:]}"
        finally:
            server.close()
    if "Traceback" in server.log and stop.handled and not stop.problem:
        stop.problem = f"a traceback in the log: {server.log[-4000:]}"
    return stop


def reach(server: Running, moment: str) -> None:
    """Wait until a server has come to a moment of its life."""
    if moment == "loading":
        server.wait_for("loading models")
    if moment in ("ready", "speaking"):
        server.wait_for("Ready.")
    if moment == "speaking":
        server.speak()


def send(server: Running, stop: Stop) -> None:
    """Send the signals, and wait until the server has ended, for as long as it may take."""
    stop.handled = server.handles_signals()
    began = time.monotonic()
    for name in stop.signals:
        server.process.send_signal(signal.Signals[name])
        time.sleep(0.05 + 0.1 * stop.delay)
    with contextlib.suppress(subprocess.TimeoutExpired):
        stop.code = server.process.wait(DRAIN_SECONDS + EXIT_SECONDS + SLACK_SECONDS)
    stop.seconds = round(time.monotonic() - began, 3)


def judge(server: Running, stop: Stop) -> str:
    """Return the fault of a stop, or nothing."""
    codes = {0}
    if not stop.handled:  # Python had not come to the command: the system ends it, or Python
        codes |= {-TERM, -INT, 130, 1}  # 1: an interrupt inside Python's own start
    if stop.code is None:
        return f"it did not end: {server.log[-4000:]}"
    if stop.code not in codes:
        return f"exit code {stop.code}: {server.log[-4000:]}"
    deadline = time.monotonic() + ORPHAN_SECONDS
    while pids := server.left_behind():
        if time.monotonic() > deadline:
            return f"processes {pids} were left behind"
        time.sleep(0.05)
    return ""


def table(stops: Sequence[Stop]) -> str:
    """A Markdown table of the stops by their moment."""
    rows = ["| moment | stops | wrong | seconds, median | longest |", "|---|---|---|---|---|"]
    for moment in (*MOMENTS, "all"):
        group = [s for s in stops if moment in (s.moment, "all")]
        if group:
            wrong = sum(bool(s.problem) for s in group)
            seconds = [s.seconds for s in group]
            median = statistics.median(seconds)
            rows.append(
                f"| {moment} | {len(group)} | {wrong} | {median:.2f} | {max(seconds):.2f} |"
            )
    return "\n".join(rows)


if __name__ == "__main__":
    sys.exit(main())
