"""The text tokenizer: tokenizer.json without its special tokens, which have meaning outside of text
only."""

from __future__ import annotations

import json
from pathlib import Path

from tokenizers import Tokenizer as Library

from stentor.errors import CheckpointError
from stentor.models.config_files import read_json

GEN_START = "<|audio_gen_start|>"
GEN_SPAN = "<|audio_gen_span|>"
GEN_END = "<|audio_gen_end|>"
TEXT_END = "<|text_cond_end|>"


class Tokenizer:
    """Text to ids. Thread-safe. `special` has the ids of special tokens by name."""

    def __init__(self, file: Path) -> None:
        """Raises CheckpointError."""
        data = read_json(file)
        added = data.pop("added_tokens", [])
        try:
            self.special = {str(token["content"]): int(token["id"]) for token in added}
            self._library = Library.from_str(json.dumps({**data, "added_tokens": []}))
        except Exception as e:  # the library raises a bare Exception for a file that it cannot read
            raise CheckpointError(f"{file} is not a valid tokenizer: {e}") from e
        missing = [
            name for name in (GEN_START, GEN_SPAN, GEN_END, TEXT_END) if name not in self.special
        ]
        if missing:
            raise CheckpointError(f"{file} has no token {missing[0]}")
        self.size = 1 + max([*self._library.get_vocab().values(), *self.special.values()])

    def encode(self, text: str) -> list[int]:
        """Ids of a text, in which the names of special tokens are letters like others."""
        return list(self._library.encode(text, add_special_tokens=False).ids)
