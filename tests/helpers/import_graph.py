"""Imports in a package, read from the syntax trees: nothing is run.

Every import counts: at the top of a module, inside a function (lazy), and under TYPE_CHECKING. A reader has to follow
all three. `from stentor import kernels` followed by `kernels.gemv.run(...)` counts as an import of `stentor.kernels.gemv`
as well, because PEP 562 loads that module when its attribute is first used.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

Edges = dict[str, set[str]]


@dataclass(frozen=True)
class Import:
    """`target` is a module of the package, or the full name of something outside it."""

    source: str
    target: str
    line: int
    lazy: bool
    typing: bool

    def __str__(self) -> str:
        return f"{self.source}:{self.line} imports {self.target}"


@dataclass(frozen=True)
class Module:
    """A file of the package."""

    name: str
    path: Path
    text: str = field(repr=False)
    tree: ast.Module = field(repr=False)

    @property
    def is_package(self) -> bool:
        return self.path.name == "__init__.py"

    def functions(self) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
        for node in ast.walk(self.tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                yield node


def read(root: Path) -> dict[str, Module]:
    """The modules of the package in the folder `root`, by name."""
    modules = {}
    for path in sorted(root.rglob("*.py")):
        parts = path.relative_to(root.parent).with_suffix("").parts
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        text = path.read_text(encoding="utf-8")
        modules[name] = Module(name, path, text, ast.parse(text))
    return modules


class _Collector(ast.NodeVisitor):
    """The imports of one module."""

    def __init__(self, module: Module, names: Iterable[str]) -> None:
        self.module, self.names = module, frozenset(names)
        self.found: list[Import] = []
        self.packages: dict[str, str] = {}  # a local name that stands for a package
        self.lazy = self.typing = False

    def _add(self, target: str, line: int) -> None:
        self.found.append(Import(self.module.name, target, line, self.lazy, self.typing))

    def visit_Import(self, node: ast.Import) -> None:
        for alias in node.names:
            self._add(alias.name, node.lineno)

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        base = node.module or ""
        if node.level:
            here = self.module.name.split(".")
            up = node.level - self.module.is_package
            base = ".".join([*here[: len(here) - up], *([base] if base else [])])
        for alias in node.names:
            whole = f"{base}.{alias.name}"
            self._add(whole if whole in self.names else base, node.lineno)
            if whole in self.names:
                self.packages[alias.asname or alias.name] = whole

    def visit_Attribute(self, node: ast.Attribute) -> None:
        if isinstance(node.value, ast.Name) and node.value.id in self.packages:
            whole = f"{self.packages[node.value.id]}.{node.attr}"
            if whole in self.names:
                self._add(whole, node.lineno)
        self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> None:
        for argument in node.args:
            if isinstance(argument, ast.Constant) and argument.value in self.names:
                self._add(
                    argument.value, node.lineno
                )  # import_module("stentor.x"), monkeypatches and the like
        self.generic_visit(node)

    def visit_If(self, node: ast.If) -> None:
        if "TYPE_CHECKING" not in ast.dump(node.test):
            self.generic_visit(node)
            return
        before, self.typing = self.typing, True
        for child in node.body:
            self.visit(child)
        self.typing = before
        for child in node.orelse:
            self.visit(child)

    def _inside_a_function(self, node: ast.AST) -> None:
        before, self.lazy = self.lazy, True
        self.generic_visit(node)
        self.lazy = before

    visit_FunctionDef = visit_AsyncFunctionDef = visit_Lambda = _inside_a_function


class ImportGraph:
    """The imports of the package in the folder `root`."""

    def __init__(self, root: Path) -> None:
        self.modules = read(root)
        self.package = root.name
        self.imports: list[Import] = []  # within the package
        self.outside: list[Import] = []
        for module in self.modules.values():
            collector = _Collector(module, self.modules)
            collector.visit(module.tree)
            for found in collector.found:
                inside = found.target in self.modules
                (self.imports if inside else self.outside).append(found)

    def edges(self, wanted: Callable[[Import], bool] = lambda _: True) -> Edges:
        found: Edges = {name: set() for name in self.modules}
        for imported in self.imports:
            if wanted(imported) and imported.source != imported.target:
                found[imported.source].add(imported.target)
        return found

    @cached_property
    def reexports(self) -> dict[str, dict[str, str]]:
        """For a package, which of its modules each name of its `__init__` comes from."""
        found: dict[str, dict[str, str]] = {}
        for module in self.modules.values():
            if module.is_package:
                found[module.name] = {
                    alias.asname or alias.name: node.module
                    for node in ast.walk(module.tree)
                    if isinstance(node, ast.ImportFrom) and node.module in self.modules
                    for alias in node.names
                    if f"{node.module}.{alias.name}" not in self.modules
                }
        return found

    @cached_property
    def users(self) -> Edges:
        """For every module, who uses it: importers, where a package's `__init__` stands for what was taken from it."""
        found: Edges = {name: set() for name in self.modules}
        for imported in self.imports:
            if not self.modules[imported.source].is_package:
                found[imported.target].add(imported.source)
        for module in self.modules.values():
            for source, name in self._names_taken(module):
                origin = self.reexports.get(source, {}).get(name)
                if origin is not None and not module.is_package:
                    found[origin].add(module.name)
        return found

    def _names_taken(self, module: Module) -> Iterator[tuple[str, str]]:
        """Pairs of a package and a name that the module takes from its `__init__`."""
        packages = {}
        for node in ast.walk(module.tree):
            if isinstance(node, ast.ImportFrom) and not node.level:
                for alias in node.names:
                    yield node.module or "", alias.name
                    packages[alias.asname or alias.name] = f"{node.module}.{alias.name}"
        for node in ast.walk(module.tree):
            if (
                isinstance(node, ast.Attribute)
                and isinstance(node.value, ast.Name)
                and node.value.id in packages
            ):
                yield packages[node.value.id], node.attr


def circles(edges: Edges) -> list[list[str]]:
    """Strongly connected components of more than one module (Tarjan), the largest first."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found: list[list[str]] = []

    def visit(name: str) -> None:
        index[name] = low[name] = len(index)
        stack.append(name)
        for other in edges[name]:
            if other not in index:
                visit(other)
                low[name] = min(low[name], low[other])
            elif other in stack:
                low[name] = min(low[name], index[other])
        if low[name] == index[name]:
            component = stack[stack.index(name) :]
            del stack[stack.index(name) :]
            if len(component) > 1:
                found.append(sorted(component))

    for name in edges:
        if name not in index:
            visit(name)
    return sorted(found, key=len, reverse=True)


def longest_chain(edges: Edges) -> list[str]:
    """The longest chain of imports, the importer first. The modules of a circle count as one."""
    home = {name: name for name in edges}
    for circle in circles(edges):
        home.update(dict.fromkeys(circle, circle[0]))
    collapsed: Edges = {}
    for name, targets in edges.items():
        collapsed.setdefault(home[name], set()).update(
            home[t] for t in targets if home[t] != home[name]
        )
    known: dict[str, list[str]] = {}

    def below(name: str) -> list[str]:
        if name not in known:
            known[name] = [name, *max(map(below, sorted(collapsed[name])), key=len, default=[])]
        return known[name]

    return max(map(below, sorted(collapsed)), key=len)
