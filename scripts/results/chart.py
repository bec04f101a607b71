"""docs/images/results.svg: stentor beside other engines on one card, light or dark as the reader's
system is."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

from scripts.results.data import PUBLISHED, Served, load, published
from scripts.results.page import Rates, ms, peer_rates, rates

WIDTH, LEFT, RIGHT, BAR, GAP = 760, 204, 90, 20, 7
MOST = 64  # streams of the first panel
STYLE = """\
  <style>
    text { font: 13px system-ui, -apple-system, "Segoe UI", Roboto, Helvetica, Arial, sans-serif; fill: #1f2328 }
    .bold { font-weight: 600 } .title { font-weight: 600; font-size: 15px }
    .note { fill: #59636e; font-weight: 400; font-size: 13px }
    .ours { fill: #0b7285 } .other { fill: #aeb8c2 } .card { fill: #ffffff; stroke: #d1d9e0 }
    @media (prefers-color-scheme: dark) {
      text { fill: #f0f6fc } .note { fill: #9198a1 }
      .ours { fill: #3bc9db } .other { fill: #4f5864 } .card { fill: #0d1117; stroke: #3d444d }
    }
  </style>"""


@dataclass(frozen=True)
class Bar:
    label: str
    value: float
    text: str
    ours: bool


def engines(served: Iterable[Served], peers: dict[str, Any], model: str) -> list[tuple[str, Rates]]:
    """Figures of each engine that served the model on the card, stentor's first."""
    ours = [("stentor", rates(s)) for s in served if (s.model, s.card) == (model, peers["card"])]
    theirs = [
        (f"{p['peer']} {p['version']}", peer_rates(p))
        for p in peers["measured"]
        if p["model"] == model
    ]
    return ours + theirs


def throughput(found: Iterable[tuple[str, Rates]]) -> list[Bar]:
    """Bars of the engines that served more than 16 streams, each at its most up to MOST."""
    bars = []
    for label, levels in found:
        rates = {n: rate for n, (rate, _) in levels.items() if n <= MOST and rate is not None}
        if (streams := max(rates, default=0)) > 16:
            note = "" if streams == MOST else f" ({streams} streams)"
            bars.append(
                Bar(label, rates[streams], f"{rates[streams]:,.0f}{note}", label == "stentor")
            )
    return sorted(bars, key=lambda b: -b.value)


def first_audio(found: Iterable[tuple[str, Rates]]) -> list[Bar]:
    """Bars of first audio of one stream."""
    alone = [(label, levels[1][1]) for label, levels in found if 1 in levels]
    bars = [
        Bar(label, first, ms(first), label == "stentor")
        for label, first in alone
        if first is not None
    ]
    return sorted(bars, key=lambda b: b.value)


def chart(folder: Path = PUBLISHED) -> str:
    served, peers = published(folder), load(folder, "peers")
    models = list(dict.fromkeys(p["model"] for p in peers["measured"]))
    bars_by_model = {model: engines(served, peers, model) for model in models}
    y = 22
    body: list[str] = []
    for title, note, bars in (
        (f"Seconds of speech made per second, {MOST} streams", "longer is better", throughput),
        ("First audio of one stream, milliseconds", "shorter is better", first_audio),
    ):
        y, lines = panel(title, note, {model: bars(bars_by_model[model]) for model in models}, y)
        body += lines
    description = (
        f"One {peers['card']}, random weights of released sizes, measured by the authors of "
        "stentor: docs/results.md"
    )
    height = y + 20
    return "\n".join([
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}">',
        f"  <title>{escape(description)}</title>",
        STYLE,
        f'  <rect class="card" x="0.5" y="0.5" width="{WIDTH - 1}" height="{height - 1}" rx="8"/>',
        *body,
        f'  <text class="note" x="24" y="{y}">{escape(description)}</text>',
        "</svg>\n",
    ])  # fmt: skip


def panel(title: str, note: str, groups: dict[str, Sequence[Bar]], y: int) -> tuple[int, list[str]]:
    """Draw bars under a title, on one scale. Return where the next begins, and the lines."""
    lines = [
        f'  <text class="title" x="24" y="{y + 14}">{title} <tspan class="note">{note}</tspan></text>'
    ]
    largest, y = max(bar.value for bars in groups.values() for bar in bars), y + 28
    for model, bars in groups.items():
        lines.append(f'  <text class="bold" x="24" y="{y + 16}">{escape(model)}</text>')
        y += 24
        for bar in bars:
            lines += drawn(bar, y, round((WIDTH - LEFT - RIGHT) * bar.value / largest))
            y += BAR + GAP
    return y + 20, lines


def drawn(bar: Bar, y: int, width: int) -> list[str]:
    bold, kind = (' class="bold"', "ours") if bar.ours else ("", "other")
    return [
        f'  <text{bold} x="{LEFT - 8}" y="{y + 15}" text-anchor="end">{escape(bar.label)}</text>',
        f'  <rect class="{kind}" x="{LEFT}" y="{y}" width="{width}" height="{BAR}" rx="3"/>',
        f'  <text{bold} x="{LEFT + width + 8}" y="{y + 15}">{escape(bar.text)}</text>',
    ]
