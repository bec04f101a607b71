"""Print a version's section of CHANGELOG.md, as the text of its tag and release.

Run: python scripts/release_notes.py [VERSION]      without VERSION: the version of this tree
A version that has no section yet gets what stands under Unreleased.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def tree_version(root: Path = ROOT) -> str:
    """The version that stands in stentor/version.py, which the package takes its own from."""
    match = re.search(
        r'^__version__ = "(.*)"$',
        (root / "stentor" / "version.py").read_text(encoding="utf-8"),
        re.M,
    )
    assert match is not None
    return match.group(1)


def notes(changelog: str, version: str) -> str:
    """The section of `version`, without its heading."""
    parts = re.split(r"^## \[(.+?)\].*$", changelog, flags=re.MULTILINE)
    sections = dict(zip(parts[1::2], (text.strip() for text in parts[2::2]), strict=True))
    text = sections.get(version, sections.get("Unreleased", ""))
    if not text:
        raise SystemExit(f"CHANGELOG.md has nothing about {version}")
    return text + "\n"


if __name__ == "__main__":
    number = sys.argv[1] if len(sys.argv) > 1 else tree_version()
    print(notes((ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), number), end="")
