"""Draw a long soak: memory over time, and honest requests of each round, quiet and mixed.

Run: python benchmarks/server/soak_plot.py benchmarks/results/FOLDER/soak_hour.json
It writes soak_hour_memory.svg and soak_hour_p99.svg beside the result.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import soak_curve

from stentor.bench.report.plot import Chart, Series, svg

NAMESPACE = '<svg xmlns="http://www.w3.org/2000/svg" '


def memory(result: dict[str, Any]) -> Chart:
    """Resident memory, with the most that is allowed after the first minutes."""
    columns, rows = result["curve"]["columns"], result["curve"]["rows"]
    minutes = [row[columns.index("second")] / 60 for row in rows]
    series = [
        Series(name, minutes, [row[columns.index(key)] for row in rows])
        for name, key in (("resident", "memory_mb"), ("anonymous", "anonymous_mb"))
    ]
    warm = result["judged"].get("memory_warm_mb")
    limit = None if warm is None else round(warm * soak_curve.FLAT, 1)
    return Chart("Memory of the server", "minutes", "MiB", series, limit)


def latency(result: dict[str, Any]) -> Chart:
    """The 99th percentile of honest requests in each round, with twice that of all quiet windows."""
    rounds = result["judged"]["rounds"]

    def known(key: str) -> tuple[list[float], list[float]]:
        """The rounds in which an honest request ended, and their figures."""
        pairs = [(i, r[key]) for i, r in enumerate(rounds, 1) if r[key] is not None]
        return [float(i) for i, _ in pairs], [ms for _, ms in pairs]

    series = [
        Series(f"{kind} {figure}", *known(f"{kind}_{figure}_ms"))
        for figure in ("p99", "p50")
        for kind in ("mixed", "quiet")
    ]
    limit = soak_curve.SLOWER * result["judged"]["quiet"]["p99_ms"]
    return Chart("Honest requests", "round of four minutes", "ms", series, round(limit, 1))


def main(path: Path) -> None:
    result = json.loads(path.read_text())
    for name, chart in (("memory", memory(result)), ("p99", latency(result))):
        path.with_name(f"{path.stem}_{name}.svg").write_text(svg(chart).replace("<svg ", NAMESPACE, 1) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
