"""From durations to frames."""

from __future__ import annotations

from typing import Any

import numpy as np

from stentor.models.base import Prompt
from stentor.models.piece_model import Planned


def planned(
    prompt: Prompt,
    counts: np.ndarray,
    features: tuple[Any, ...],
) -> Planned:
    """The plan of a piece whose tokens last `counts` frames [tokens]. Frames behind the last word
    are at its end."""
    places = np.arange(len(counts))
    token = np.repeat(places, counts)
    end = max(word.stop for word in prompt.words)
    return Planned(
        token.astype(np.int32),
        np.minimum(token, end),
        features,
    )
