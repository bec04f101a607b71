"""Count five patterns of foreign English in the pages for readers: `python scripts/patterns.py`.

Prints occurrences per 1,000 words of each page and of all. `python scripts/patterns.py FOLDER`
counts the pages of another project, to compare. The log and the page of decisions are left out.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

from prose import ROOT, prose

PATTERNS = {
    "headless": r"(?:^|[.:] )(?:Whoever|Those that|That of|The same of|Of those|What is|Who )\b",
    "speech verbs": r"\b(?:says|said|tells|told|hears|heard|wishes|wished)\b",
    "metaphors": r"\b(?:in any company|beside each other|by itself|of its own|lives? in|way through)\b",
    "no referent": r"\b(?:of it|of them|of those|of before|so many|so long|just as many)\b",
    "old adverbs": r"\b(?:any more|no more|meanwhile|lately|by and by|for ever|at last)\b",
}
"""Patterns by their names, as the review of the style describes them."""
SKIPPED = ("log", "decisions.md", "files.md")


def counts(text: str) -> dict[str, int]:
    """Count each pattern in the prose of a page."""
    return {name: len(re.findall(p, text, re.MULTILINE)) for name, p in PATTERNS.items()}


def main(arguments: list[str]) -> int:
    """Print the table. Returns 0."""
    folder = Path(arguments[0]) if arguments else ROOT / "docs"
    pages = [
        page
        for page in sorted(folder.rglob("*.md"))
        if not set(SKIPPED) & set(page.relative_to(folder).parts)
    ]
    total = dict.fromkeys(PATTERNS, 0)
    words = 0
    for page in pages:
        text = prose(page.read_text(encoding="utf-8"))
        page_counts = counts(text)
        words += len(text.split())
        for name, count in page_counts.items():
            total[name] += count
        print(f"{sum(page_counts.values()):4d}  {page.relative_to(folder)}  {page_counts}")
    for name, count in total.items():
        print(f"{1000 * count / max(words, 1):6.2f} per 1,000 words  {name}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
