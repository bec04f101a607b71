"""Seeds, and the rule for run-ons: when a whole utterance counts as one, and with which seed it is generated again.

A model sometimes fails to stop. Its utterance then has far more frames than its text needs. An answer that is not
streamed is thrown away in that case and generated again with the next seed. A stream cannot be taken back.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from stentor.models.base import Prompt

MAX_SEED = 2**63 - 1
TRIES = 3  # by default and at most, the first one included
MOST_TRIES = 10


def random_seed() -> int:
    """The seed of a request that names none. One system call."""
    return secrets.randbits(31)


def next_seed(seed: int) -> int:
    """The seed of the next try. 0 follows the largest."""
    if seed == MAX_SEED:
        return 0
    return seed + 1


def runaway_frames(prompt: Prompt) -> int | None:
    """Frames from which an utterance counts as a run-on. None: no number is too many.

    The number grows while live text arrives. It covers one prompt, so a request of several prompts has none.
    """
    if prompt.continuation is None:
        return prompt.runaway_frames
    return None


@dataclass
class Tries:
    """The tries of one utterance: `left` counts the present one, `seed` is the present one's."""

    seed: int
    left: int = TRIES

    def again(self, ran_on: bool) -> bool:
        """Whether to generate once more after a try that has ended. If so, `seed` is the next try's."""
        self.left -= 1
        if not ran_on or self.left < 1:
            return False
        self.seed = next_seed(self.seed)
        return True
