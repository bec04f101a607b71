"""Mutate audio files and decode them within limits: `python -m scripts.audio_fuzz [--json FILE]`.

Each mutation must end in audio or BadAudio within a second of CPU time, and the process must stay
within 300 MiB. Prints the slowest one, and the seed of each that fails.
"""

from __future__ import annotations

import argparse
import json
import random
import resource
import sys
import time
from collections import Counter
from pathlib import Path

from stentor.audio.decoding import decode
from stentor.audio.opened import BadAudio
from tests.helpers.audio_kinds import KINDS

CONTAINERS = (
    "wav, 16 bits, 16 kHz",
    "wav, Microsoft ADPCM",
    "AIFF",
    "flac, streamed by stentor",
    "ogg, Vorbis, stereo",
    "ogg, Opus",
    "mp3, two ID3 tags",
    "aac with an ID3 tag",
    "m4a, AAC",
    "mp4, AAC beside video",
    "webm, Opus beside video",
    "wma",
)
LONGEST = 30.0  # seconds of audio
CPU_SECONDS = 1.0
MEMORY = 300 << 20  # bytes
EXTREMES = (0, 1, 127, 128, 254, 255)


def mutate(data: bytes, rng: random.Random) -> bytes:
    """Change, insert, remove or repeat a few bytes, most often near the beginning."""
    changed = bytearray(data)
    for _ in range(rng.choice((1, 1, 2, 4, 16))):
        reach = rng.choice((64, 512, len(changed)))
        at = rng.randrange(max(1, min(reach, len(changed))))
        size = rng.choice((1, 2, 4, 8))
        kind = rng.randrange(5)
        if kind == 0:
            changed[at : at + 1] = bytes([rng.randrange(256)])
        elif kind == 1:
            changed[at : at + size] = bytes([rng.choice(EXTREMES)]) * size
        elif kind == 2:
            del changed[at : at + rng.choice((size, 500))]
        elif kind == 3:
            changed[at:at] = rng.randbytes(size)
        else:
            changed[at:at] = changed[at : at + rng.choice((size, 1000))]
    return bytes(changed)


def outcome(data: bytes) -> str:
    """Name the result of decoding: audio, or a refusal without its figures."""
    try:
        samples, _ = decode(data, LONGEST)
    except BadAudio as e:
        return " ".join(str(e).split()[:3])
    assert len(samples)
    return "audio"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--number", type=int, default=30_000, help="mutations (default 30000)")
    parser.add_argument("--seed", type=int, default=0, help="of the first mutation")
    parser.add_argument("--json", type=Path, help="file for the result")
    args = parser.parse_args()
    by_name = {kind.name: kind for kind in KINDS}
    files = [by_name[name].make() for name in CONTAINERS]
    outcomes: Counter[str] = Counter()
    slowest = (0.0, "none")
    failures = 0
    for seed in range(args.seed, args.seed + args.number):
        rng = random.Random(seed)
        index = seed % len(files)
        started = time.thread_time()
        outcomes[outcome(mutate(files[index], rng))] += 1
        seconds = time.thread_time() - started
        slowest = max(slowest, (seconds, f"seed {seed}, {CONTAINERS[index]}"))
        if seconds > CPU_SECONDS:
            failures += 1
            print(f"seed {seed}, {CONTAINERS[index]}: {seconds:.1f} s", flush=True)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10
    print(f"{args.number} mutations: {dict(outcomes.most_common())}")
    print(f"slowest {slowest[0] * 1000:.0f} ms ({slowest[1]}), peak memory {peak >> 20} MiB")
    if args.json:
        result = {
            "mutations": args.number,
            "first_seed": args.seed,
            "containers": CONTAINERS,
            "outcomes": dict(outcomes.most_common()),
            "slowest_cpu_seconds": slowest[0],
            "slowest": slowest[1],
            "peak_memory_bytes": peak,
        }
        args.json.write_text(json.dumps(result, indent=1) + "\n")
    return int(failures > 0 or peak > MEMORY)


if __name__ == "__main__":
    sys.exit(main())
