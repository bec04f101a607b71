"""docs/results.md, as text. Its sentences are in page.md beside this file."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from scripts.results.data import PUBLISHED, Level, Served, load, published

NONE = "-"  # a figure that nobody measured
STREAMS = (1, 4, 16, 32, 64)  # of the comparison with other engines


def page(folder: Path = PUBLISHED) -> str:
    served, peers, assumptions = (
        published(folder),
        load(folder, "peers"),
        load(folder, "assumptions"),
    )
    gpus = [s for s in served if s.best()]
    prices = [
        f"${price:g} an hour for {article(card)} {card}"
        for card, price in assumptions["dollars_per_hour"].items()
    ]
    return (
        Path(__file__)
        .with_suffix(".md")
        .read_text(encoding="utf-8")
        .format(
            summary=summary(gpus, assumptions),
            prices=", ".join(prices),
            characters=assumptions["characters_per_second"],
            card=peers["card"],
            conditions=peers["conditions"],
            measured=measured(peers["measured"], served, peers["card"]),
            reported=reported(peers["published"]),
            details="\n\n".join(details(s) for s in gpus),
            cloned=cloned(served),
            cpu=cpu(served, assumptions),
            doors=doors(load(folder, "doors")),
        )
    )


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [
        f"| {' | '.join(head)} |",
        "|" + "---|" * len(head),
        *(f"| {' | '.join(row)} |" for row in rows),
    ]
    return "\n".join(lines)


def number(value: float | None, unit: str = "") -> str:
    """Write a figure with a decimal where it is below 100, and none above."""
    if value is None:
        return NONE
    decimals = 0 if value >= 100 else 1
    return f"{value:,.{decimals}f}{unit}"


def ms(*values: float | None) -> str:
    """Write milliseconds with a decimal where they are below 10."""
    return " / ".join(map(_ms, values)) + " ms"


def _ms(value: float | None) -> str:
    if value is None:
        return NONE
    decimals = 0 if value >= 9.95 else 1
    return f"{value:,.{decimals}f}"


def seconds(value: float | None) -> str:
    return NONE if value is None else f"{value:.0f} s"


def article(card: str) -> str:
    return "an" if card.startswith("H") else "a"


def cost(rate: float, card: str, assumptions: Mapping[str, Any]) -> str:
    """Dollars for a million characters of text, at so many seconds of audio per second."""
    characters_per_hour = rate * 3600 * assumptions["characters_per_second"]
    return f"${1e6 * assumptions['dollars_per_hour'][card] / characters_per_hour:.2f}"


def source(run: Mapping[str, Any]) -> str:
    """Name the date, commit, command and raw file of a run."""
    return f"{run['date']}, {run['commit']}: `{run['command']}` (`results:{run['raw']}`)"


def summary(served: Sequence[Served], assumptions: Mapping[str, Any]) -> str:
    head = (
        "model", "card", "first audio, 1 stream", "streams in real time", "seconds of audio per second",
        "first audio p50 / p95", "memory", "start", "million characters",
    )  # fmt: skip
    return table(head, [summary_row(s, best, assumptions) for s in served if (best := s.best())])


def summary_row(s: Served, best: Level, assumptions: Mapping[str, Any]) -> list[str]:
    levels = [level for level, _ in s.levels()]
    anchor = re.sub(r"[^\w\- ]", "", f"{s.model}, {s.card}".lower()).replace(" ", "-")
    notes = ["most tried"] if best.streams == levels[-1].streams else []
    notes += [
        f"{v.stalled} requests stalled at {v.streams}"
        for v in levels
        if v.stalled and v.streams < best.streams
    ]
    return [
        f"[{s.model}](#{anchor})",
        s.card,
        ms(next((level.p50 for level in levels if level.streams == 1), None)),
        f"{best.streams}" + (f" ({', '.join(notes)})" if notes else ""),
        number(best.rate),
        ms(best.p50, best.p95),
        number(s.reserved, " GiB"),
        seconds(s.ready),
        cost(best.rate, s.card, assumptions),
    ]


def details(s: Served) -> str:
    text = [f"### {s.model}, {s.card}\n", level_table(s.levels()), ""]
    if processes := s.levels("processes"):
        text += ["With `--api-processes 1`:\n", level_table(processes), ""]
    return "\n".join([*text, *(f"{n}. {source(run)}" for n, run in enumerate(s.runs, 1))])


def level_table(levels: Iterable[tuple[Level, int]]) -> str:
    head = (
        "streams",
        "seconds of audio per second",
        "first audio p50 / p95",
        "requests that stalled",
        "run",
    )
    return table(
        head,
        [
            [str(v.streams), number(v.rate), ms(v.p50, v.p95), str(v.stalled), str(run)]
            for v, run in levels
        ],
    )


def cloned(served: Iterable[Served]) -> str:
    """The table of first audio in cloned voices, and the runs behind it."""
    measured = [s for s in served if s.cloned]
    head = (
        "model",
        "card",
        "short voice",
        "known voice",
        "new voice",
        "16 at once: short / known voice, p50",
    )
    rows = []
    for s in measured:
        plain, uploaded, new, many, many_uploaded = s.cloned.values()
        rows.append([s.model, s.card, ms(plain), ms(uploaded), ms(new), ms(many, many_uploaded)])
    runs = [
        f"- {s.model}, {s.card}: {source(next(r for r in s.runs if r['benchmark'] == 'voices'))}"
        for s in measured
    ]
    return "\n".join([table(head, rows), "", *runs])


def cpu(served: Iterable[Served], assumptions: Mapping[str, Any]) -> str:
    head = (
        "machine",
        "RTF",
        "first audio",
        "start, after imports",
        "memory at peak",
        "million characters",
        "run",
    )
    rows = []
    for s in served:
        for run, figures in zip(s.runs, s.figures, strict=True):
            if v := figures.cpu:
                price = cost(1 / v["rtf"], s.card, assumptions)
                speed = f"{v['rtf']:.2f}", ms(1e3 * v["first_audio_s"]), f"{v['load_s']:.2f} s"
                rows.append([run["machine"], *speed, f"{v['peak_mb']:.0f} MB", price, source(run)])
    return table(head, rows)


def doors(run: Mapping[str, Any]) -> str:
    """The table of what each protocol costs until the first audio, and the run behind it."""
    head = (
        "protocol",
        "first audio, median",
        "fastest tenth",
        "CPU until first audio",
        "compared with",
        "more CPU",
    )
    rows = []
    for name, door in run["result"]["doors"].items():
        times = [f"{door[key]:.1f} ms" for key in ("first_audio_ms", "fastest_tenth_ms")]
        cpu_ms, more = f"{door['cpu_ms']:.2f} ms", f"{door['more_cpu_ms']:.2f} ms"
        if name == door["beside"]:
            rows.append([name, *times, NONE, NONE, NONE])
        else:
            rows.append([name, *times, cpu_ms, door["beside"], more])
    return "\n".join([table(head, rows), "", source(run)])


def measured(peers: Sequence[Mapping[str, Any]], served: Iterable[Served], card: str) -> str:
    """The table of engines that ran on the card, beside stentor."""
    rows = []
    for model in dict.fromkeys(p["model"] for p in peers):
        for s in served:
            if (s.model, s.card) == (model, card):
                cells = [cell(rates(s).get(n)) for n in STREAMS]
                rows.append([model, f"**stentor** {s.runs[0]['commit']}", *cells, seconds(s.ready)])
        for p in peers:
            if p["model"] == model:
                cells = [cell(peer_rates(p).get(n)) for n in STREAMS]
                rows.append([model, f"{p['peer']} {p['version']}", *cells, p.get("start", NONE)])
    return table(
        ("model", "engine", "1 stream", *(f"{n} streams" for n in STREAMS[1:]), "start"), rows
    )


Rates = dict[int, tuple[float | None, float | None]]


def rates(s: Served) -> Rates:
    """Throughput and median first audio in ms, by streams."""
    return {level.streams: (level.rate, level.p50) for level, _ in s.levels()}


def peer_rates(peer: Mapping[str, Any]) -> Rates:
    return {int(n): (v.get("rate"), v.get("p50")) for n, v in peer["levels"].items()}


def cell(level: tuple[float | None, float | None] | None) -> str:
    """Write throughput, and first audio in brackets."""
    if level is None:
        return NONE
    rate, first = level
    return " ".join(
        ([number(rate)] if rate is not None else [])
        + ([f"({ms(first)})"] if first is not None else [])
    )


def reported(peers: Iterable[Mapping[str, Any]]) -> str:
    head = ("engine", "version", "model", "card", "weights", "figures", "source")
    return table(
        head,
        [
            [*(p[key] for key in ("peer", *head[1:6])), f"[{p['source']}]({p['url']})"]
            for p in peers
        ],
    )
