"""CPU time of a text before the built-in voice reads it: the clean-up, cutting, and the English front end.

    python benchmarks/voice/front_end.py --out front_end.json

Each text has 20,000 characters, as the passages of its kind over and over. `first` is a process that has read one
sentence before, so that nothing but the words is new to it; `again` the best of five later times.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import platform
import time
from pathlib import Path

from stentor.text import front_end
from stentor.text.front_end import FrontEnd
from stentor.text.segments import Reading

CHARACTERS = 20_000
HERE = Path(__file__).parent
TEXTS = {
    "a chapter": (HERE / "story.txt").read_text(encoding="utf-8"),
    "chat answers": (HERE.parent.parent / "docs" / "text.md").read_text(encoding="utf-8"),
    "numbers, money and dates": "On Jan. 3, 2024, at 5:30 p.m., Dr. Smith paid $1,234.50 for 3/4 lb of tea (9%).\n",
}


def seconds(read: FrontEnd, text: str) -> tuple[float, float]:
    """CPU time of the clean-up and cutting, and of the front end."""
    start = time.process_time()
    segments = Reading(phonemes=True).segments(text, 400, "auto")
    cut = time.process_time()
    for segment in segments:
        read(segment.spoken)
    return cut - start, time.process_time() - cut


def measured(text: str) -> dict[str, dict[str, float]]:
    """Both times, the first ones and later ones."""
    read = front_end("english-phonemes")
    read("The birch canoe slid on the smooth planks at 5 p.m.")
    first, *later = (seconds(read, text) for _ in range(6))
    return {name: _shown(took) for name, took in (("first", first), ("again", min(later, key=sum)))}


def _shown(took: tuple[float, float]) -> dict[str, float]:
    return {
        "clean_and_cut": round(took[0], 4),
        "front_end": round(took[1], 4),
        "together": round(sum(took), 4),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    found = {}
    for name, text in TEXTS.items():
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            found[name] = pool.apply(measured, ((text * CHARACTERS)[:CHARACTERS],))
        print(name, found[name])
    report = {
        "characters": CHARACTERS,
        "seconds_of_cpu": found,
        "machine": platform.processor() or platform.machine(),
    }
    if args.out:
        args.out.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
