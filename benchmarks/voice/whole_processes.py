"""Commands in turns: CPU seconds and peak memory of whole processes.

    python benchmarks/voice/whole_processes.py COMMANDS.json --rounds 7 --json OUT.json

COMMANDS.json has "texts", such as {"12": "...", "60": "..."}, and "commands", each a list of words in
which {text} and {out} are replaced. CPU time is user and system, which other work on the machine
changes least. Each round runs every command once with each text.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any


def run(words: list[str], out: Path) -> dict[str, float]:
    """Run one process. Returns its CPU and wall seconds, its peak MB, and the seconds of audio."""
    started = time.perf_counter()
    process = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = status
    if status:
        raise SystemExit(f"exit status {status}: {words}")
    return {
        "cpu_s": usage.ru_utime + usage.ru_stime,
        "wall_s": time.perf_counter() - started,
        "peak_mb": usage.ru_maxrss / 1024,
        "bytes": out.stat().st_size,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("commands", type=Path)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--json", type=Path, required=True)
    args = parser.parse_args()
    plan: dict[str, Any] = json.loads(args.commands.read_text(encoding="utf-8"))
    out = Path(tempfile.mkdtemp()) / "out.wav"
    runs: dict[str, list[dict[str, float]]] = {}
    for _ in range(args.rounds):
        for size, text in plan["texts"].items():
            for name, command in plan["commands"].items():
                words = [word.format(text=text, out=out) for word in command]
                runs.setdefault(f"{name}, {size} words", []).append(run(words, out))
        args.json.write_text(json.dumps(runs, indent=1) + "\n", encoding="utf-8")
    for key, rows in sorted(runs.items()):
        cpu = statistics.median(row["cpu_s"] for row in rows)
        memory = statistics.median(row["peak_mb"] for row in rows)
        print(f"{key}: {cpu:.2f} CPU s, {memory:.0f} MB, {len(rows)} rounds")


if __name__ == "__main__":
    main()
