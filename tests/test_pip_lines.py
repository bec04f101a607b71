"""Every line of pip that the pages and the program give finds its packages, in an empty environment."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
import tomllib
import venv
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

import pytest

from stentor import doctor
from stentor.host.installed import pip_install
from tests.helpers.child import ROOT

PAGES = (
    *ROOT.glob("*.md"),
    *(page for page in (ROOT / "docs").rglob("*.md") if "log" not in page.parts),
    *(ROOT / "integrations").rglob("README.md"),
    *(ROOT / "examples").rglob("README.md"),
)
LINE = re.compile(r"pip install ((?:'[^']*'|[^`#\n'()])+)")
WHEEL = re.compile(r"dist/stentor-[^\s\[]*\.whl")
EXTRAS = [extra for extra, _ in doctor.EXTRAS.values()]  # that doctor names
INDEX = re.compile(r"--(?:extra-)?index-url \S+")
NEEDS_STENTOR = ("examples/csm",)
"""Packages that need stentor itself, which comes from this tree."""
ELSEWHERE = {
    "-e my-model": "the folder that `stentor new-family` makes, which its own test installs",
}


def lines() -> Iterator[str]:
    """The arguments of each line, without other indexes: their packages are on the default one too, as other builds."""
    for page in PAGES:
        for match in LINE.finditer(page.read_text(encoding="utf-8")):
            words = INDEX.sub("", match[1]).rstrip(" ,").split()
            if len(words[-1]) > 1:  # a stop by itself is the folder, another one ends a sentence
                words[-1] = words[-1].rstrip(".,")
            yield " ".join(words)
    for line in map(pip_install, [*EXTRAS, "cuda", "torch"]):
        yield line.removeprefix("pip install ").replace(f"{ROOT}[", ".[")


def distinct(given: set[str]) -> list[str]:
    """Lines that differ in more than how this tree is installed, which changes no package."""
    return sorted({line.removeprefix("-e "): line for line in sorted(given)}.values())


LINES = distinct(set(lines()) - set(ELSEWHERE))


@pytest.fixture(scope="module")
def empty(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The pip of an environment without packages but what builds stentor: each line would fetch it again."""
    folder = tmp_path_factory.mktemp("empty")
    venv.create(folder, with_pip=True)
    pip = folder / "bin" / "pip"
    system = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["build-system"]
    builders = [*system["requires"], "editables"]  # which hatchling asks for with `-e`
    install = [pip, "install", "--quiet", "--disable-pip-version-check", *builders]
    subprocess.run(install, check=True)
    return pip


@pytest.fixture(scope="module")
def wheel(empty: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dist")
    words = [
        "wheel",
        "--no-build-isolation",
        "--quiet",
        "--no-deps",
        "--wheel-dir",
        str(folder),
        str(ROOT),
    ]
    subprocess.run([empty, *words], check=True)
    (made,) = folder.glob("*.whl")
    return made


@pytest.mark.slow
@pytest.mark.parametrize("line", LINES)
def test_pip_finds_what_a_line_names(
    line: str, empty: Path, request: pytest.FixtureRequest
) -> None:
    if "wyoming_openai" in line and sys.version_info < (3, 12):
        pytest.skip("the page says that it needs Python 3.12")
    if WHEEL.search(line):
        line = WHEEL.sub(str(request.getfixturevalue("wheel")), line)
    run = subprocess.run(
        [
            empty,
            "install",
            "--dry-run",
            "--no-build-isolation",
            "--quiet",
            "--disable-pip-version-check",
            *shlex.split(line),
            *(["."] if line in NEEDS_STENTOR else []),
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stderr


def test_lines_are_found() -> None:
    assert len(LINES) > 20
    assert not [line for line in LINES if "stentor[" in line and "stentor[" not in pip_install("x")]


@pytest.mark.parametrize(
    ("record", "line"),
    [
        (None, "pip install 'stentor[ray]'"),
        (
            '{"url": "file:///a%20clone", "dir_info": {"editable": true}}',
            "pip install -e '/a clone[ray]'",
        ),
        ('{"url": "file:///a/clone", "dir_info": {}}', "pip install '/a/clone[ray]'"),
        (
            '{"url": "file:///a/stentor-1-py3-none-any.whl", "archive_info": {}}',
            "pip install 'stentor[ray] @ file:///a/stentor-1-py3-none-any.whl'",
        ),
        (
            '{"url": "https://a/b.git", "vcs_info": {"vcs": "git", "commit_id": "c0ffee"}}',
            "pip install 'stentor[ray] @ git+https://a/b.git@c0ffee'",
        ),
    ],
)
def test_an_extra_comes_from_where_stentor_came_from(
    record: str | None, line: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Distribution:
        def read_text(self, name: str) -> str | None:
            return record if name == "direct_url.json" else None

    monkeypatch.setattr(metadata, "distribution", lambda name: Distribution())
    assert pip_install("ray") == line


def test_a_clone_on_the_search_path_is_installed_from_its_folder(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def missing(name: str) -> None:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "distribution", missing)
    assert pip_install("cuda") == f"pip install -e '{ROOT}[cuda]'"
