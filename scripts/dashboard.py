"""Ten minutes of load, drawn as deploy/monitoring/grafana.json draws it.

    python scripts/dashboard.py OUT.json docs/images/dashboard.svg [--minutes 10]

Starts `stentor serve dummy:toy` and Prometheus (which must be on the PATH), with the scrape
settings and the rules of deploy/monitoring. Requests come at random moments, most of them streams.
In the middle they are four times as many. Then each query of the board is evaluated by Prometheus
over that time. OUT.json has what it gave.
"""

from __future__ import annotations

import argparse
import asyncio
import html
import json
import random
import re
import subprocess
import sys
import tempfile
import time
import urllib.parse
import urllib.request
from pathlib import Path
from typing import Any

import httpx
import yaml

from stentor.bench.report.plot import Chart, Series, svg

ROOT = Path(__file__).parents[1]
MONITORING = ROOT / "deploy" / "monitoring"
RATE, PEAK, PEAK_FROM, PEAK_TO = 0.5, 2.0, 0.4, 0.6
"""Requests a second, those at the peak, and the parts of the time between which it is."""
STEP = 10  # seconds between points
TEXTS = (
    "Hello there.",
    "The meeting is at noon on Friday.",
    "It rained, so we stayed inside and read for hours.",
)
WIDTH, HEIGHT, COLUMNS = 720, 340, 2


async def load(url: str, seconds: float) -> dict[str, int]:
    """Send requests for so long. Returns how many had which outcome."""
    outcomes: dict[str, int] = {}
    chance = random.Random(1)

    async def one(client: httpx.AsyncClient) -> None:
        frames = chance.randint(20, 100)
        body = {
            "input": chance.choice(TEXTS),
            "response_format": "pcm",
            "guard": False,
            "max_frames": frames,
            "min_frames": frames,
        }
        answer = await client.post(
            "/v1/audio/speech", json={**body, "stream": chance.random() < 0.8}
        )
        outcomes[str(answer.status_code)] = outcomes.get(str(answer.status_code), 0) + 1

    began = time.monotonic()
    async with (
        httpx.AsyncClient(base_url=url, timeout=60, trust_env=False) as client,
        asyncio.TaskGroup() as group,
    ):
        while (now := time.monotonic() - began) < seconds:
            group.create_task(one(client))
            await asyncio.sleep(
                chance.expovariate(PEAK if PEAK_FROM <= now / seconds < PEAK_TO else RATE)
            )
    return outcomes


def evaluate(prometheus: str, query: str, began: float, ended: float) -> list[dict[str, Any]]:
    """The series of a query between two moments."""
    query = query.replace("$__rate_interval", "30s").replace("$model", ".*")
    parameters = urllib.parse.urlencode(
        {"query": query, "start": began, "end": ended, "step": STEP}
    )
    with urllib.request.urlopen(
        f"{prometheus}/api/v1/query_range?{parameters}", timeout=60
    ) as answer:
        series: list[dict[str, Any]] = json.load(answer)["data"]["result"]
    return series


def named(legend: str, labels: dict[str, str]) -> str:
    return re.sub(r"\{\{(\w+)\}\}", lambda m: labels.get(m[1], ""), legend)


def chart(panel: dict[str, Any], data: dict[str, list[dict[str, Any]]], began: float) -> Chart:
    lines = []
    for target in panel["targets"]:
        for series in data[target["expr"]]:
            points = [
                (float(t) - began, float(v))
                for t, v in series["values"]
                if v not in ("NaN", "+Inf")
            ]
            if points:
                x, y = zip(*points, strict=True)
                lines.append(
                    Series(named(target["legendFormat"], series["metric"]), [t / 60 for t in x], y)
                )
    return Chart(panel["title"], "minutes", panel["fieldConfig"]["defaults"]["unit"], lines)


def picture(board: dict[str, Any], data: dict[str, list[dict[str, Any]]], began: float) -> str:
    """All panels that have data, as one SVG."""
    charts = [c for panel in board["panels"] if (c := chart(panel, data, began)).series]
    rows = -(-len(charts) // COLUMNS)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {COLUMNS * WIDTH} {rows * HEIGHT}">',
        f"<title>{html.escape(board['title'])}</title>",
        '<rect width="100%" height="100%" fill="#fff"/>',
    ]
    for i, one in enumerate(charts):
        at = f'x="{WIDTH * (i % COLUMNS)}" y="{HEIGHT * (i // COLUMNS)}" height="{HEIGHT}"'
        parts.append(svg(one).replace("<svg ", f"<svg {at} ", 1))
    return "".join([*parts, "</svg>\n"])


def ready(url: str) -> None:
    for _ in range(600):
        try:
            with urllib.request.urlopen(url, timeout=2):
                return
        except OSError:
            time.sleep(0.2)
    raise SystemExit(f"{url} does not answer")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("out", type=Path)
    parser.add_argument("svg", type=Path)
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--port", type=int, default=8765)
    args = parser.parse_args()
    board = json.loads((MONITORING / "grafana.json").read_text(encoding="utf-8"))
    queries = [target["expr"] for panel in board["panels"] for target in panel["targets"]]
    url = f"http://127.0.0.1:{args.port}"
    prometheus = f"http://127.0.0.1:{args.port + 1}"
    with tempfile.TemporaryDirectory() as folder:
        config = yaml.safe_load((MONITORING / "prometheus.yml").read_text(encoding="utf-8"))
        config["scrape_configs"][0]["static_configs"] = [{"targets": [f"127.0.0.1:{args.port}"]}]
        config["rule_files"] = [str(MONITORING / "rules.yaml")]
        (Path(folder) / "prometheus.yml").write_text(yaml.safe_dump(config), encoding="utf-8")
        serve = [sys.executable, *f"-m stentor serve dummy:toy --port {args.port}".split()]
        serve += ["--threads", "1"]
        scrape = [
            "prometheus",
            f"--config.file={folder}/prometheus.yml",
            f"--storage.tsdb.path={folder}/data",
        ]
        scrape += [f"--web.listen-address=127.0.0.1:{args.port + 1}", "--log.level=warn"]
        server, scraper = subprocess.Popen(serve), subprocess.Popen(scrape)
        try:
            ready(f"{url}/ready")
            ready(f"{prometheus}/-/ready")
            began = time.time()
            outcomes = asyncio.run(load(url, 60 * args.minutes))
            ended = time.time()
            data = {query: evaluate(prometheus, query, began, ended) for query in queries}
            with urllib.request.urlopen(f"{prometheus}/api/v1/alerts", timeout=60) as answer:
                alerts = json.load(answer)["data"]["alerts"]
        finally:
            for process in (server, scraper):
                process.terminate()
                process.wait()
    fired = sorted({a["labels"]["alertname"] for a in alerts if a["state"] == "firing"})
    result = {
        "minutes": args.minutes,
        "rate": RATE,
        "peak": PEAK,
        "began": began,
        "outcomes": outcomes,
        "alerts": fired,
    }
    args.out.parent.mkdir(parents=True, exist_ok=True)
    args.out.write_text(
        json.dumps({**result, "queries": data}, indent=None) + "\n", encoding="utf-8"
    )
    args.svg.write_text(picture(board, data, began), encoding="utf-8")
    print({k: v for k, v in result.items() if k != "began"})


if __name__ == "__main__":
    main()
