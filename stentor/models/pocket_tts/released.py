"""Released checkpoints, by the name of their folder. The repositories hold weights only, without a
description.

Descriptions in released.json are those of the YAML files in the package `pocket-tts` 4.0.1.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from stentor.models.config_files import RELEASED, read_json, read_release
from stentor.models.pocket_tts import DUMMIES

REPOSITORY = "kyutai/pocket-tts"
OPEN_REPOSITORY = "kyutai/pocket-tts-without-voice-cloning"
"""Has the tokenizers and voices, and weights with which recordings cannot be cloned."""
YAML = "model.yaml"
DEFAULT_VOICES = {
    "italian": "giovanni",
    "spanish": "lola",
    "german": "juergen",
    "portuguese": "rafael",
    "french": "estelle",
    "dutch": "daan",
    "english": "alba",
}
"""The voice that speaks each language where none is named."""
TOKENIZERS = {
    "english_2026-01": "tokenizer.json",
    **dict.fromkeys(
        ("english_2026-09_2", "english_2026-10", "english_drifting_26-09"),
        "languages/english_2026-09/tokenizer.json",
    ),
}
"""Tokenizers in OPEN_REPOSITORY of checkpoints whose folder there has none."""
_FOLDER = Path(__file__).parent
NAMES = tuple(sorted(read_json(_FOLDER / RELEASED).keys() - set(DUMMIES)))


def description(name: str) -> dict[str, Any]:
    """The description of a released checkpoint, one of NAMES, as its YAML has it."""
    files: dict[str, dict[str, Any]] = read_release(_FOLDER, name)["files"]
    return files[YAML]
