"""Tests of the engine use few of its private names."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

HERE = Path(__file__).parent
MOST = 19
NOT_OURS = {"_replace", "_exit", "_schema"}  # of named tuples, os and torch


def private_names(tree: ast.AST) -> Iterator[str]:
    """Names with an underscore that a test reads or replaces in what it tests, and not in itself."""
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.Attribute)
            and re.match(r"_[a-z]", node.attr)
            and node.attr not in NOT_OURS
        ):
            if not isinstance(node.value, ast.Name) or node.value.id not in ("self", "cls"):
                yield ast.unparse(node)
        elif isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "setattr":
            given = [
                a.value
                for a in node.args
                if isinstance(a, ast.Constant) and isinstance(a.value, str)
            ]
            yield from (name for name in given if re.search(r"(?:^|\.)_[a-z]", name))
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("stentor"):
            yield from (a.name for a in node.names if re.match(r"_[a-z]|_[A-Z]", a.name))


def test_tests_of_the_engine_use_few_private_names():
    """A test that names what is private breaks when the code changes and its behaviour does not."""
    trees = {f.name: ast.parse(f.read_text(encoding="utf-8")) for f in HERE.glob("*.py")}
    found = [f"{name}: {used}" for name, tree in trees.items() for used in private_names(tree)]
    assert len(found) <= MOST, "\n".join(found)
