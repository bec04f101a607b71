"""Text to ids. Special tokens exist as ids only: no text ever becomes one."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from tokenizers import Tokenizer

from stentor.errors import CheckpointError
from stentor.models.config_files import read_json


@dataclass(frozen=True)
class Tokens:
    """A text encoder and the ids that prompts are made with. Code c of the first book has the id
    `semantic + c`."""

    text: Callable[[str], Sequence[int]]
    im_start: int
    im_end: int
    voice: int
    semantic: int

    def encode(self, text: str) -> list[int]:
        """Ids of plain text. What looks like a special token is spelled out."""
        return list(self.text(text))

    @cached_property
    def end(self) -> list[int]:
        """Ids that end a turn."""
        return [self.im_end, *self.encode("\n")]

    @cached_property
    def user(self) -> list[int]:
        """Ids that begin a user's turn."""
        return [self.im_start, *self.encode("user\n")]

    @cached_property
    def answer(self) -> list[int]:
        """Ids that end a user's turn and begin the answer."""
        return [*self.end, self.im_start, *self.encode("assistant\n"), self.voice]


def read_tokens(path: Path, codes: int, vocab: int) -> Tokens:
    """tokenizer.json with its added tokens taken out: they are kept as a table of ids."""
    file = path / "tokenizer.json"
    data = read_json(file)
    try:
        added = {token["content"]: int(token["id"]) for token in data["added_tokens"]}
        text = Tokenizer.from_str(json.dumps({**data, "added_tokens": [], "post_processor": None}))
    except Exception as e:  # tokenizers raises bare Exception for a file that it cannot read
        raise CheckpointError(f"{file} is not a tokenizer file: {e}") from e

    def encode(given: str) -> list[int]:
        return list(text.encode(given, add_special_tokens=False).ids)

    return select_tokens(encode, {**text.get_vocab(), **added}, codes, vocab, str(file))


def select_tokens(
    text: Callable[[str], Sequence[int]],
    ids: Mapping[str, int],
    codes: int,
    vocab: int,
    source: str,
) -> Tokens:
    """The special ids that prompts need, out of `ids`. CheckpointError names `source` and what is
    wrong."""

    def one(content: str) -> int:
        if content not in ids:
            raise CheckpointError(f"{source}: token {content} is missing")
        if ids[content] >= vocab:
            raise CheckpointError(
                f"{source}: token {content} has id {ids[content]}; the model has {vocab} ids"
            )
        return ids[content]

    first = one("<|semantic:0|>")
    last = one(f"<|semantic:{codes - 1}|>")
    if last - first != codes - 1:
        raise CheckpointError(
            f"{source}: tokens <|semantic:0|> to <|semantic:{codes - 1}|> are not consecutive"
        )
    return Tokens(text, one("<|im_start|>"), one("<|im_end|>"), one("<|voice|>"), first)
