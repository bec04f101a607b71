"""Write docs/files.md: a line for each file of the package, from the first line of its docstring.

Run: python scripts/tree.py            writes the page
"""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "files.md"
HEAD = """# Files

Made by `scripts/tree.py` from the first line of each file. [architecture.md](architecture.md) says how they fit.
"""
COMMENT = {
    ".js": r"^// (.*)",
    ".css": r"^/\* (.*?) ?(\*/)?$",
    ".html": r"<title>(.*?)</title>",
    ".cu": r"^// (.*)",
    ".cuh": r"^// (.*)",
}


def page() -> str:
    """The page: a table for each folder."""
    folders: dict[Path, list[str]] = {}
    for file in sorted((ROOT / "stentor").rglob("*")):
        if (
            file.suffix in (".py", *COMMENT)
            and "__pycache__" not in file.parts
            and (line := first_line(file))
        ):
            folders.setdefault(file.parent, []).append(f"| `{file.name}` | {line} |")
    tables = [
        f"\n## {folder.relative_to(ROOT)}/\n\n| | |\n|---|---|\n" + "\n".join(rows)
        for folder, rows in folders.items()
    ]
    return HEAD + "\n".join(tables) + "\n"


def first_line(file: Path) -> str:
    """The first sentence of a file's docstring. Empty if there is none."""
    text = file.read_text(encoding="utf-8")
    if file.suffix == ".py":
        line = (ast.get_docstring(ast.parse(text)) or "").split("\n\n")[0]
    else:
        comment = re.search(COMMENT[file.suffix], text, re.MULTILINE)
        line = comment.group(1) if comment else ""
    return " ".join(line.split()).replace("|", "\\|")


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
