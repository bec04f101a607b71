"""The docs are tested: commands parse, links and paths exist, options are complete.

tests/test_docs_blocks.py runs what they show. scripts/prose.py checks how they read."""

import re
import shlex
from dataclasses import fields
from pathlib import Path

import pytest

from scripts import tree
from scripts.prose import prose
from stentor.cli import parser
from stentor.config import EngineConfig, Policy
from stentor.models.base import ModelSpec, Prompt

ROOT = Path(__file__).parent.parent
DOCS = sorted((ROOT / "docs").rglob("*.md"))
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *DOCS]
API = ROOT / "docs" / "python_api.md"
SOURCES = (
    "deploy",
    "stentor",
    "tests",
    "tools",
    "training",
    "benchmarks",
    "examples",
    "docs",
    "scripts",
    ".ci",
    ".github",
)
TEXT = {".py", ".md", ".toml", ".yml", ".yaml", ".js", ".css", ".html", ".sh", ""}

every_page = pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))


def read(page: Path) -> str:
    return page.read_text(encoding="utf-8")


def blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", read(page), re.DOTALL)


def commands() -> list[str]:
    found = [
        line
        for page in PAGES
        for block in blocks(page, "bash")
        for line in block.replace("\\\n", " ").splitlines()
    ]
    return sorted(
        {
            part.split(" > ")[0].strip()
            for line in found
            for part in line.split("|")
            if part.strip().startswith("stentor ")
        }
    )


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    headings = re.findall(
        r"^#+ (.*)$", re.sub(r"```.*?```", "", read(page), flags=re.DOTALL), re.MULTILINE
    )
    return {re.sub(r"[^\w\- ]", "", h.lower()).replace(" ", "-") for h in headings}


@pytest.mark.parametrize("config", [EngineConfig, Policy])
def test_the_python_page_has_a_row_for_every_option_of_the_engine(config: type):
    assert [f.name for f in fields(config) if f"| `{f.name}` |" not in read(API)] == []


@pytest.mark.parametrize("facts", [ModelSpec, Prompt])
def test_contributing_names_every_field_that_a_family_fills(facts: type):
    section = (
        read(ROOT / "docs" / "families.md").split(f"\n## {facts.__name__}\n")[1].split("\n## ")[0]
    )
    named = re.findall(r"`(\w+)`", "".join(re.findall(r"^\| (`.*?) \|", section, re.MULTILINE)))
    assert sorted(named) == sorted(f.name for f in fields(facts))


@pytest.mark.parametrize("command", commands())
def test_every_command_in_the_docs_parses(command: str):
    parser().parse_args(shlex.split(command, comments=True)[1:])


@every_page
def test_every_relative_link_leads_somewhere(page: Path):
    found = re.findall(r"\]\(([^)#:]*)(?:#([^)]*))?\)", prose(read(page)))
    links = [(page.parent / link if link else page, anchor) for link, anchor in found]
    assert [str(target) for target, _ in links if not target.exists()] == []
    assert [
        f"{target.name}#{a}"
        for target, a in links
        if a and target.suffix == ".md" and a not in anchors(target)
    ] == []


@pytest.mark.parametrize("page", [p for p in PAGES if p.parent.name != "log"], ids=lambda p: p.name)
def test_every_file_of_the_repository_that_is_named_exists_except_in_logs_of_other_days(page: Path):
    named = re.findall(
        r"\b(?:benchmarks|tests|tools|scripts|training|stentor)/[\w\-./]*\.(?:py|jsonl?|txt|toml)\b",
        read(page),
    )
    planned = {"make_echo.py", "test_echo.py"}  # of CONTRIBUTING's family that does not exist
    assert [
        n for n in sorted(set(named)) if not (ROOT / n).exists() and Path(n).name not in planned
    ] == []


def test_nothing_refers_to_the_specifications_which_are_not_in_the_repository():
    folder = re.compile(r"\bspecs" + "/")
    files = [
        p for name in SOURCES for p in (ROOT / name).rglob("*") if p.suffix in TEXT and p.is_file()
    ]
    kept = [
        p
        for p in [*files, *ROOT.glob("*.md"), *ROOT.glob("*.toml")]
        if "__pycache__" not in p.parts
    ]
    assert len(kept) > 300
    found = [
        str(p.relative_to(ROOT))
        for p in kept
        if folder.search(p.read_text(encoding="utf-8", errors="ignore"))
    ]
    assert found == []


def test_the_page_of_files_is_that_of_the_package():
    assert read(tree.PAGE) == tree.page(), "run python scripts/tree.py"


@pytest.mark.parametrize(
    "page", ["architecture.md", *(f"design/{p.name}" for p in (ROOT / "docs" / "design").iterdir())]
)
def test_files_that_pages_on_the_architecture_name_exist(page: str):
    named = re.findall(
        r"`((?:[\w*]+/)*[\w*]+\.(?:py|cu)|tests/[\w/]+)`", read(ROOT / "docs" / page)
    )
    assert [
        name
        for name in named
        if not list(ROOT.glob(name)) and not list(ROOT.glob(f"stentor/**/{name}"))
    ] == []
