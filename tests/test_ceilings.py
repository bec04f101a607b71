"""Ceilings that keep the package small (tests/ceilings.json). Raising one needs a row in docs/decisions.md."""

from __future__ import annotations

import ast
import json
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
CEILINGS: dict[str, Any] = json.loads((ROOT / "tests" / "ceilings.json").read_text(encoding="utf-8"))
FAMILY = "models/*"
CODE = (".py", ".cu", ".cpp", ".cuh")
NOT_OURS = {"_replace", "_exit", "_schema"}  # of named tuples, os and torch
HOW = "raise it in tests/ceilings.json, with a row in docs/decisions.md that says why and has the new figure"


def room(file: Path) -> str:
    """The folder of stentor/ that a file is in. Each family is a room of its own."""
    parts = file.relative_to(ROOT / "stentor").parts[:-1]
    depth = 2 if parts[:1] == ("models",) else 1
    return "/".join(parts[:depth]) or "."


def lines() -> Counter[str]:
    """Lines of code in each room."""
    found: Counter[str] = Counter()
    for file in (ROOT / "stentor").rglob("*"):
        if file.suffix in CODE:
            found[room(file)] += len(file.read_text(encoding="utf-8").splitlines())
    return found


def ceiling(name: str) -> int:
    """The most lines of a room. All families have the same."""
    most: int = CEILINGS["lines"][FAMILY if name.startswith("models/") else name]
    return most


def test_every_room_has_a_ceiling_and_every_ceiling_a_room():
    rooms = {FAMILY if name.startswith("models/") else name for name in lines()}
    assert rooms == CEILINGS["lines"].keys()


def test_no_room_has_more_lines_than_its_ceiling():
    over = {name: (count, ceiling(name)) for name, count in lines().items() if count > ceiling(name)}
    assert not over, f"{over}: {HOW}"


def test_every_ceiling_stands_in_a_row_of_the_decisions():
    rows = [
        line for line in (ROOT / "docs" / "decisions.md").read_text(encoding="utf-8").splitlines() if line[:2] == "| "
    ]
    figures = {f"`{name}` {most:,}" for name, most in CEILINGS["lines"].items()}
    missing = [figure for figure in figures if not any(re.search(re.escape(figure) + r"(?!,?\d)", row) for row in rows)]
    assert not missing, f"{missing}: {HOW}"


def private_names(tree: ast.AST) -> Iterator[str]:
    """Names with an underscore that a test reads or replaces in what it tests, and not in itself."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and re.match(r"_[a-z]", node.attr) and node.attr not in NOT_OURS:
            if not isinstance(node.value, ast.Name) or node.value.id not in ("self", "cls"):
                yield ast.unparse(node)
        elif isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "setattr":
            given = [a.value for a in node.args if isinstance(a, ast.Constant) and isinstance(a.value, str)]
            yield from (name for name in given if re.search(r"(?:^|\.)_[a-z]", name))
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("stentor"):
            yield from (a.name for a in node.names if re.match(r"_[a-z]|_[A-Z]", a.name))


def test_tests_of_the_engine_use_few_private_names():
    """A test that names what is private breaks when the code changes and its behaviour does not."""
    trees = {f.name: ast.parse(f.read_text(encoding="utf-8")) for f in (ROOT / "tests" / "engine").glob("*.py")}
    found = [f"{name}: {used}" for name, tree in trees.items() for used in private_names(tree)]
    assert len(found) <= CEILINGS["private names in tests/engine"], "\n".join(found)
