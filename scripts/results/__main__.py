"""Write docs/results.md and docs/images/results.svg from benchmarks/results/published/*.json.

Run: python -m scripts.results            write both
     python -m scripts.results --check    write nothing, and exit with 1 if either would change
     python -m scripts.results add RAW.json --into voxcpm2_h200 --benchmark serve \\
         --select dummy:voxcpm2 \\
         --date 2026-11-28 --commit dcd4fba \\
         --command "python benchmarks/server/serve.py --out DIR dummy:voxcpm2"
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from scripts.results.chart import chart
from scripts.results.data import PUBLISHED, READERS, ROOT, load
from scripts.results.page import page


def selected(result: Any, model: str | None) -> Any:
    """The part of a result that is of one model: an entry of a dict, or the entries of a list."""
    if model is None:
        return result
    if isinstance(result, dict):
        return result[model]
    entries = [entry for entry in result if entry["model"] == model]
    return entries[0] if len(entries) == 1 else entries


def add(args: argparse.Namespace) -> None:
    """Add a run to a published file."""
    data = load(PUBLISHED, args.into)
    result = selected(json.loads(args.raw.read_text("utf-8")), args.select)
    READERS[args.benchmark](result)  # fails where the result is another benchmark's
    run = {
        "benchmark": args.benchmark,
        "date": args.date,
        "commit": args.commit,
        "command": args.made_by,
    }
    if args.machine:
        run["machine"] = args.machine
    data["runs"].append(run | {"raw": "/".join(args.raw.parts[-2:]), "result": result})
    (PUBLISHED / f"{args.into}.json").write_text(
        json.dumps(data, indent=1) + "\n", encoding="utf-8"
    )


def arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        "python -m scripts.results",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--check",
        action="store_true",
        help="write nothing, exit with 1 if page or chart would change",
    )
    new = parser.add_subparsers(dest="action").add_parser(
        "add", help="add a run to a published file"
    )
    new.add_argument(
        "raw", type=Path, help="what the benchmark wrote, in a folder of benchmarks/results/raw"
    )
    new.add_argument(
        "--into", required=True, help="a file of benchmarks/results/published, without .json"
    )
    new.add_argument("--benchmark", required=True, choices=sorted(READERS))
    new.add_argument("--select", metavar="MODEL", help="the model, where the file has several")
    new.add_argument("--date", required=True, help="YYYY-MM-DD")
    new.add_argument("--commit", required=True)
    new.add_argument("--command", required=True, dest="made_by", help="the command that made it")
    new.add_argument("--machine", help="what it ran on, where that is a CPU")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    args = arguments().parse_args(argv)
    if args.action == "add":
        add(args)
    files = {
        ROOT / "docs" / "results.md": page(),
        ROOT / "docs" / "images" / "results.svg": chart(),
    }
    stale = [
        path for path, text in files.items() if not path.exists() or path.read_text("utf-8") != text
    ]
    for path in stale:
        print(f"{path.relative_to(ROOT)} {'is stale' if args.check else 'written'}")
        if not args.check:
            path.write_text(files[path], encoding="utf-8")
    return int(args.check and bool(stale))


if __name__ == "__main__":
    sys.exit(main())
