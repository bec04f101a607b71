"""Ids of sentences, and which of them are kept for validation."""

from __future__ import annotations

FIRST_ID = 20_000
"""First id of the sentences that `training.texts` makes. Those of the base list are below."""
HELD_OUT = 50
"""Divisor: new sentences whose id divides by it are kept for validation."""
BASE_HELD_OUT = 15_300
"""The first id of the base list that is kept for validation. No new sentence is made from those."""


def held_out(sentence: int) -> bool:
    """Whether the sentence of this id, of the base or new, is kept for validation."""
    return sentence >= BASE_HELD_OUT if sentence < FIRST_ID else sentence % HELD_OUT == 0
