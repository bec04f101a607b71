"""A self-contained HTML page with line charts as inline SVG: no plotting library, no network, opens
anywhere."""

import html
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

_COLOURS = ("#3567b0", "#d2691e", "#2e8b57", "#b03060", "#7a5195", "#6b6b6b")
_Scale = Callable[[float], float]
_W = 720
_H = 340
_LEFT = 64
_RIGHT = 150
_TOP = 34
_BOTTOM = 48


@dataclass(frozen=True)
class Series:
    """One line: points in the order of x."""

    name: str
    x: Sequence[float]
    y: Sequence[float]


@dataclass(frozen=True)
class Chart:
    """A chart. `limit` draws a horizontal line such as a service level."""

    title: str
    x_label: str
    y_label: str
    series: Sequence[Series]
    limit: float | None = None


def page(title: str, charts: Sequence[Chart], table: str = "") -> str:
    """The whole HTML document. `table` is shown below the charts as preformatted text."""
    body = "\n".join(svg(chart) for chart in charts if any(series.x for series in chart.series))
    return (
        f"<!doctype html><html lang=en><meta charset=utf-8><title>{html.escape(title)}</title>"
        "<style>body{font:14px system-ui,sans-serif;margin:24px;max-width:1100px;color:#222;background:#fff}"
        "svg{display:block;margin:16px 0;max-width:100%;height:auto}pre{background:#f6f6f6;padding:12px;overflow:auto}"
        f"</style><h1>{html.escape(title)}</h1>\n{body}\n<pre>{html.escape(table)}</pre></html>\n"
    )


def svg(chart: Chart) -> str:
    """A chart as SVG inside HTML. A file of its own needs the namespace beside it."""
    series = [line for line in chart.series if line.x]
    xs = [x for line in series for x in line.x]
    ys = [y for line in series for y in line.y] + ([chart.limit] if chart.limit is not None else [])
    x_ticks = _ticks(min(xs), max(xs))
    y_ticks = _ticks(0.0, max(ys))
    across = _scale(x_ticks[0], x_ticks[-1], _LEFT, _W - _RIGHT)
    up = _scale(y_ticks[0], y_ticks[-1], _H - _BOTTOM, _TOP)
    parts = [
        f'<svg viewBox="0 0 {_W} {_H}" width="{_W}" role="img" font-family="system-ui,sans-serif" font-size="12">',
        f'<text x="{_LEFT}" y="18" font-size="15" font-weight="600">{html.escape(chart.title)}</text>',
    ]
    for tick in y_ticks:
        y = up(tick)
        parts.append(
            f'<line x1="{_LEFT}" x2="{_W - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}" stroke="#e2e2e2"/>'
        )
        parts.append(f'<text x="{_LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{tick:g}</text>')
    for tick in x_ticks:
        parts.append(
            f'<text x="{across(tick):.1f}" y="{_H - _BOTTOM + 18}" text-anchor="middle">{tick:g}</text>'
        )
    middle = (_LEFT + _W - _RIGHT) / 2
    low = (_TOP + _H - _BOTTOM) / 2
    parts.append(
        f'<text x="{middle}" y="{_H - 10}" text-anchor="middle">{html.escape(chart.x_label)}</text>'
    )
    parts.append(
        f'<text transform="translate(16 {low}) rotate(-90)" text-anchor="middle">{html.escape(chart.y_label)}</text>'
    )
    if chart.limit is not None:
        parts += _limit(chart.limit, up)
    for index, line in enumerate(series):
        parts += _line(line, _COLOURS[index % len(_COLOURS)], index, across, up)
    return "".join([*parts, "</svg>"])


def _limit(limit: float, up: _Scale) -> list[str]:
    y = up(limit)
    return [
        f'<line x1="{_LEFT}" x2="{_W - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}" stroke="#c00" stroke-dasharray="6 4"/>',
        f'<text x="{_LEFT + 6}" y="{y + 15:.1f}" fill="#c00">limit {limit:g}</text>',
    ]


def _line(line: Series, colour: str, index: int, across: _Scale, up: _Scale) -> list[str]:
    points = [(across(x), up(y)) for x, y in zip(line.x, line.y, strict=True)]
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    parts = [f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>']
    if len(points) <= 40:
        parts += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{colour}"/>' for x, y in points]
    y = _TOP + 8 + 18 * index
    x = _W - _RIGHT + 14
    parts.append(
        f'<line x1="{x}" x2="{x + 18}" y1="{y}" y2="{y}" stroke="{colour}" stroke-width="3"/>'
    )
    parts.append(f'<text x="{x + 24}" y="{y + 4}">{html.escape(line.name)}</text>')
    return parts


def _scale(low: float, high: float, at_low: float, at_high: float) -> _Scale:
    """A linear map from values to pixels."""
    return lambda value: at_low + (value - low) / (high - low) * (at_high - at_low)


def _ticks(low: float, high: float) -> list[float]:
    """Five or so round values that enclose [low, high]."""
    if high <= low:
        low, high = min(low, 0.0), max(high, low + 1.0)
    step = 10.0 ** math.floor(math.log10((high - low) / 5))
    step *= next(factor for factor in (1, 2, 5, 10) if step * factor >= (high - low) / 5)
    first = int(low // step)
    last = -int(-high // step)
    return [round(k * step, 10) for k in range(first, last + 1)]
