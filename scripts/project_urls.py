"""Write [project.urls] of stentor and its plug-ins for the repository that publishes them.

Run: python scripts/project_urls.py https://HOST/OWNER/NAME [FOLDER]
FOLDER: the tree, by default this one.
The release workflow does so before it builds. The tree itself names no repository, as a fork has
another.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PROJECTS = (
    "pyproject.toml",
    "integrations/livekit-plugins-stentor/pyproject.toml",
    "integrations/pipecat-stentor/pyproject.toml",
)
PAGES = {
    "Homepage": "",
    "Documentation": "/blob/main/docs/README.md",
    "Source": "",
    "Issues": "/issues",
    "Changelog": "/blob/main/CHANGELOG.md",
}


def with_urls(project: str, repository: str) -> str:
    """The text of a pyproject.toml with the URLs of a repository in front of its first tool."""
    if "[project.urls]" in project:
        raise SystemExit("[project.urls] is there already")
    lines = [f'{name} = "{repository}{path}"' for name, path in PAGES.items()]
    section = "\n".join(["[project.urls]", *lines, "", ""])
    return re.sub(r"^(?=\[tool\.)", lambda _: section, project, count=1, flags=re.MULTILINE)


def main(repository: str, root: Path = ROOT) -> None:
    """Rewrite the files of a tree. SystemExit for what is no address of a repository."""
    if re.fullmatch(r"https://[^/\s\"]+(/[^/\s\"]+)+", repository) is None:
        raise SystemExit(f"{repository!r} is no https:// address of a repository")
    for name in PROJECTS:
        file = root / name
        file.write_text(with_urls(file.read_text(encoding="utf-8"), repository), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1].rstrip("/"), *map(Path, sys.argv[2:3]))
