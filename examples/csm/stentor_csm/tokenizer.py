"""Text to ids. Special tokens exist as ids only: no text ever becomes one."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from tokenizers import Tokenizer

from stentor.errors import CheckpointError
from stentor.models.config_files import read_json

BEGIN, END = "<|begin_of_text|>", "<|end_of_text|>"


@dataclass(frozen=True)
class Tokens:
    """A text encoder, and the ids around a turn's text."""

    text: Callable[[str], Sequence[int]]
    begin: int
    end: int

    def turn(self, speaker: str, text: str) -> list[int]:
        """Ids of what a speaker says, as in the released chat template."""
        return [self.begin, *self.text(f"[{speaker}]{text}"), self.end]


def read_tokens(path: Path, vocab: int) -> Tokens:
    """tokenizer.json. CheckpointError names what is wrong with it."""
    file = path / "tokenizer.json"
    data = read_json(file)
    try:
        ids = {token["content"]: int(token["id"]) for token in data["added_tokens"]}
        tokenizer = Tokenizer.from_str(
            json.dumps({**data, "added_tokens": [], "post_processor": None})
        )
        begin, end = ids[BEGIN], ids[END]
    except Exception as e:  # tokenizers raises bare Exception for a file that it cannot read
        raise CheckpointError(f"{file} is no tokenizer of this model: {e}") from e
    if max(begin, end, tokenizer.get_vocab_size() - 1) >= vocab:
        raise CheckpointError(f"{file} has ids above text_vocab_size {vocab} of config.json")
    return Tokens(lambda text: tokenizer.encode(text, add_special_tokens=False).ids, begin, end)
