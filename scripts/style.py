"""Measure how densely the package is written: `python scripts/style.py`, which scripts/check runs.

Files that miss a bar stand in scripts/style_exceptions.txt with the measures that they miss, under
the reason for it. The list may only shrink: a file that misses a bar and is not listed fails the
check, and so does an entry that is no longer needed or has no reason.

    python scripts/style.py              check the files, and the commits that main does not have
    python scripts/style.py FILE ...     print each place in these files that a measure counts
    python scripts/style.py --rooms      print the figures of each room
    python scripts/style.py --update     drop what is no longer needed from the list
"""

from __future__ import annotations

import argparse
import ast
import io
import re
import subprocess
import sys
import tokenize
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
TREES = ("stentor", "scripts")
EXCEPTIONS = ROOT / "scripts" / "style_exceptions.txt"
REASON = "#"
"""Begins a line with the reason of the entries below it."""

TOKENS_PER_LINE = 10.0
COLUMNS = 100
SUBJECT = 72
ROOT_FILES = 12
FILLER = re.compile(
    "asked|begun|done|found|gone|given|held|heard|kept|known|left|let|made|met|most|named|own|"
    "said|seen|shown|taken|told|used|wanted|whole"
)
"""Participles and fillers. The noun that the thing is makes a better name."""
SPEECH = re.compile(
    r"\b(says?|said|tells?|told|hears?|heard|asks?|asked|gives?|given|lets?|wish|wishes)\b",
    re.IGNORECASE,
)
"""People's verbs. Machines return, report, notify, detect, release and cache."""
LAYOUT = {
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.COMMENT,
    tokenize.ENDMARKER,
}
DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


@dataclass(frozen=True)
class Place:
    """A line that a measure counts."""

    line: int
    text: str


class Source:
    """A Python file, parsed once for all measures."""

    def __init__(self, path: str, text: str) -> None:
        self.path = path
        self.text = text
        self.tree = ast.parse(text)
        self.nodes = list(ast.walk(self.tree))

    @cached_property
    def docstrings(self) -> list[ast.Expr]:
        """Docstrings of the module, its classes and its functions."""
        owners = [node for node in self.nodes if isinstance(node, DOCUMENTED)]
        first = [node.body[0] for node in owners if ast.get_docstring(node)]
        return [node for node in first if isinstance(node, ast.Expr)]

    @cached_property
    def prose_lines(self) -> set[int]:
        """Numbers of the lines that docstrings cover."""
        return lines_of(self.docstrings)

    @cached_property
    def literals(self) -> list[ast.expr]:
        """Strings that are values, not docstrings."""
        prose = {id(node.value) for node in self.nodes if isinstance(node, ast.Expr)}
        strings = [node for node in self.nodes if isinstance(node, ast.Constant | ast.JoinedStr)]
        return [
            node
            for node in strings
            if id(node) not in prose
            and (isinstance(node, ast.JoinedStr) or isinstance(node.value, str))
        ]

    @cached_property
    def code_lines(self) -> int:
        """Lines that are neither blank nor a comment nor part of a docstring."""
        lines = enumerate(self.text.splitlines(), start=1)
        return sum(
            bool(line.strip()) and not line.strip().startswith("#")
            for number, line in lines
            if number not in self.prose_lines
        )

    @cached_property
    def tokens(self) -> int:
        """Tokens outside docstrings and comments."""
        tokens = tokenize.generate_tokens(io.StringIO(self.text).readline)
        return sum(t.type not in LAYOUT and t.start[0] not in self.prose_lines for t in tokens)

    @cached_property
    def tuple_assignments(self) -> list[ast.Assign]:
        """Assignments of a tuple to a tuple."""
        assignments = [node for node in self.nodes if isinstance(node, ast.Assign)]
        return [
            node
            for node in assignments
            if isinstance(node.targets[0], ast.Tuple) and isinstance(node.value, ast.Tuple)
        ]

    @cached_property
    def stored_names(self) -> list[ast.Name]:
        """Names of variables, where they are assigned."""
        names = [node for node in self.nodes if isinstance(node, ast.Name)]
        return [name for name in names if isinstance(name.ctx, ast.Store)]

    @cached_property
    def conditionals(self) -> list[ast.IfExp]:
        """Conditional expressions."""
        return [node for node in self.nodes if isinstance(node, ast.IfExp)]

    def places(self, nodes: Iterable[ast.expr | ast.stmt]) -> list[Place]:
        """The lines of these nodes, with their source."""
        return [Place(node.lineno, ast.unparse(node)) for node in nodes]


def dense(source: Source) -> list[Place]:
    """The file itself, if its lines hold too many tokens on average."""
    density = source.tokens / max(source.code_lines, 1)
    if density <= TOKENS_PER_LINE:
        return []
    return [Place(1, f"{density:.2f} tokens per line of code, at most {TOKENS_PER_LINE}")]


def unrelated_tuples(source: Source) -> list[Place]:
    """Tuple assignments whose values have different forms. A swap or a rotation is related."""
    return source.places(node for node in source.tuple_assignments if not is_related(node))


def is_related(assignment: ast.Assign) -> bool:
    """Whether all values have one form, or one needs the old value of a target."""
    targets = {ast.unparse(part) for part in elements(assignment.targets[0])}
    read = {ast.unparse(node) for node in ast.walk(assignment.value) if isinstance(node, ast.expr)}
    forms = {form(value) for value in elements(assignment.value)}
    return bool(targets & read) or len(forms) == 1


def elements(expression: ast.expr) -> list[ast.expr]:
    return expression.elts if isinstance(expression, ast.Tuple) else [expression]


def form(expression: ast.expr) -> str:
    """The kinds of an expression's nodes, without names, constants and operators."""
    varying = (ast.Constant, ast.Name, ast.expr_context, ast.operator, ast.unaryop)
    return " ".join(
        type(node).__name__ for node in ast.walk(expression) if not isinstance(node, varying)
    )


def nested_conditionals(source: Source) -> list[Place]:
    """Conditional expressions inside others."""
    inner = {
        part
        for node in source.conditionals
        for part in ast.walk(node)
        if part is not node and isinstance(part, ast.IfExp)
    }
    return source.places(node for node in source.conditionals if node in inner)


def filler_names(source: Source) -> list[Place]:
    """Variables named by a participle or a filler."""
    return source.places(name for name in source.stored_names if FILLER.fullmatch(name.id))


def long_lines(source: Source) -> list[Place]:
    """Lines over the limit, except for strings and for tables that the formatter skips."""
    lines = source.text.splitlines()
    exempt = lines_of(source.literals)
    for node in source.nodes:
        if isinstance(node, ast.stmt):
            covered = header(node)
            if any("fmt: skip" in lines[number - 1] for number in covered):
                exempt.update(covered)
    return [
        Place(number, f"{len(line)} columns, at most {COLUMNS}")
        for number, line in enumerate(lines, start=1)
        if len(line) > COLUMNS and number not in exempt
    ]


def header(statement: ast.stmt) -> range:
    """Numbers of a statement's lines, without the body of a function."""
    if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef):
        return range(statement.lineno, statement.body[0].lineno)
    if isinstance(statement, ast.ClassDef | ast.If | ast.For | ast.With | ast.Try | ast.While):
        return range(statement.lineno, statement.lineno + 1)
    return range(statement.lineno, (statement.end_lineno or statement.lineno) + 1)


def lines_of(nodes: Iterable[ast.expr | ast.stmt]) -> set[int]:
    """Numbers of the lines that these nodes cover."""
    return {
        line for node in nodes for line in range(node.lineno, (node.end_lineno or node.lineno) + 1)
    }


def speech_verbs(source: Source) -> list[Place]:
    """People's verbs in docstrings."""
    return [
        Place(doc.lineno, f"{verb!r} in a docstring")
        for doc in source.docstrings
        for verb in SPEECH.findall(prose(doc))
    ]


def prose(doc: ast.Expr) -> str:
    """The text of a docstring, without what it quotes as code."""
    text = str(doc.value.value) if isinstance(doc.value, ast.Constant) else ""
    return re.sub(r"`[^`]*`", "``", text)


MEASURES = {
    "tokens": dense,
    "tuples": unrelated_tuples,
    "nested": nested_conditionals,
    "fillers": filler_names,
    "columns": long_lines,
    "verbs": speech_verbs,
}
"""Each returns the places in a file that miss its bar."""

TOTALS = {
    "tokens": ("tokens per line of code", 9.0),
    "tuples": ("tuple assignments per 1,000 lines", 4.0),
    "conditionals": ("conditional expressions per 1,000 lines", 12.0),
    "fillers": ("fillers and participles, % of stored names", 1.0),
    "verbs": ("speech verbs per 1,000 words of docstrings", 2.0),
}
"""Figures of many files together, each with the bar for the package."""


def totals(sources: Iterable[Source]) -> dict[str, float]:
    """The figures in TOTALS for these files."""
    counts: Counter[str] = Counter()
    for source in sources:
        words = [word for doc in source.docstrings for word in prose(doc).split()]
        counts["lines"] += source.code_lines
        counts["tokens"] += source.tokens
        counts["tuples"] += len(source.tuple_assignments)
        counts["conditionals"] += len(source.conditionals)
        counts["names"] += len(source.stored_names)
        counts["fillers"] += len(filler_names(source))
        counts["words"] += len(words)
        counts["verbs"] += len(speech_verbs(source))

    lines = max(counts["lines"], 1)
    return {
        "tokens": counts["tokens"] / lines,
        "tuples": 1000 * counts["tuples"] / lines,
        "conditionals": 1000 * counts["conditionals"] / lines,
        "fillers": 100 * counts["fillers"] / max(counts["names"], 1),
        "verbs": 1000 * counts["verbs"] / max(counts["words"], 1),
    }


def missed(sources: Iterable[Source]) -> dict[str, list[str]]:
    """The measures that each file misses, and those that the package misses as a whole."""
    sources = list(sources)
    by_file = {
        source.path: [name for name, measure in MEASURES.items() if measure(source)]
        for source in sources
    }
    package = [source for source in sources if room(source.path)]
    figures = totals(package)
    by_file["stentor/"] = [name for name, (_, bar) in TOTALS.items() if figures[name] > bar]
    if sum(room(source.path) == "." for source in package) > ROOT_FILES:
        by_file["stentor/"].append("root")
    return {path: names for path, names in by_file.items() if names}


def room(path: str) -> str:
    """The folder of the package that a file is in, "." for its root. Empty outside the package."""
    parts = path.split("/")
    if parts[0] != "stentor":
        return ""
    return parts[1] if len(parts) > 2 else "."


def differences(now: Mapping[str, list[str]], listed: Mapping[str, list[str]]) -> list[str]:
    """How the list of exceptions and the files differ, a line for each difference."""
    lines = []
    for path in sorted({*now, *listed}):
        new = set(now.get(path, ())) - set(listed.get(path, ()))
        old = set(listed.get(path, ())) - set(now.get(path, ()))
        if new:
            lines.append(f"{path}: misses {', '.join(sorted(new))}")
        if old:
            lines.append(
                f"{path}: meets {', '.join(sorted(old))} now, run scripts/style.py --update"
            )
    return lines


def still_needed(
    listed: Mapping[str, list[str]], now: Mapping[str, list[str]]
) -> dict[str, list[str]]:
    """The entries of the list that its files still miss."""
    shorter = {
        path: [name for name in names if name in now.get(path, ())]
        for path, names in listed.items()
    }
    return {path: names for path, names in shorter.items() if names}


def wrong_subjects(subjects: Iterable[str]) -> list[str]:
    """Subjects of commits that are too long or have people's verbs, with what is wrong."""
    lines = []
    for subject in subjects:
        if verb := SPEECH.search(subject):
            lines.append(f"commit {subject!r}: {verb.group()!r} is a verb for people")
        if len(subject) > SUBJECT:
            lines.append(f"commit {subject!r}: {len(subject)} characters, at most {SUBJECT}")
    return lines


def subjects_since(base: str) -> list[str]:
    """Subjects of the commits that are not in `base`. None where git or the base is missing."""
    command = ["git", "-C", str(ROOT), "log", "--no-merges", "--format=%s", f"{base}..HEAD"]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    return run.stdout.splitlines() if run.returncode == 0 else []


def read_sources() -> Iterator[Source]:
    """The Python files of TREES."""
    for tree in TREES:
        for file in sorted((ROOT / tree).rglob("*.py")):
            if "__pycache__" not in file.parts:
                yield Source(file.relative_to(ROOT).as_posix(), file.read_text(encoding="utf-8"))


def read_exceptions() -> dict[str, list[str]]:
    """The listed files, each with the measures that it may miss. SystemExit for one without a
    reason."""
    exceptions: dict[str, list[str]] = {}
    reason = ""
    for line in EXCEPTIONS.read_text(encoding="utf-8").splitlines():
        if line.startswith(REASON):
            reason = line.removeprefix(REASON).strip()
        elif line:
            path, *names = line.split()
            if not reason:
                sys.exit(f"{EXCEPTIONS.name}: {path} stands under no reason (a line of {REASON!r})")
            exceptions[path] = names
    return exceptions


def write_exceptions(exceptions: Mapping[str, list[str]]) -> None:
    """Write the entries that are left under the reasons that they had."""
    rows = []
    for line in EXCEPTIONS.read_text(encoding="utf-8").splitlines():
        path = line.partition(" ")[0]
        if line.startswith(REASON) or not line:
            rows.append(line)
        elif path in exceptions:
            rows.append(" ".join([path, *exceptions[path]]))
    EXCEPTIONS.write_text("\n".join(rows) + "\n", encoding="utf-8")


def print_rooms(sources: Iterable[Source]) -> None:
    """Print a table with a row for each room, and one for the package."""
    rooms: dict[str, list[Source]] = {}
    for source in sources:
        if name := room(source.path):
            rooms.setdefault(name, []).append(source)
    rooms["all"] = [source for files in rooms.values() for source in files]

    print(
        f"{'room':10}{'lines':>8}" + "".join(f"{name:>14}" for name in TOTALS) + f"{'columns':>9}"
    )
    for name, files in rooms.items():
        figures = totals(files)
        lines = sum(file.code_lines for file in files)
        columns = sum(len(long_lines(file)) for file in files)
        cells = "".join(f"{figures[measure]:14.2f}" for measure in TOTALS)
        print(f"{name:10}{lines:8}{cells}{columns:9}")


def print_places(files: Iterable[str]) -> None:
    """Print every place in these files that a measure counts."""
    for file in files:
        source = Source(file, Path(file).read_text(encoding="utf-8"))
        for name, measure in MEASURES.items():
            for place in measure(source):
                print(f"{file}:{place.line}: {name}: {place.text}")


def main() -> int:
    parser = argparse.ArgumentParser(description="Measure how densely the package is written.")
    parser.add_argument("files", nargs="*", help="print what these files miss, and check nothing")
    parser.add_argument("--rooms", action="store_true", help="print the figures of each room")
    parser.add_argument("--update", action="store_true", help="shorten the list of exceptions")
    parser.add_argument(
        "--since", default="main", help="check the commits that are not in this one (main)"
    )
    args = parser.parse_args()

    if args.files:
        print_places(args.files)
        return 0
    sources = list(read_sources())
    if args.rooms:
        print_rooms(sources)
        return 0
    now = missed(sources)
    listed = read_exceptions()
    if args.update:
        listed = still_needed(listed, now)
        write_exceptions(listed)

    problems = differences(now, listed) + wrong_subjects(subjects_since(args.since))
    print(
        "\n".join(problems) or f"style: {len(now)} files are listed as exceptions, all others hold"
    )
    return bool(problems)


if __name__ == "__main__":
    sys.exit(main())
