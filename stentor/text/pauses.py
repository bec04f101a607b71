"""Silence between the pieces of a text, by how a piece ends. It comes on top of what the model leaves there."""

from __future__ import annotations

from collections.abc import Mapping

PAUSES: Mapping[str, float] = {
    "comma": 0.05,
    "semicolon": 0.1,
    "dash": 0.1,
    "stop": 0.15,
    "turn": 0.25,  # a paragraph that is somebody's speech
    "ellipsis": 0.4,
    "paragraph": 0.4,
    "heading": 0.7,
    "scene": 1.2,
}
"""Seconds."""
