"""Seeds of requests, and how often an utterance is tried."""

from __future__ import annotations

import secrets

MAX_SEED = 2**63 - 1
TRIES = 3  # by default and at most, the first one included
MAX_TRIES = 10


def random_seed() -> int:
    """The seed of a request that names none. One system call."""
    return secrets.randbits(31)


def next_seed(seed: int) -> int:
    """The seed of the next try. 0 follows the largest."""
    if seed == MAX_SEED:
        return 0
    return seed + 1
