"""Check the pages for readers: lengths, semicolons, and promises that one page makes about another.

Run: python scripts/prose.py    prints what is wrong and returns 1. scripts/check runs it.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SEMICOLONS = 4
"""Per 1,000 words of prose at most."""
MIN_WORDS = 250
"""A shorter page may have as many semicolons as one of this length."""
WORDS = {
    "README.md": (450, 950),
    "docs/architecture.md": (0, 1500),
}
"""The fewest and the most words of a page. 1,500 take seven minutes to read."""
LINES = {"docs/README.md": 20}
"""The most lines of a page."""
COMMAND_LINES = 25
"""The README shows a command within its first lines."""
ANSWER = 15
"""The most words of an answer in docs/decisions.md."""


def prose(page: str) -> str:
    """A page without fenced, indented and inline code."""
    page = re.sub(r"^\s*```.*?^\s*```", "", page, flags=re.DOTALL | re.MULTILINE)
    page = re.sub(r"^ {4,}\S.*$", "", page, flags=re.MULTILINE)
    return re.sub(r"`[^`]*`", "code", page)


def semicolons(page: str) -> Iterator[str]:
    """Whether a page has too many semicolons."""
    words = len(prose(page).split())
    count = prose(page).count(";")
    if count * 1000 > SEMICOLONS * max(words, MIN_WORDS):
        yield f"{count} semicolons in {words} words, at most {SEMICOLONS} per 1,000"


def length(page: str, name: str) -> Iterator[str]:
    """Whether a page that has a limit is too short or too long."""
    if name in WORDS:
        least, limit = WORDS[name]
        words = len(page.split())
        if not least <= words <= limit:
            yield f"{words} words, must be {least} to {limit}"
    if name in LINES and len(page.splitlines()) > LINES[name]:
        yield f"{len(page.splitlines())} lines, at most {LINES[name]}"


def answers(page: str) -> Iterator[str]:
    """Rows of the decisions whose answer is too long."""
    for row in page.splitlines():
        cells = re.split(r"(?<!\\)\|", row)
        if row.startswith("| ") and len(cells) > 3 and len(cells[2].split()) > ANSWER:
            yield f"{cells[1].strip()!r} has an answer of {len(cells[2].split())} words, at most {ANSWER}"


def first_minute(readme: str, questions: str) -> Iterator[str]:
    """Quotes of the README that are no longer in it."""
    text = " ".join(readme.split())
    for quote in re.findall(r"^> `(.*)`$", questions, re.MULTILINE):
        if quote not in text:
            yield f"does not contain {quote!r}, which docs/design/first_minute.md quotes"


def problems() -> Iterator[str]:
    """Yield a line for each fault of the pages of the repository."""
    for file in [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]:
        name = file.relative_to(ROOT).as_posix()
        page = file.read_text(encoding="utf-8")
        for problem in [*semicolons(page), *length(page, name)]:
            yield f"{name}: {problem}"

    decisions = (ROOT / "docs" / "decisions.md").read_text(encoding="utf-8")
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    questions = (ROOT / "docs" / "design" / "first_minute.md").read_text(encoding="utf-8")
    yield from (f"docs/decisions.md: {problem}" for problem in answers(decisions))
    yield from (f"README.md: {problem}" for problem in first_minute(readme, questions))
    if "```bash" not in readme.splitlines()[:COMMAND_LINES]:
        yield f"README.md: no command in the first {COMMAND_LINES} lines"


def main() -> int:
    lines = list(problems())
    print("\n".join(lines) or "prose: all pages hold")
    return bool(lines)


if __name__ == "__main__":
    sys.exit(main())
