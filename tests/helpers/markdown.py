"""Code blocks of Markdown pages, with the reason why a block is not run, if it says one."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

# blocks of other languages, or of none, show output or layout
CODE = (
    "bash",
    "python",
    "yaml",
    "json",
)
BLOCK = re.compile(
    r"(?:<!-- not run: (?P<why>[^>]+?) -->\n)?^```(?P<language>\w*)\n(?P<text>.*?)^```$",
    re.M | re.S,
)


@dataclass(frozen=True)
class Block:
    """A fenced block of a page, at a line. `why_not` is None if tests run it."""

    page: Path
    line: int
    language: str
    text: str
    why_not: str | None


def blocks(page: Path, *languages: str) -> list[Block]:
    """The fenced blocks of a page in these languages, or all blocks of code."""
    text = page.read_text(encoding="utf-8")
    found = (
        Block(page, text.count("\n", 0, m.start("text")), m["language"], m["text"], m["why"])
        for m in BLOCK.finditer(text)
    )
    return [b for b in found if b.language in (languages or CODE)]


def commands(block: Block) -> list[str]:
    """The command lines of a block of bash. What is continued with a backslash is one."""
    return [line.strip() for line in block.text.replace("\\\n", " ").splitlines() if line.strip()]
