"""A million lines through `stentor batch`: does memory grow, and how long does a resumed run take to begin?

Run: python benchmarks/batch_memory.py --lines 1000000 --no-sync --output FILE
     python benchmarks/batch_memory.py --lines 1000000 --wrong --output FILE
Needs: Linux. No GPU. 5 GB of disk for a million files of audio.

The toy model speaks a line of 0.03 s. The run is killed (SIGKILL) when half of its items are listed, resumed, and
resumed once more when nothing is left to do. --wrong: all lines but the first cannot be spoken, and nothing is killed.
--no-sync leaves out `os.fsync`, for which a slow disk takes milliseconds: memory is what is measured, and no power is
lost. Each run's curve has seconds, CPU seconds, resident MiB and the MiB of its manifest.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

TOY = ("--model", "dummy:toy", "--min-frames", "2", "--max-frames", "3", "--max-num-seqs", "64")
NO_SYNC = "import os, sys; os.fsync = lambda handle: None; from stentor.cli import main; sys.exit(main(sys.argv[1:]))"
ROW_BYTES = 440  # of an item of the manifest that was spoken


def lines(path: Path, count: int, wrong: bool) -> None:
    """Write the input."""
    with path.open("w", encoding="utf-8") as file:
        for number in range(count):
            item: dict[str, Any] = {"id": f"i{number:07}", "text": f"Line number {number}."}
            file.write(json.dumps(item | ({"speed": 99} if wrong and number else {})) + "\n")


def curve(command: list[str], manifest: Path, every: float, kill_bytes: float) -> dict[str, Any]:
    """Run the command, and look at it every so many seconds. It is killed once its manifest has `kill_bytes`."""
    began, points = time.monotonic(), []
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        while process.poll() is None:
            try:
                points.append({"seconds": round(time.monotonic() - began, 1), **_look(process.pid)})
            except (OSError, AttributeError):  # it has just ended
                break
            size = manifest.stat().st_size if manifest.exists() else 0
            points[-1]["manifest_mb"] = round(size / 2**20, 1)
            if size >= kill_bytes:
                process.kill()
            try:
                process.wait(every)
            except subprocess.TimeoutExpired:
                continue
        told = process.stdout.read().strip() if process.stdout else ""
    seconds = round(time.monotonic() - began, 1)
    return {"exit_code": process.returncode, "seconds": seconds, "told": told, "curve": points}


def _look(pid: int) -> dict[str, float]:
    found = re.search(r"VmRSS:\s*(\d+)", Path(f"/proc/{pid}/status").read_text())
    words = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    cpu = (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")
    return {"cpu_seconds": cpu, "memory_mb": int(found[1]) // 1024 if found else 0}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--lines", type=int, default=1_000_000)
    parser.add_argument("--wrong", action="store_true")
    parser.add_argument("--no-sync", action="store_true")
    parser.add_argument(
        "--every", type=float, default=5.0, help="seconds between two points of the curve"
    )
    parser.add_argument("--output", type=Path, required=True)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(dir="/var/tmp") as temporary:
        source, folder = Path(temporary) / "lines.jsonl", Path(temporary) / "out"
        manifest = folder / "manifest.jsonl"
        lines(source, args.lines, args.wrong)
        start = ["-c", NO_SYNC] if args.no_sync else ["-m", "stentor"]
        command = [sys.executable, *start, "batch", str(source), str(folder), *TOY]
        never, half = float("inf"), args.lines * ROW_BYTES / 2
        runs = {"first": curve(command, manifest, args.every, never if args.wrong else half)}
        if not args.wrong:
            resumed = [*command, "--resume"]
            runs["resumed"] = curve(resumed, manifest, args.every, never)
            runs["nothing left"] = curve(resumed, manifest, args.every, never)
        with manifest.open("rb") as rows:
            listed = sum(1 for _ in rows)
    settings = {"lines": args.lines, "wrong": args.wrong, "no_sync": args.no_sync}
    args.output.write_text(
        json.dumps({**settings, "listed": listed, "runs": runs}) + "\n", encoding="utf-8"
    )
    for name, run in runs.items():
        memory = [point["memory_mb"] for point in run["curve"]]
        print(
            f"{name}: code {run['exit_code']}, {run['seconds']} s, at most {max(memory)} MiB. {run['told']}"
        )


if __name__ == "__main__":
    main()
