"""A list of sentences in kinds, halved: one half to choose by, the other to look at once per release.

A kind begins with a line "## NAME". Which half a sentence is in depends on its text alone: of each kind, sorted by a
digest of SEED and the text, the first half is for choosing.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

SEED = "53"
HALVES = ("choosing", "release")


def kinds(path: Path) -> dict[str, list[str]]:
    """The lines of each kind of a list. Lines before the first heading, comments and empty ones are left out."""
    found: dict[str, list[str]] = {}
    lines: list[str] = []
    for line in map(str.strip, path.read_text(encoding="utf-8").splitlines()):
        if line.startswith("## "):
            lines = found.setdefault(line[3:], [])
        elif line and not line.startswith("#"):
            lines.append(line)
    return found


def half(lines: list[str], name: str) -> list[str]:
    """One half of the lines of a kind, in their order. name: one of HALVES."""
    mixed = sorted(lines, key=lambda line: hashlib.sha256(f"{SEED} {line}".encode()).digest())
    chosen = set(mixed[: len(lines) // 2])
    return [line for line in lines if (line in chosen) == (name == HALVES[0])]


def spreads(found: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, float]]:
    """Mean, least and most of the word error rates of each case over its seeds, and of all together."""
    rates: dict[str, dict[str, float]] = {}
    for label, result in found.items():
        name, _, seed = label.rpartition(", seed ")
        if "wer" in result and seed:
            rates.setdefault(name, {})[seed] = result["wer"]
    seeds = {seed for each in rates.values() for seed in each}
    complete = [each for each in rates.values() if each.keys() == seeds]
    if len(complete) > 1:
        rates["mean"] = {
            seed: sum(each[seed] for each in complete) / len(complete) for seed in sorted(seeds)
        }
    return {
        name: {
            "wer": sum(each.values()) / len(each),
            "least": min(each.values()),
            "most": max(each.values()),
        }
        for name, each in rates.items()
    }
