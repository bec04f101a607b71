"""Pack the packages that stentor needs on a GPU machine without a network.

Run: python tools/gpu_packages.py OUT.tar.xz [--python 3.12] [--extra cuda server bench] [--there torch triton numpy ...]
     there: tar xf OUT.tar.xz -C DIR, and PYTHONPATH=DIR:TREE
Needs: pip and a package index here. `strip` of binutils makes the file smaller.

pip resolves the dependencies of the package and of the extras for the other machine's Python on x86-64 Linux. What is
`--there` already is left out, and so are tests, headers and sources of extensions. The last line of the output imports
what was packed: run it there first.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import tomllib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
GLIBC = (39, 35, 34, 31, 28, 27, 24, 17)
"""Minor versions of the C library whose wheels are taken: pip matches each by its own name."""
UNUSED_FOLDERS = {"__pycache__", "test", "tests", "include", "examples"}
UNUSED_FILES = {".a", ".c", ".cpp", ".h", ".hpp", ".pxd", ".pyi", ".pyx"}
UNUSED_OF_RAY = (
    "ray/jars",
    "ray/cpp",
    "ray/rllib",
    "ray/tune",
    "ray/llm",
    "ray/dashboard/client/build",
)


def requirements(extras: Iterable[str]) -> list[str]:
    """Requirements of the package and its `extras`, without the package itself."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    found, waiting, seen = list(project["dependencies"]), list(extras), set()
    while waiting:
        extra = waiting.pop()
        if extra in seen:
            continue
        seen.add(extra)
        for requirement in project["optional-dependencies"][extra]:
            own = re.fullmatch(r"stentor\[(.*)\]", requirement)
            waiting += own[1].split(",") if own else []
            found += [] if own else [requirement]
    return found


def plain(name: str) -> str:
    """A package's name as indexes compare it."""
    return re.sub(r"[-_.]+", "-", re.match(r"[\w.-]+", name)[0]).lower()  # type: ignore[index]


def pip(*arguments: str) -> None:
    subprocess.run(
        [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", *arguments],
        check=True,
    )


def target(python: str, folder: Path) -> list[str]:
    """pip's options for the other machine's Python."""
    tags = [f"manylinux_2_{minor}_x86_64" for minor in GLIBC] + [
        "manylinux2014_x86_64",
        "manylinux1_x86_64",
    ]
    named = [word for tag in tags for word in ("--platform", tag)]
    return [
        *named,
        "--python-version",
        python,
        "--implementation",
        "cp",
        "--only-binary=:all:",
        "--target",
        str(folder),
    ]


def resolve(wanted: list[str], there: set[str], python: str, folder: Path) -> list[dict[str, Any]]:
    """Packages to carry, each with pip's `metadata`."""
    report = folder / "report.json"
    ask = [r for r in wanted if plain(r) not in there]
    pip(
        "install",
        "--dry-run",
        "--ignore-installed",
        "--report",
        str(report),
        *target(python, folder),
        *ask,
    )
    return [
        item
        for item in json.loads(report.read_text())["install"]
        if plain(item["metadata"]["name"]) not in there
    ]


def unused(path: Path) -> bool:
    """Whether no program needs a file at `path`, counted from the folder of packages."""
    inside = path.as_posix().startswith(UNUSED_OF_RAY)
    return inside or path.suffix in UNUSED_FILES or not UNUSED_FOLDERS.isdisjoint(path.parts[:-1])


def trim(site: Path) -> None:
    """Remove what no program needs, and debugging symbols."""
    files = [f for f in site.rglob("*") if f.is_file()]
    for file in files:
        if unused(file.relative_to(site)):
            file.unlink()
        elif ".so" in file.suffixes and shutil.which("strip"):
            subprocess.run(
                ["strip", "--strip-unneeded", str(file)], check=False, capture_output=True
            )


def modules(site: Path) -> list[str]:
    """Names that can be imported from a folder of packages."""
    folders = [f.parent.name for f in site.glob("*/__init__.py")]
    files = [f.name.split(".")[0] for f in site.iterdir() if f.suffix in (".py", ".so")]
    return sorted(
        name for name in {*folders, *files} if name.isidentifier() and not name.startswith("_")
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("out", type=Path)
    parser.add_argument("--python", default="3.12", help="version there (default %(default)s)")
    parser.add_argument(
        "--extra",
        nargs="*",
        default=["cuda", "server", "bench"],
        help="extras of stentor (default %(default)s)",
    )
    parser.add_argument("--also", nargs="*", default=[], help="further requirements")
    parser.add_argument(
        "--there", nargs="*", default=["torch", "triton"], help="packages that are there already"
    )
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        site = Path(folder) / "site"
        there = {plain(name) for name in args.there}
        found = resolve([*requirements(args.extra), *args.also], there, args.python, Path(folder))
        exact = [f"{item['metadata']['name']}=={item['metadata']['version']}" for item in found]
        pip("install", "--no-deps", "--no-compile", *target(args.python, site), *exact)
        trim(site)
        args.out.parent.mkdir(parents=True, exist_ok=True)
        with tarfile.open(args.out, "w:xz") as tar:
            tar.add(site, ".")
        print(
            f"{len(exact)} packages, {args.out.stat().st_size / 2**20:.1f} MiB: {' '.join(exact)}"
        )
        print(f'python -c "import {", ".join(modules(site))}"')


if __name__ == "__main__":
    main()
