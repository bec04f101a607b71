"""Replicas beside the plain server, on devices of 20 ms steps: frames per second and first audio.

Run: python benchmarks/replicas/throughput.py [--replicas 1 2 8] [--rounds 3] [--processes 4] [--json FILE]
Needs: the packages of `stentor[ray]` and `stentor[bench]`. No GPU.

A device that sleeps (device.py) stands for a GPU, so that replicas do not divide the cores as engines on a CPU would.
The plain server and the replicas run side by side and are asked in turns, so that other load of the machine meets both.
Eight replicas with 20 ms steps need more than two cores have. With --step-ms 200 a core has ten times as long for each
frame, and the ratio is still that of replicas. Each round has one client alone with short streams, then twice as many
clients as there are slots, in several processes. Frames are counted as they come, after the first tenth of a round.
Each measurement says how busy the cores and the busiest process of clients were: what they had left says whether the
figure is the device's or the machine's. It also says the processor time of a frame, which other load of the machine
hardly changes: of the server's process, of HAProxy, and of the rest of Ray.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # this tree, also where none is installed
from benchmarks.replicas import cpu, device, streams
from benchmarks.replicas.cluster import QUICK_END, Cluster, answers, application, cluster, marked, wait
from benchmarks.replicas.crowd import Crowd, Until

APP = "benchmarks.replicas.device:app"
BEGIN = 10  # the first part of a round that does not count: a tenth
WARM_S = 1.0  # in which clients begin streams that do not count
ALONE_FRAMES = 10  # of a stream whose first audio is all that counts


@contextlib.contextmanager
def plain(slots: int, port: int) -> Iterator[tuple[str, int]]:
    """The address and the process of a plain server on such a device."""
    words = ["serve", "dummy:toy", "--port", str(port), "--max-num-seqs", str(slots), "--no-log-requests"]
    words += ["--device", "cpu", "--threads", "1"]
    with subprocess.Popen([sys.executable, device.__file__, *words]) as process:
        try:
            url = f"http://127.0.0.1:{port}"
            wait(lambda: answers(url + "/ready"), lambda: "the plain server does not answer")
            yield url, process.pid
        finally:
            process.send_signal(signal.SIGTERM)


def alone(url: str, args: argparse.Namespace) -> dict[str, Any]:
    """One client: first audio."""
    done = asyncio.run(streams.load(url, 1, ALONE_FRAMES, lambda begun: begun < args.alone))
    first = [s.first for s in done if s.first is not None]
    return {"streams": len(done), "broken": broken(done), "first_audio_ms": streams.milliseconds(first)}


def full(
    url: str, clients: int, processes: dict[str, list[int]], crowd: Crowd, args: argparse.Namespace
) -> dict[str, Any]:
    """Streams in every slot, and others that wait, for some seconds."""
    began, idle, before = time.time(), idle_seconds(), cpu.used(processes)
    end = began + args.seconds
    done, busiest = crowd.load(url, clients, args.frames, Until(end))
    took, after = time.time() - began, cpu.used(processes)
    frames = args.frames * (len(done) - broken(done))
    begin = began + args.seconds / BEGIN  # every slot speaks, and a stream that ends is followed by one that waits
    return {
        "clients": clients,
        "streams": len(done),
        "broken": broken(done),
        "frames_per_s": round(streams.frames_between(done, begin, end) / (end - begin), 1),
        "cpu_us_per_frame": {name: round(1e6 * (after[name] - before[name]) / max(1, frames)) for name in after},
        "first_audio_ms": streams.milliseconds([s.first for s in done if s.first is not None]),
        "busiest_client_of_one_core": round(busiest, 2),
        "cores_idle": round((idle_seconds() - idle) / took / (os.cpu_count() or 1), 3),
        "load_average": os.getloadavg()[0],
    }


def broken(done: list[streams.Stream]) -> int:
    return sum(not s.complete for s in done)


def idle_seconds() -> float:
    """Seconds that all cores together were idle since the machine started (Linux)."""
    cpu = Path("/proc/stat").read_text(encoding="utf-8").splitlines()[0].split()
    return float(cpu[4]) / os.sysconf("SC_CLK_TCK")


def compare(
    running: Cluster, server: tuple[str, int], count: int, crowd: Crowd, args: argparse.Namespace
) -> dict[str, Any]:
    """So many replicas and the plain server, in turns."""
    given = {"model": "dummy:toy", "max-num-seqs": args.slots, "log-requests": False, "device": "cpu", "threads": 1}
    running.deploy(application(given, APP, num_replicas=count))
    running.running("stentor", count)
    ours = cpu.kinds(marked(running.mark, running.process.pid))
    arms = {
        "plain": (server[0], 2 * args.slots, {"server": [server[1]]}),
        "replicas": (running.url, 2 * args.slots * count, ours),
    }
    rows: dict[str, Any] = {name: {"alone": [], "full": []} for name in arms}
    for url, clients, _ in arms.values():
        crowd.load(url, clients, args.frames, Until(time.time() + WARM_S))
    for i in range(args.rounds):
        for name in sorted(arms, reverse=bool(i % 2)):
            url, clients, processes = arms[name]
            rows[name]["alone"].append(alone(url, args))
            rows[name]["full"].append(full(url, clients, processes, crowd, args))
    rates = {name: median(r["frames_per_s"] for r in row["full"]) for name, row in rows.items()}
    first = {name: median(r["first_audio_ms"]["p50"] for r in row["alone"]) for name, row in rows.items()}
    summary = {
        "replicas": count,
        "throughput_of_plain": round(rates["replicas"] / rates["plain"], 3),
        "first_audio_more_ms": round(first["replicas"] - first["plain"], 1),
        "most_possible_frames_per_s": round(count * args.slots / (args.step_ms / 1e3), 1),
        "cpu_us_per_frame": {
            kind: median(r["cpu_us_per_frame"][kind] for r in row["full"])
            for row in rows.values()
            for kind in row["full"][0]["cpu_us_per_frame"]
        },
        "busiest_client_of_one_core": max(
            r["busiest_client_of_one_core"] for row in rows.values() for r in row["full"]
        ),
        "cores_idle": median(r["cores_idle"] for r in rows["replicas"]["full"]),
    }
    print(json.dumps(summary), flush=True)
    return summary | {"rounds": rows}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--replicas", type=int, nargs="+", default=[1, 2, 8])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--alone", type=int, default=8, help="streams of one client alone, per round")
    parser.add_argument("--seconds", type=float, default=10.0, help="of full load, per round")
    parser.add_argument("--slots", type=int, default=4, help="of each replica and of the plain server")
    parser.add_argument("--frames", type=int, default=60, help="of each stream")
    parser.add_argument("--processes", type=int, default=4, help="of clients")
    parser.add_argument("--step-ms", type=float, default=20.0, help="how long the device takes for a step")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    os.environ[device.STEP] = str(args.step_ms)
    with (
        cluster(QUICK_END) as running,
        plain(args.slots, running.place.ports[9]) as server,
        Crowd(args.processes) as crowd,
    ):
        rows: list[dict[str, Any]] = []
        for count in args.replicas:
            rows.append(compare(running, server, count, crowd, args))
            if args.json:  # before the cluster ends, which takes a while
                row = {"settings": vars(args) | {"json": None}, "cores": os.cpu_count(), "rows": rows}
                args.json.write_text(json.dumps(row, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
