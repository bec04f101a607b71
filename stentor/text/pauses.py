"""Silence between the pieces of a text, and the longest that a text may have."""

from __future__ import annotations

from collections.abc import Mapping

PAUSES: Mapping[str, float] = {
    "comma": 0.05,
    "semicolon": 0.1,
    "dash": 0.1,
    "aside": 0.02,  # a dash inside a sentence that is cut there for its pause
    "hesitation": 0.17,  # an ellipsis there
    "stop": 0.15,
    "turn": 0.25,  # a paragraph that is somebody's speech
    "ellipsis": 0.4,
    "paragraph": 0.4,
    "heading": 0.7,
    "scene": 1.2,
}
"""Seconds, by how a piece ends. They come on top of what the model leaves there."""
LONGEST_PAUSE = 10.0
"""Seconds. A longer pause is cut to it."""
MAX_SILENCE = 120.0
"""Seconds of all pauses of a text."""
