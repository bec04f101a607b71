"""How the house is kept, in figures: size, imports, documentation, prose. `python -m tests.helpers.house [REPOSITORY]`

Prints a Markdown table with one column for the package and one for each of its rooms, then the figures of the prose.
"""

from __future__ import annotations

import ast
import re
import statistics
import sys
import tokenize
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from tests.helpers.import_graph import ImportGraph, Module, circles, longest_chain

ROOMS = ("engine", "kernels", "layers", "models", "server", "bench")
PROSE = ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "docs")
Function = ast.FunctionDef | ast.AsyncFunctionDef


def spread(values: Iterable[int]) -> str:
    """Median / 95th percentile / maximum."""
    ordered = sorted(values)
    if not ordered:
        return "-"
    return f"{int(statistics.median(ordered) + 0.5)} / {ordered[int(0.95 * len(ordered))]} / {ordered[-1]}"


def arguments(function: Function) -> int:
    a = function.args
    return (
        len([*a.posonlyargs, *a.args, *a.kwonlyargs])
        + (a.vararg is not None)
        + (a.kwarg is not None)
    )


def comments(module: Module, word: str = "") -> int:
    """Lines with a comment that contains `word`."""
    with module.path.open("rb") as file:
        found = [t.string for t in tokenize.tokenize(file.readline) if t.type == tokenize.COMMENT]
    return sum(word in text for text in found)


def is_kernel(function: Function) -> bool:
    return any("jit" in ast.dump(decorator) for decorator in function.decorator_list)


def public(module: Module) -> list[ast.AST]:
    """Public classes, functions and methods of public classes."""
    found: list[ast.AST] = []

    def visit(body: list[ast.stmt]) -> None:
        for node in body:
            if isinstance(node, Function | ast.ClassDef) and not node.name.startswith("_"):
                found.append(node)
                if isinstance(node, ast.ClassDef):
                    visit(node.body)

    visit(module.tree.body)
    return found


def percent(part: float, whole: float) -> str:
    return f"{100 * part / whole:.1f}" if whole else "-"


@dataclass
class Figures:
    """The figures of some modules."""

    modules: list[Module]
    graph: ImportGraph

    @property
    def lines(self) -> int:
        return sum(self.lengths())

    def lengths(self) -> list[int]:
        return [len(m.text.splitlines()) for m in self.modules]

    def functions(self) -> list[Function]:
        return [f for m in self.modules for f in m.functions()]

    def walk(self) -> Iterable[ast.AST]:
        return (node for m in self.modules for node in ast.walk(m.tree))

    def per_thousand(self, count: int) -> str:
        return f"{1000 * count / self.lines:.1f} ({count})"

    def names(self, name: str) -> int:
        return sum(isinstance(n, ast.Name) and n.id == name for n in self.walk())

    def isinstances_and_raises(self) -> str:
        nodes = list(self.walk())
        checks = sum(
            isinstance(n, ast.Call) and isinstance(n.func, ast.Name) and n.func.id == "isinstance"
            for n in nodes
        )
        raises = sum(isinstance(n, ast.Raise) for n in nodes)
        return f"{1000 * checks / self.lines:.1f} / {1000 * raises / self.lines:.1f} ({raises})"

    def circles(self) -> str:
        names = {m.name for m in self.modules}
        found = [
            str(len(c))
            for c in circles(self.graph.edges())
            if names.issuperset(c) or len(names) == len(c)
        ]
        return ", ".join(found) or "0"

    def table(self) -> dict[str, str]:
        functions = self.functions()
        lengths = [f.end_lineno - f.lineno + 1 for f in functions if f.end_lineno]
        named = [node for m in self.modules for node in public(m)]
        typed = [f for f in functions if not is_kernel(f)]
        return {
            "lines / files": f"{self.lines:,} / {len(self.modules)}",
            "file median / p95 / max": spread(self.lengths()),
            "function median / p95 / max": spread(lengths),
            "arguments p95 / max": spread(map(arguments, functions)).split(" / ", 1)[-1],
            "circles, files in each": self.circles(),
            "comment lines %": percent(sum(map(comments, self.modules)), self.lines),
            "docstrings on public names %": percent(
                sum(bool(ast.get_docstring(n)) for n in named), len(named)
            ),
            "return annotations %": percent(sum(f.returns is not None for f in typed), len(typed)),
            "type: ignore / noqa": " / ".join(
                str(sum(comments(m, w) for m in self.modules)) for w in ("type: ignore", "noqa")
            ),
            "fmt: skip": str(sum(comments(m, "fmt: skip") for m in self.modules)),
            "`Any` per 1k lines": self.per_thousand(self.names("Any")),
            "global": str(sum(isinstance(n, ast.Global) for n in self.walk())),
            "isinstance / raise per 1k": self.isinstances_and_raises(),
        }


def prose(text: str) -> str:
    """Return a Markdown file without code, tables, links' targets and headings."""
    text = re.sub(r"^(```|~~~).*?^\1", "", text, flags=re.M | re.S)
    lines = [line for line in text.splitlines() if not line.lstrip().startswith(("|", "#", "    "))]
    text = re.sub(r"`[^`\n]*`", "CODE", "\n".join(lines))
    return re.sub(r"\]\([^)]*\)", "]", text)


def words(text: str) -> list[str]:
    return [w for w in text.split() if re.search(r"\w", w)]


def sentences(text: str) -> list[int]:
    """Words of every sentence. A list item or a paragraph ends one."""
    blocks = re.split(r"\n\s*\n|\n\s*(?:[-*]|\d+\.)\s", text)
    found = [len(words(s)) for block in blocks for s in re.split(r"(?<=[.!?])\s+", block)]
    return [n for n in found if n > 1]


def prose_row(name: str, text: str) -> str:
    plain = prose(text)
    counts, total = sentences(plain), len(words(plain))
    if not counts:
        return f"| {name} | 0 | - | - |"
    p90 = sorted(counts)[int(0.9 * len(counts))]
    return f"| {name} | {total} | {statistics.mean(counts):.0f} / {p90} | {1000 * plain.count(';') / total:.1f} |"


def documents(root: Path) -> dict[str, str]:
    found = {}
    for name in PROSE:
        path = root / name
        for file in sorted(path.rglob("*.md")) if path.is_dir() else [path]:
            found[str(file.relative_to(root))] = file.read_text(encoding="utf-8")
    return found


def report(root: Path) -> str:
    graph = ImportGraph(root / "stentor")
    groups = {"stentor": list(graph.modules.values())}
    for room in ROOMS:
        found = [m for m in graph.modules.values() if f"{m.name}.".startswith(f"stentor.{room}.")]
        if found:
            groups[room] = found
    tables = {name: Figures(modules, graph).table() for name, modules in groups.items()}
    at_load = graph.edges(lambda i: not i.lazy and not i.typing)
    at_load_chain, chain = longest_chain(at_load), longest_chain(graph.edges())
    out = ["| | " + " | ".join(tables) + " |", "|---" * (len(tables) + 1) + "|"]
    out += [
        "| " + " | ".join([row, *(t[row] for t in tables.values())]) + " |"
        for row in tables["stentor"]
    ]
    out += [
        "",
        f"import depth: {len(at_load_chain)} at load, {len(chain)} with lazy and type-only imports",
        f"longest chain at load: {' > '.join(at_load_chain)}",
        f"longest chain: {' > '.join(chain)}",
        f"circles at load: {len(circles(at_load))}",
        *(f"circle: {', '.join(c)}" for c in circles(graph.edges())),
    ]
    tests = sorted((root / "tests").rglob("*.py"))
    text = [p.read_text(encoding="utf-8") for p in tests]
    count = sum(len(re.findall(r"^\s*(?:async )?def test_", t, flags=re.M)) for t in text)
    out.append(f"tests: {sum(len(t.splitlines()) for t in text):,} lines, {count} test functions")
    docs = documents(root)
    log = {n: t for n, t in docs.items() if n.startswith("docs/log/")}
    rest = "\n\n".join(t for n, t in docs.items() if n not in log)
    out += [
        "",
        "| prose | words | words a sentence, mean / p90 | semicolons per 1,000 words |",
        "|---|---|---|---|",
    ]
    out += [prose_row("all but the log", rest), *(prose_row(n, t) for n, t in docs.items())]
    return "\n".join(out)


if __name__ == "__main__":
    print(report(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parents[2]))
