"""Covering arrays: few combinations of factors that hold every pair of their values."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any

Row = dict[str, Any]
Pair = frozenset[tuple[str, Any]]
CANDIDATES = 30  # rows that are drawn for each that is taken
PATIENCE = 200  # rows that are drawn before a pair counts as impossible


def pairs_of(row: Mapping[str, Any]) -> set[Pair]:
    """The pairs of values that a combination holds."""
    return {frozenset(pair) for pair in itertools.combinations(row.items(), 2)}


def covering(
    factors: Mapping[str, Sequence[Any]], allowed: Callable[[Row], bool], seed: int
) -> tuple[list[Row], list[Pair]]:
    """Return combinations that hold every pair of values, drawn by a seed, and the pairs that no allowed one can hold."""
    chance = random.Random(seed)
    names = list(factors)
    wanted = [
        frozenset({(a, x), (b, y)})
        for a, b in itertools.combinations(names, 2)
        for x in factors[a]
        for y in factors[b]
    ]
    missing = dict.fromkeys(wanted)
    rows: list[Row] = []
    left_out: list[Pair] = []
    while missing:
        pair = next(iter(missing))
        candidates: list[Row] = []
        for _ in range(PATIENCE):
            drawn = {name: chance.choice(factors[name]) for name in names}
            row = {**drawn, **dict(pair)}
            candidates += [row] * allowed(row)
            if len(candidates) == CANDIDATES:
                break
        if not candidates:
            left_out.append(pair)
            del missing[pair]
            continue
        best = max(candidates, key=lambda row: len(pairs_of(row) & missing.keys()))
        rows.append(best)
        for covered in pairs_of(best) & missing.keys():
            del missing[covered]
    return rows, left_out
