"""Measure the built-in voice on a CPU: time to load, time to first audio, time of a whole request, memory.

Run: python benchmarks/voice/voice_cpu.py [--threads 1 2] [--processes 3] [--json voice_cpu.json]
Needs: nothing but stentor and the built-in voice, which is part of it.

Each thread count is measured in fresh processes, and the median counts. `load_average` shows whether the machine was
busy.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import time
from pathlib import Path

sys.path.insert(
    0, str(Path(__file__).resolve().parents[2])
)  # this tree, also where none is installed

TEXT = "When the rain stopped, we walked slowly along the river."  # ten words
REQUESTS = 5
UNITS = {"load_s": "s", "first_audio_s": "s", "rtf": "", "peak_mb": "MB"}


def speak(threads: int) -> dict[str, float]:
    """One process: load, stream the first request, then whole requests one after another.

    import_s: torch and stentor. load_s: `TTS()` after that. cold_first_audio_s: of the very first request. cpu_load_s
    and cpu_rtf are CPU time, which other work on the machine changes less.
    """
    started = time.perf_counter()
    from stentor import TTS  # `import stentor` alone does not import torch

    imported, before = time.perf_counter(), time.process_time()
    with TTS(device="cpu", threads=threads) as tts:
        loaded, cpu_load = time.perf_counter(), time.process_time() - before
        firsts, wholes, audio = [], [], 0.0
        for seed in range(REQUESTS):
            begun = time.perf_counter()
            stream = tts.stream(TEXT, seed=seed)
            next(stream)
            firsts.append(time.perf_counter() - begun)
            for _ in stream:
                pass
        before = time.process_time()
        for seed in range(REQUESTS):
            begun = time.perf_counter()
            audio += tts.generate(TEXT, seed=seed).duration
            wholes.append(time.perf_counter() - begun)
        cpu = time.process_time() - before
    return {
        "import_s": imported - started,
        "load_s": loaded - imported,
        "cpu_load_s": cpu_load,
        "cold_first_audio_s": firsts[0],
        "first_audio_s": statistics.median(firsts[1:]),
        "request_s": statistics.median(wholes),
        "audio_s": audio / REQUESTS,
        "rtf": sum(wholes) / audio,
        "cpu_rtf": cpu / audio,
        "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3,  # Linux counts in kB
    }


def measure(threads: int, processes: int) -> dict[str, float]:
    """Medians over fresh processes. The first one, which fills the file cache, does not count."""
    runs = []
    for _ in range(processes + 1):
        command = [sys.executable, __file__, "--speak", str(threads)]
        done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
        runs.append(json.loads(done.stdout.splitlines()[-1]))
    medians = {name: round(statistics.median(run[name] for run in runs[1:]), 4) for name in runs[0]}
    return {"threads": threads, **medians, "load_average": round(os.getloadavg()[0], 2)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--processes", type=int, default=3)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--speak", type=int, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.speak:
        print(json.dumps(speak(args.speak)))
        return
    from stentor.bench.report.facts import client_facts

    results = [measure(threads, args.processes) for threads in args.threads]
    for r in results:
        print(
            f"{r['threads']} threads: "
            + ", ".join(f"{name} {r[name]:.3g} {unit}" for name, unit in UNITS.items())
        )
    if args.json:
        args.json.write_text(
            json.dumps({"facts": client_facts(), "text": TEXT, "results": results}, indent=1) + "\n"
        )


if __name__ == "__main__":
    main()
