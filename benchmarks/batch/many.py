"""Speak many short items with `stentor batch` in this process, and compare with the engine alone. No GPU.

Run: python benchmarks/batch/many.py [--items 10000] [--slots 32] [--step-ms 20] [--format wav] [--json FILE]
Needs: stentor. Files go to a temporary folder (TMPDIR).

The model is dummy:toy. After each step of its language model the engine's thread sleeps, as it would wait for a GPU.
The engine alone is the same TTS, called from as many threads as the batch has, with the same texts, seeds and options,
and nothing is written. Memory is that of the process, without files that are mapped.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # this tree, also where none is installed
import stentor
from stentor.batch.item import derived_seed
from stentor.batch.speaker import AHEAD
from stentor.cli import main as command
from stentor.engine.launcher import Launcher

MODEL = "dummy:toy"
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
        began = time.perf_counter()
        seconds = sum(pool.map(speak, sorted(asked, key=lambda i: -len(i["text"]))))
        took = time.perf_counter() - began
    return {"items": len(asked), "audio_seconds": seconds, "seconds": took, "audio_seconds_per_second": seconds / took}


class Sampler:
    """Memory, threads and descriptors of this process by items that have been listed."""

    def __init__(self, manifest: Path) -> None:
        self.manifest, self.found, self._over = manifest, list[dict[str, int]](), threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Sampler:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._over.wait(1.0):
            status = Path("/proc/self/status").read_text()
            kib = int(next(line for line in status.splitlines() if line.startswith("RssAnon")).split()[1])
            size = self.manifest.stat().st_size if self.manifest.exists() else 0
            counts = {"threads": threading.active_count(), "descriptors": len(os.listdir("/proc/self/fd"))}
            self.found.append({"manifest_bytes": size, "kib": kib, **counts})


def batch(asked: list[dict[str, Any]], slots: int, form: str, folder: Path) -> dict[str, Any]:
    source, out = folder / "in.jsonl", folder / "out"
    source.write_text("".join(json.dumps(item) + "\n" for item in asked))
    words = ["batch", str(source), str(out), "--model", MODEL, "--max-num-seqs", str(slots), "--format", form]
    began = time.perf_counter()
    with Sampler(out / "manifest.jsonl") as sampler:
        code = command([*words, "--threads", "1"])
    took = time.perf_counter() - began
    rows = [json.loads(line) for line in (out / "manifest.jsonl").read_text().splitlines()]
    assert [row["id"] for row in rows] == [item["id"] for item in asked]
    assert len(list((out / "audio").iterdir())) == len(asked)
    speaking = [s for s in sampler.found if s["manifest_bytes"] > 0]
    late = speaking[int(WARM * len(speaking)) :]
    half = len(late) // 2
    return {
        "exit_code": code,
        "items": len(rows),
        "audio_seconds": sum(row["seconds"] for row in rows),
        "seconds": took,
        "audio_seconds_per_second": sum(row["seconds"] for row in rows) / took,
        "kib_at_20_percent": late[0]["kib"],
        "kib_at_the_end": late[-1]["kib"],
        "kib_median_of_halves": [statistics.median(s["kib"] for s in part) for part in (late[:half], late[half:])],
        "threads": max(s["threads"] for s in late),
        "descriptors": max(s["descriptors"] for s in late),
    }


def filled(rows: Counter[int], slots: int) -> dict[str, float]:
    steps = sum(rows.values())
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
    parser.add_argument("--format", default="wav")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    asked, result = items(args.items), {"arguments": {k: str(v) for k, v in vars(args).items()}}
    result["load_average"] = os.getloadavg()[0]
    for name in ("alone_before", "batch", "alone_after"):
        with slow_steps(args.step_ms / 1000) as rows, tempfile.TemporaryDirectory() as folder:
            cpu = time.process_time()
            if name == "batch":
                found = batch(asked, args.slots, args.format, Path(folder))
            else:
                found = engine_alone(asked[: args.alone], args.slots)
            found["cpu_ms_per_item"] = 1000 * (time.process_time() - cpu) / found["items"]
            result[name] = {**found, **filled(rows, args.slots)}
        print(name, json.dumps(result[name]), flush=True)
    best = max(result[name]["audio_seconds_per_second"] for name in ("alone_before", "alone_after"))
    result["share_of_the_engine_alone"] = result["batch"]["audio_seconds_per_second"] / best
    result["share_of_its_audio_per_step"] = _per_step(result["batch"]) / _per_step(result["alone_before"])
    print({name: value for name, value in result.items() if name.startswith("share")})
    if args.json is not None:
        args.json.parent.mkdir(parents=True, exist_ok=True)
        args.json.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
