"""Each field of a sequence has one writer, which its docstring names."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path

import stentor.engine
from stentor.engine.scheduling.sequence import Sequence

NAMES = tuple(field.name for field in fields(Sequence))
FOLDER = Path(stentor.engine.__file__).parent


def of_sequence(target: ast.Attribute, owner: str) -> bool:
    """Whether an attribute is one of a sequence: of what is called `seq`, by any path, or of `self` in its class."""
    if target.attr not in NAMES:
        return False
    of = target.value
    name = of.id if isinstance(of, ast.Name) else of.attr if isinstance(of, ast.Attribute) else "?"
    return (
        owner == "Sequence" if name == "self" else name not in ("request", "prompt", "job", "stats")
    )


def stores(tree: ast.AST) -> Iterator[ast.expr]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign):
            for target in node.targets:
                yield from target.elts if isinstance(target, ast.Tuple) else [target]
        elif isinstance(node, ast.AugAssign | ast.AnnAssign):
            yield node.target


def written() -> dict[str, set[str]]:
    """Map fields to the classes that write them, in all of the engine. The start of `piece` is part of the making."""
    found: dict[str, set[str]] = defaultdict(set)
    for file in FOLDER.rglob("*.py"):
        for node in ast.parse(file.read_text(encoding="utf-8")).body:
            owner = node.name if isinstance(node, ast.ClassDef) else file.name
            parts = node.body if isinstance(node, ast.ClassDef) else [node]
            for part in parts:
                if not isinstance(part, ast.FunctionDef) or part.name != "__post_init__":
                    for target in stores(part):
                        if isinstance(target, ast.Attribute) and of_sequence(target, owner):
                            found[target.attr].add(owner)
    return found


def test_each_field_of_a_sequence_has_the_one_writer_that_its_docstring_names() -> None:
    pattern = r"^ {8}(\w+): (.+(?:\n {12}.+)*)$"
    rows = re.findall(pattern, Sequence.__doc__ or "", re.MULTILINE)
    table = {owner: re.sub(r"\s+", " ", names) for owner, names in rows}
    named = {field: {owner} for owner, rest in table.items() for field in rest.split(", ")}
    assert written() == named


def test_what_nobody_writes_is_set_when_the_sequence_is_made() -> None:
    assert written().keys() == set(NAMES[NAMES.index("given_frames") + 1 :])
