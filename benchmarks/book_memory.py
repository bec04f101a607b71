"""A book of ten hours through `stentor book`: does memory grow with it, and does it end?

Run: python benchmarks/book_memory.py --hours 10 --output FILE
Needs: Linux. No GPU. 1 GB of disk.

The toy model speaks a second for each sentence, and a pause of 10 s follows, as speaking ten hours takes hours. All else
is what a book of 10 h has: pieces, files, rows, chapters, samples. The curve has seconds, CPU seconds, resident MiB and
the MiB of the manifest.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path

from benchmarks.batch_memory import curve

FRAMES = "100"  # of a sentence: a second
TOY = (
    "--model",
    "dummy:toy",
    "--min-frames",
    FRAMES,
    "--max-frames",
    FRAMES,
    "--split",
    "sentence",
)
SENTENCE = "The juice of lemons makes fine punch, and a pot of tea helps. [pause 10s] "
PARAGRAPH = SENTENCE * 4
SECONDS = 44.5  # of a paragraph
CHAPTERS = 30


def book(path: Path, hours: float) -> None:
    """Write a book whose speech takes so long."""
    paragraphs = round(hours * 3600 / SECONDS)
    with path.open("w", encoding="utf-8") as file:
        for at in range(paragraphs):
            if at * CHAPTERS // paragraphs != (at - 1) * CHAPTERS // paragraphs:
                file.write(f"# Part {at * CHAPTERS // paragraphs + 1}\n\n")
            file.write(f"{PARAGRAPH}\n\n")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--hours", type=float, default=10.0)
    parser.add_argument("--slots", default="64", help="segments that the engine speaks at once")
    parser.add_argument("--every", type=float, default=5.0, help="seconds between two points")
    parser.add_argument("--output", type=Path, required=True)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(dir="/var/tmp") as temporary:
        source = Path(temporary) / "book.md"
        out = Path(temporary) / "book.m4b"
        book(source, args.hours)
        command = [sys.executable, "-m", "stentor", "book", str(source), "-o", str(out)]
        manifest = Path(temporary) / "book.m4b.parts" / "manifest.jsonl"
        run = curve(
            [*command, *TOY, "--max-num-seqs", args.slots], manifest, args.every, float("inf")
        )
        run["bytes"] = out.stat().st_size
    args.output.write_text(json.dumps({"hours": args.hours, **run}) + "\n", encoding="utf-8")
    memory = [point["memory_mb"] for point in run["curve"]]
    print(f"code {run['exit_code']}, {run['seconds']} s, at most {max(memory)} MiB. {run['told']}")


if __name__ == "__main__":
    main()
