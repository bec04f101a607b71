"""Count the texts that two commits clean and cut differently, by kind.

    python benchmarks/voice/text_changes.py --before 318a78d1 --texts FILE ... --out changes.json

A file is JSON lines with a `text`, or plain text, of which every paragraph is one. Both trees run in a process of their
own, with the packages of this environment. The first difference of a text decides its kind: a piece that was too
long to speak at once, or the signs beside it. Five examples of each kind are kept.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
from collections import Counter
from difflib import SequenceMatcher
from pathlib import Path

from stentor.text.length import spoken_length
from stentor.text.sentences import MAX_CHARS

ROOT = Path(__file__).resolve().parents[2]
READ = """
import json, sys
from stentor.text.segments import Reading
read = Reading(phonemes=True)
for line in sys.stdin:
    cut = read.segments(json.loads(line), 400, "sentence")
    print(json.dumps([s.text for s in cut]))
"""
KINDS = {
    "dash or ellipsis": r"[\u2012-\u2015…]|--|\.{3}",
    "formula": r"[$\\^]",
    "number": r"\d",
    "abbreviation or initial": r"\b\w{1,4}\.",
    "quotation": r"[\"'\u2018-\u201f«»「」]",
    "bracket or mark": r"[\[\]<>(){}]",
    "line end": r"\n",
}
"""Patterns of kinds, the first that fits what changed and 12 characters on both sides."""
NEAR = 12


def paragraphs(file: Path) -> list[str]:
    """Texts of a file."""
    written = file.read_text(encoding="utf-8")
    if file.suffix == ".jsonl":
        return [json.loads(line)["text"] for line in written.splitlines() if line.strip()]
    return [part.strip() for part in re.split(r"\n\s*\n", written) if part.strip()]


def cut(tree: Path, texts: list[str]) -> list[list[str]]:
    """The pieces of each text, as a tree cuts them."""
    lines = "\n".join(map(json.dumps, texts)) + "\n"
    done = subprocess.run(
        [sys.executable, "-c", READ],
        input=lines,
        capture_output=True,
        text=True,
        check=True,
        cwd=tree,
    )
    return [json.loads(line) for line in done.stdout.splitlines()]


def difference(before: list[str], after: list[str]) -> tuple[str, str]:
    """The first difference between two ways to cut a text, with what stands beside it."""
    old, new = "‖".join(before), "‖".join(after)
    start = next((i for i, (a, b) in enumerate(zip(old, new, strict=False)) if a != b), 0)
    matcher = SequenceMatcher(
        None, old[start : start + 60], new[start : start + 60], autojunk=False
    )
    _, _, j, _, n = next(code for code in matcher.get_opcodes() if code[0] != "equal")
    first = max(0, start - NEAR)
    return old[first : start + j + NEAR], new[first : start + n + NEAR]


def is_long(pieces: list[str], new: list[str]) -> bool:
    """Whether the first piece that is cut otherwise took longer to speak than one may."""
    first = next((old for old, after in zip(pieces, new, strict=False) if old != after), "")
    return spoken_length(first) > MAX_CHARS


def kind(before: str, after: str) -> str:
    """The kind of a difference."""
    near = before + after
    return next((name for name, pattern in KINDS.items() if re.search(pattern, near)), "other")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--before", required=True, help="a commit")
    parser.add_argument("--texts", type=Path, nargs="+", required=True)
    parser.add_argument("--most", type=int, default=20_000, help="texts")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    texts = [text for file in args.texts for text in paragraphs(file)][: args.most]
    with tempfile.TemporaryDirectory() as folder:
        archive = subprocess.run(
            ["git", "archive", args.before, "stentor"], cwd=ROOT, capture_output=True, check=True
        )
        subprocess.run(["tar", "-x"], cwd=folder, input=archive.stdout, check=True)
        before, after = cut(Path(folder), texts), cut(ROOT, texts)
    counts: Counter[str] = Counter()
    examples: dict[str, list[tuple[str, str]]] = {}
    for old, new in zip(before, after, strict=True):
        if old != new:
            changed = difference(old, new)
            name = "spoken length" if is_long(old, new) else kind(*changed)
            counts[name] += 1
            if len(examples.setdefault(name, [])) < 5:
                examples[name].append(changed)
    report = {
        "before": args.before,
        "texts": len(texts),
        "changed": sum(counts.values()),
        "by_kind": dict(counts.most_common()),
        "examples": examples,
    }
    print(json.dumps({k: v for k, v in report.items() if k != "examples"}, indent=1))
    if args.out:
        args.out.write_text(
            json.dumps(report, indent=1, ensure_ascii=False) + "\n", encoding="utf-8"
        )


if __name__ == "__main__":
    main()
