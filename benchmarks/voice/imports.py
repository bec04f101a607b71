"""Imports of a cold `stentor say`: modules and CPU time of each package, as a Markdown table.

    python benchmarks/voice/imports.py [--rounds 9] [--json imports.json]

Each round is a fresh process. The least of a module's CPU times counts, without what it imports.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from importlib.machinery import ExtensionFileLoader, SourceFileLoader
from pathlib import Path
from types import ModuleType
from typing import Any

TEXT = "The herald has fifty voices, and all of them speak at once tonight."
STANDARD = "the standard library"
MARK = "imports: "
"""Begins the line in which a child reports."""


class Clock:
    """CPU seconds of every module's own code, without the modules that it imports."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = defaultdict(float)
        self._nested = [0.0]  # seconds inside what each module on the stack imports

    def watch(self, loader: type, method: str, name_of: Callable[[Any], str]) -> None:
        """Measure a method of a loader. name_of: from its argument to the module's name."""
        run = getattr(loader, method)

        def measured(self: Any, argument: Any) -> Any:
            clock._nested.append(0.0)
            started = time.process_time()
            try:
                return run(self, argument)
            finally:
                spent = time.process_time() - started
                clock.seconds[name_of(argument)] += spent - clock._nested.pop()
                clock._nested[-1] += spent

        clock = self
        setattr(loader, method, measured)


def speak() -> None:
    """Run `stentor say` in this process, and report what its modules took."""
    clock = Clock()

    def by_spec(spec: Any) -> str:
        return str(spec.name)

    def by_module(module: ModuleType) -> str:
        return module.__name__

    clock.watch(SourceFileLoader, "exec_module", by_module)
    clock.watch(ExtensionFileLoader, "create_module", by_spec)
    clock.watch(ExtensionFileLoader, "exec_module", by_module)
    from stentor.cli import main

    with tempfile.TemporaryDirectory() as folder:
        main(["say", TEXT, "-o", f"{folder}/out.wav"])
    print(MARK + json.dumps(clock.seconds))


def package(module: str) -> str:
    """The row of the table that a module belongs to."""
    first, _, rest = module.partition(".")
    if first in sys.stdlib_module_names:
        return STANDARD
    if first == "stentor" and rest:
        return f"stentor.{rest.partition('.')[0]}"
    return first


def measure(rounds: int) -> dict[str, float]:
    """Least CPU seconds of each module."""
    least: dict[str, float] = {}
    for _ in range(rounds):
        command = [sys.executable, __file__, "--speak"]
        process = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
        (report,) = [line for line in process.stdout.splitlines() if line.startswith(MARK)]
        for name, seconds in json.loads(report.removeprefix(MARK)).items():
            least[name] = min(seconds, least.get(name, seconds))
    return least


def table(modules: dict[str, float]) -> str:
    """Packages, the dearest first. Those below a millisecond share one row."""
    seconds: dict[str, float] = defaultdict(float)
    counts: dict[str, int] = defaultdict(int)
    for name, spent in modules.items():
        row = package(name)
        seconds[row] += spent
        counts[row] += 1

    dear = [row for row in seconds if seconds[row] >= 1e-3]
    cheap = [row for row in seconds if seconds[row] < 1e-3]
    lines = ["| package | modules | CPU ms |", "|---|---|---|"]
    for row in sorted(dear, key=lambda row: -seconds[row]):
        lines.append(f"| {row} | {counts[row]} | {1e3 * seconds[row]:.1f} |")
    rest = sum(seconds[row] for row in cheap)
    modules_of_rest = sum(counts[row] for row in cheap)
    lines.append(f"| {len(cheap)} others | {modules_of_rest} | {1e3 * rest:.1f} |")
    lines.append(f"| all | {len(modules)} | {1e3 * sum(modules.values()):.1f} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--speak", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.speak:
        speak()
        return
    modules = measure(args.rounds)
    print(table(modules))
    if args.json:
        rounded = {name: round(spent, 5) for name, spent in sorted(modules.items())}
        args.json.write_text(json.dumps(rounded) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
