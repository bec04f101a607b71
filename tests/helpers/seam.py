"""Interface for families from other packages, as docs/families.md names it: modules, names and parameters.

`python -m tests.helpers.seam` writes tests/fixtures/seam.json anew, which holds the present version.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from stentor.models.families import SEAM

ROOT = Path(__file__).parents[2]
STORED = ROOT / "tests" / "fixtures" / "seam.json"
Names = dict[str, list[str]]
"""Public names of a module, each with its parameters. One that may be left out ends with =."""


def modules() -> list[str]:
    """The modules in the page's table."""
    page = (ROOT / "docs" / "families.md").read_text(encoding="utf-8")
    rows = page.split("## The interface\n")[1].split("\n## ")[0]
    names: set[str] = set()
    for row in (row.split("|")[1] for row in rows.splitlines() if row.startswith("| `")):
        first, *others = re.findall(r"`([\w.]+)`", row)
        room = first.rpartition(".")[0]  # further modules of the row may be named without it
        names |= {first, *(n if n.startswith("stentor") else f"{room}.{n}" for n in others)}
    return sorted(names)


def names(module: str) -> Names:
    """Names that a module defines."""
    imported = importlib.import_module(module)
    public = {
        n: v for n, v in vars(imported).items() if not n.startswith("_") and defined_in(v, module)
    }
    return {n: parameters(v) for n, v in sorted(public.items())} | {
        f"{n}.{m}": p for n, v in public.items() for m, p in methods(v)
    }


def defined_in(value: Any, module: str) -> bool:
    return (inspect.isclass(value) or inspect.isfunction(value)) and value.__module__ == module


def methods(value: Any) -> Iterator[tuple[str, list[str]]]:
    if inspect.isclass(value):
        for name, member in sorted(vars(value).items()):
            if not name.startswith("_") and inspect.isfunction(member):
                yield name, parameters(member)


def parameters(value: Any) -> list[str]:
    try:
        signature = inspect.signature(value)
    except ValueError:
        return []
    return [
        n + "=" * (p.default is not p.empty)
        for n, p in signature.parameters.items()
        if p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL)
    ]


def interface() -> dict[str, Names]:
    return {module: names(module) for module in modules()}


def broken(stored: dict[str, Names], present: dict[str, Names]) -> list[str]:
    """Names that a package written for `stored` may miss."""
    problems = []
    for module, interface in stored.items():
        for name, old in interface.items():
            new = present.get(module, {}).get(name)
            if new is None:
                problems.append(f"{module}.{name} is gone")
                continue
            problems += [
                f"{module}.{name}: parameter {p} is gone"
                for p in old
                if p not in new and p.rstrip("=") + "=" not in new
            ]
            was = {p.rstrip("=") for p in old}
            problems += [
                f"{module}.{name}: parameter {p} is new and has no default"
                for p in new
                if p not in was and p[-1] != "="
            ]
    return problems


def imports(folder: Path) -> set[str]:
    """Modules of stentor that the sources in a folder import."""
    names = set()
    for file in folder.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                names |= {a.name for a in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module:
                names |= (
                    {f"{node.module}.{a.name}" for a in node.names}
                    if node.module == "stentor"
                    else {node.module}
                )
    return {name for name in names if name.startswith("stentor.")}


if __name__ == "__main__":
    STORED.write_text(
        json.dumps({"version": SEAM, "modules": interface()}, indent=1) + "\n", encoding="utf-8"
    )
