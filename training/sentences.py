"""Which sentences are kept for validation."""

from __future__ import annotations

from typing import Any


def held_out(key: int, config: dict[str, Any]) -> bool:
    """Whether a sentence is for validation only."""
    if key >= config["held_out_from"] and key < config["new_from"]:
        return True
    return key >= config["new_from"] and key % config["held_out_every"] == 0
