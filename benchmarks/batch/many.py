"""Speak many short items with `stentor batch`, in this process or over Ray, and compare with the engine alone. No GPU.

Run: python benchmarks/batch/many.py [--items 10000] [--slots 32] [--step-ms 20] [--format wav] [--json FILE]
     python benchmarks/batch/many.py --step-ms 0 --replicas 2 [--json FILE]
Needs: stentor, and its extra ray for --replicas. Files go to a temporary folder (TMPDIR).

The model is dummy:toy. After each step of its language model the engine's thread sleeps, as it would wait for a GPU.
The engine alone is the same TTS, called from as many threads as the batch has, with the same texts, seeds and options,
and nothing is written. Memory is that of the process, without files that are mapped. With --replicas it is that of the
replicas, whose engines do not sleep. Processor time of an item is that of all processes, but for the start of Ray.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # this tree, also where none is installed
import stentor
from benchmarks.replicas import cpu
from benchmarks.replicas.apart import apart
from benchmarks.replicas.cluster import marked
from benchmarks.sampling import Sampling
from stentor.batch.item import derived_seed
from stentor.batch.speaker import AHEAD
from stentor.cli import main as command
from stentor.engine.launcher import Launcher

MODEL = "dummy:toy"
SPEED, CPU = "audio_seconds_per_second", "cpu_ms_per_item"
ROOT = Path(__file__).resolve().parents[2]
WARM = 0.2  # of the items that are spoken before memory counts


def items(count: int) -> list[dict[str, Any]]:
    draw = random.Random(0)
    return [{"id": f"i{n:06}", "text": f"Item {n}.", "max_frames": draw.randint(8, 24)} for n in range(count)]


@contextmanager
def slow_steps(seconds: float) -> Iterator[Counter[int]]:
    """Every decode step takes so much longer. Counts steps by their rows."""
    rows: Counter[int] = Counter()
    decode = Launcher._decode

    def slow(self: Launcher, sequences: list[Any]) -> Any:
        rows[len(sequences)] += 1
        time.sleep(seconds)
        return decode(self, sequences)

    with mock.patch.object(Launcher, "_decode", slow):
        yield rows


def engine_alone(asked: list[dict[str, Any]], slots: int) -> dict[str, Any]:
    with stentor.TTS(MODEL, max_num_seqs=slots, threads=1) as tts, ThreadPoolExecutor(AHEAD * slots) as pool:

        def speak(item: dict[str, Any]) -> float:
            seed = derived_seed(0, item["id"])
            return tts.generate(item["text"], max_frames=item["max_frames"], seed=seed).duration

        list(pool.map(speak, asked[:slots]))
        cpu_before, began = time.process_time(), time.perf_counter()
        seconds = sum(pool.map(speak, sorted(asked, key=lambda i: -len(i["text"]))))
        took = time.perf_counter() - began
        used = 1000 * (time.process_time() - cpu_before) / len(asked)
    row = {"items": len(asked), "audio_seconds": seconds, "seconds": took, SPEED: seconds / took}
    return {**row, CPU: used}


class Sampler(Sampling):
    """Memory, threads and descriptors of processes by items that have been listed. pids: asked for each time."""

    def __init__(self, manifest: Path, pids: Callable[[], list[int]]) -> None:
        super().__init__(1.0)
        self.manifest, self.found = manifest, list[dict[str, int]]()
        self._pids = pids

    def read(self) -> None:
        size = self.manifest.stat().st_size if self.manifest.exists() else 0
        counts = Counter({"kib": 0, "threads": 0, "descriptors": 0})
        for pid in self._pids():
            counts.update(_held(pid))
        self.found.append({"manifest_bytes": size, **counts})

    def figures(self) -> dict[str, Any]:
        """Of the time after the first items."""
        speaking = [s for s in self.found if s["manifest_bytes"] and s["kib"]]
        late = speaking[int(WARM * len(speaking)) :]
        half = len(late) // 2
        return {
            "kib_at_20_percent": late[0]["kib"],
            "kib_at_the_end": late[-1]["kib"],
            "kib_median_of_halves": [statistics.median(s["kib"] for s in part) for part in (late[:half], late[half:])],
            "threads": max(s["threads"] for s in late),
            "descriptors": max(s["descriptors"] for s in late),
        }


def _held(pid: int) -> dict[str, int]:
    """What a process has. Nothing of one that has ended."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
        values = dict(line.split(":", 1) for line in status.splitlines())
        descriptors = len(os.listdir(f"/proc/{pid}/fd"))
    except OSError:
        return {}
    return {"kib": int(values["RssAnon"].split()[0]), "threads": int(values["Threads"]), "descriptors": descriptors}


def batch(asked: list[dict[str, Any]], slots: int, form: str, folder: Path) -> dict[str, Any]:
    """In this process."""
    out, words = given(asked, slots, form, folder)
    cpu_before, began = time.process_time(), time.perf_counter()
    with Sampler(out / "manifest.jsonl", lambda: [os.getpid()]) as sampler:
        code = command(words)
    took = time.perf_counter() - began
    used = 1000 * (time.process_time() - cpu_before) / len(asked)
    return {"exit_code": code, **listed(asked, out, took), **sampler.figures(), CPU: used}


def batch_over_ray(asked: list[dict[str, Any]], slots: int, form: str, folder: Path, replicas: int) -> dict[str, Any]:
    """In replicas. The time is from the first item that is listed to the last: Ray starts before that."""
    out, words = given(asked, slots, form, folder)
    manifest = out / "manifest.jsonl"
    with apart() as place, (folder / "log").open("w") as log:
        path = {"PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
        started = [sys.executable, "-m", "stentor", *words, "--replicas", str(replicas)]
        process = subprocess.Popen(
            started, env={**place.environment, **path}, stdout=log, stderr=log, start_new_session=True
        )

        def pids() -> list[int]:
            return marked(place.mark, process.pid)

        while process.poll() is None and not (manifest.exists() and manifest.stat().st_size):
            time.sleep(0.1)
        first, began, before = len(manifest.read_text().splitlines()), time.perf_counter(), total(pids())
        used = before
        with Sampler(manifest, lambda: [pid for pid in pids() if speaks(pid)]) as sampler:
            while process.poll() is None:
                used, took = max(used, total(pids())), time.perf_counter() - began
                time.sleep(2.0)
    row = {"exit_code": process.returncode, **listed(asked, out, took), **sampler.figures()}
    return {**row, "listed_before_the_time": first, CPU: 1000 * (used - before) / (len(asked) - first)}


def total(pids: list[int]) -> float:
    return sum(map(cpu.seconds, pids))


def speaks(pid: int) -> bool:
    try:
        return b"ray::Replica" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False


def given(asked: list[dict[str, Any]], slots: int, form: str, folder: Path) -> tuple[Path, list[str]]:
    """The folder of the run and the words of the command, with its input written."""
    source, out = folder / "in.jsonl", folder / "out"
    source.write_text("".join(json.dumps(item) + "\n" for item in asked))
    words = ["batch", str(source), str(out), "--model", MODEL, "--max-num-seqs", str(slots), "--format", form]
    return out, [*words, "--threads", "1"]


def listed(asked: list[dict[str, Any]], out: Path, took: float) -> dict[str, Any]:
    """Each id is listed once, in order, with its audio."""
    rows = [json.loads(line) for line in (out / "manifest.jsonl").read_text().splitlines()]
    assert [row["id"] for row in rows] == [item["id"] for item in asked]
    assert len(list((out / "audio").iterdir())) == len(asked)
    audio = sum(row["seconds"] for row in rows)
    return {"items": len(rows), "audio_seconds": audio, "seconds": took, SPEED: audio / took}


def filled(rows: Counter[int], slots: int) -> dict[str, float]:
    steps = sum(rows.values())
    if not steps:  # in other processes
        return {}
    return {
        "steps": steps,
        "mean_rows": sum(n * count for n, count in rows.items()) / steps,
        "share_of_full_steps": rows[slots] / steps,
    }


def _per_step(arm: dict[str, Any]) -> float:
    return float(arm["audio_seconds"] / arm["steps"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--items", type=int, default=10_000)
    parser.add_argument("--alone", type=int, default=1_000, help="items of the engine alone")
    parser.add_argument("--slots", type=int, default=32)
    parser.add_argument("--step-ms", type=float, default=20.0)
    parser.add_argument("--replicas", type=int, help="of Ray. None: this process")
    parser.add_argument("--format", default="wav")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    asked, result = items(args.items), {"arguments": {k: str(v) for k, v in vars(args).items()}}
    result["load_average"] = os.getloadavg()[0]
    for name in ("alone_before", "batch", "alone_after"):
        with slow_steps(args.step_ms / 1000) as rows, tempfile.TemporaryDirectory() as folder:
            if name != "batch":
                result[name] = engine_alone(asked[: args.alone], args.slots)
            elif args.replicas is None:
                result[name] = batch(asked, args.slots, args.format, Path(folder))
            else:
                result[name] = batch_over_ray(asked, args.slots, args.format, Path(folder), args.replicas)
            result[name] |= filled(rows, args.slots)
        print(name, json.dumps(result[name]), flush=True)
    alone = [result[name] for name in ("alone_before", "alone_after")]
    best, spent = (pick(a[key] for a in alone) for pick, key in ((max, SPEED), (min, CPU)))
    result["share_of_the_engine_alone"] = result["batch"][SPEED] / best
    result["share_by_processor_time"] = spent / result["batch"][CPU]
    if args.replicas is None:
        result["share_of_its_audio_per_step"] = _per_step(result["batch"]) / _per_step(result["alone_before"])
    print({name: value for name, value in result.items() if name.startswith("share")})
    if args.json is not None:
        args.json.parent.mkdir(parents=True, exist_ok=True)
        args.json.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
