"""Streams while replicas are replaced: rolling updates, scaling down, and a lost device.

Run: python benchmarks/replicas/rolling.py [--streams 1000] [--clients 32] [--json FILE]
Needs: the packages of `stentor[ray]` and `stentor[bench]`. No GPU.

Clients stream without a pause from two replicas on devices of 20 ms steps (device.py). First the device of one is lost:
its process ends with exit code 70. The streams that it spoke break, no others, and a new process takes its place. Then
every replica is replaced twice, and one is taken away. The load goes on until there were as many streams as asked for.
None may break.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(
    0, str(Path(__file__).resolve().parents[2])
)  # this tree, also where none is installed
from benchmarks.replicas import device, streams
from benchmarks.replicas.cluster import Cluster, application, cluster, wait

APP = "benchmarks.replicas.device:app"
QUIET_S = 5.0  # of load before and after what is measured


class Run:
    """A cluster under load. What happens is noted with its times."""

    def __init__(self, running: Cluster, args: argparse.Namespace) -> None:
        self.cluster, self.args = running, args
        self.timeout = 600

    def deploy(self, replicas: int, *, anew: bool) -> None:
        """Deploy so many replicas. anew: with another argument, so that Serve replaces all of them."""
        self.timeout += anew
        given = {
            "model": "dummy:toy",
            "max-num-seqs": self.args.slots,
            "request-timeout": self.timeout,
        }
        before = frozenset(self.cluster.replicas("stentor")) if anew else frozenset()
        self.cluster.deploy(application({**given, "on-crash": "exit"}, APP, num_replicas=replicas))
        self.cluster.running("stentor", replicas, before)

    async def under_load(self, work: Callable[[], dict[str, Any]], least: int) -> dict[str, Any]:
        """Stream while `work` runs in a thread, and until there were `least` streams."""
        stop, began = asyncio.Event(), time.monotonic()
        end = time.monotonic() + self.args.longest

        def going(begun: int) -> bool:
            return time.monotonic() < end and (begun < least or not stop.is_set())

        loading = asyncio.create_task(
            streams.load(self.cluster.url, self.args.clients, streams.toy(self.args.frames), going)
        )
        talking = asyncio.create_task(streams.talk(self.cluster.url, lambda: not stop.is_set()))
        try:
            await asyncio.sleep(QUIET_S)
            noted = await asyncio.to_thread(work)
            await asyncio.sleep(QUIET_S)
        finally:
            stop.set()
        done = await loading
        noted |= {"load_average": os.getloadavg()[0], "websocket": await talking}
        return noted | figures(done, began)

    def update(self) -> dict[str, Any]:
        """Two rolling updates, and one replica fewer."""
        took, count = {}, self.args.replicas
        for name, replicas, anew in (
            ("update 1", count, True),
            ("update 2", count, True),
            ("scale down", count - 1, False),
        ):
            began = time.monotonic()
            self.deploy(replicas, anew=anew)
            took[f"{name}, s"] = round(time.monotonic() - began, 1)
        return took

    def lose(self, asked: Path) -> dict[str, Any]:
        """One replica loses its device. Returns when as many as before take requests."""
        before = self.cluster.replicas("stentor")
        asked.touch()
        lost = asked.with_suffix(".lost")
        wait(lost.exists, lambda: "no device has failed")
        wait(lambda: set(self.cluster.replicas("stentor")) - set(before), lambda: str(before))
        self.cluster.running("stentor", len(before), frozenset())
        told = json.loads(lost.read_text(encoding="utf-8"))
        return {
            "streams of the lost device": told["streams"],
            "replaced after, s": round(time.monotonic() - told["at"], 1),
        }


def figures(done: list[streams.Stream], began: float) -> dict[str, Any]:
    """Outcomes of streams."""
    faults = [s for s in done if not s.complete]
    return {
        "streams": len(done),
        "complete": len(done) - len(faults),
        "seconds": round(time.monotonic() - began, 1),
        "first_audio_ms": streams.milliseconds([s.first for s in done if s.first is not None]),
        "faults": [
            {"times": n, "status": status, "fault": fault}
            for (status, fault), n in Counter((s.status, s.fault) for s in faults).items()
        ],
    }


def measure(args: argparse.Namespace) -> dict[str, Any]:
    row: dict[str, Any] = {"settings": vars(args) | {"json": None}, "cores": os.cpu_count()}
    with tempfile.TemporaryDirectory() as folder:
        asked = Path(folder) / "lose"
        os.environ |= {device.STEP: str(args.step_ms), device.LOSE: str(asked)}
        with cluster() as running:
            run = Run(running, args)
            run.deploy(args.replicas, anew=False)
            row["lost"] = asyncio.run(run.under_load(lambda: run.lose(asked), 0))
            print(json.dumps(row["lost"]), flush=True)
            row["updates"] = asyncio.run(run.under_load(run.update, args.streams))
            print(json.dumps(row["updates"]), flush=True)
    return row


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--streams", type=int, default=1000, help="at least, through the updates")
    parser.add_argument("--clients", type=int, default=32, help="streams at once")
    parser.add_argument("--replicas", type=int, default=2)
    parser.add_argument(
        "--longest", type=float, default=900.0, help="seconds after which no stream begins"
    )
    parser.add_argument("--slots", type=int, default=16, help="of each replica")
    parser.add_argument("--frames", type=int, default=100, help="of each stream")
    parser.add_argument(
        "--step-ms", type=float, default=20.0, help="how long the device takes for a step"
    )
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    row = measure(args)
    if args.json:
        args.json.write_text(json.dumps(row, indent=1) + "\n", encoding="utf-8")
    updated, lost = (row[name]["streams"] - row[name]["complete"] for name in ("updates", "lost"))
    others = max(0, lost - row["lost"]["streams of the lost device"])
    print(
        f"broken by updates: {updated}; broken by a lost replica beside its own streams: {others}"
    )
    return int(updated + others > 0)


if __name__ == "__main__":
    sys.exit(main())
