"""Mixes of voices as people write them, `af_bella(2)+af_sky(1)`, for models that can mix theirs."""

from __future__ import annotations

import re

_PART = re.compile(r"([\w-]{1,64})(?:\((\d{1,4}(?:\.\d{1,4})?)\))?")
SEPARATOR = "+"
MOST = 16
"""Voices of one mix."""


def parse_mix(name: str) -> list[tuple[str, float]]:
    """The voices of a mix and their weights, 1 where none is written. A plain name is a mix of one
    voice. ValueError for what is none, and for weights of 0."""
    parts = name.split(SEPARATOR)
    if len(parts) > MOST:
        raise ValueError(f"has {len(parts)} voices, at most {MOST} can be mixed")
    mix = []
    for part in parts:
        m = _PART.fullmatch("".join(part.split()))
        if m is None:
            raise ValueError("must be a voice, or a mix such as first(2)+second(1)")
        weight = 1.0 if m[2] is None else float(m[2])
        if weight == 0:
            raise ValueError(f"gives {m[1]!r} a weight of 0: weights are above 0")
        mix.append((m[1].lower(), weight))
    return mix
