"""The built-in voice when it is warm, of several installations in turns, in CPU seconds: other
work changes these least.

    python benchmarks/voice/warm.py NAME=PYTHON [NAME=PYTHON ...] [--rounds 3] [--json warm.json]

PYTHON is the interpreter of an environment with stentor. Measured with one thread: CPU seconds per
second of audio, CPU seconds to the first audio of a stream, and seconds of audio per CPU second of
eight streams at once.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import time
from pathlib import Path
from typing import Any

TEXT = "The herald has fifty voices, and all of them speak at once tonight."
REQUESTS = 5
STREAMS = 8


def speak() -> dict[str, float]:
    """Measure the installation that runs this."""
    from stentor import TTS

    with TTS(device="cpu", threads=1, max_num_seqs=STREAMS) as tts:
        tts.generate(TEXT, seed=0)
        firsts = []
        for seed in range(REQUESTS):
            started = time.process_time()
            stream = tts.stream(TEXT, seed=seed)
            next(stream)
            firsts.append(time.process_time() - started)
            for _ in stream:
                pass

        started = time.process_time()
        seconds = sum(tts.generate(TEXT, seed=seed).duration for seed in range(REQUESTS))
        rtf = (time.process_time() - started) / seconds

        started = time.process_time()
        speeches = tts.generate([TEXT] * STREAMS, seed=1)
        spent = time.process_time() - started
    return {
        "rtf": round(rtf, 4),
        "first_audio_cpu_s": round(statistics.median(firsts), 4),
        "eight_audio_s_per_cpu_s": round(sum(s.duration for s in speeches) / spent, 2),
    }


def measured(python: str) -> dict[str, float]:
    command = [python, __file__, "--speak"]
    process = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    figures: dict[str, float] = json.loads(process.stdout.splitlines()[-1])
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("installations", nargs="*", metavar="NAME=PYTHON")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--speak", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.speak:
        print(json.dumps(speak()))
        return

    pythons = dict(word.split("=", 1) for word in args.installations)
    rounds: list[dict[str, Any]] = []
    for _ in range(args.rounds):
        rounds.append({name: measured(python) for name, python in pythons.items()})
        if args.json:
            result = {"text": TEXT, "threads": 1, "rounds": rounds}
            args.json.write_text(json.dumps(result) + "\n", encoding="utf-8")
    for name in pythons:
        for figure in rounds[0][name]:
            median = statistics.median(each[name][figure] for each in rounds)
            print(f"{name}: {figure} {median:.4g}")


if __name__ == "__main__":
    main()
