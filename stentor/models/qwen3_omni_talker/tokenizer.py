"""The text tokenizer: byte-level BPE with Qwen2's own pre-tokeniser, and the turns of a chat as it
reads them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from stentor.models.byte_bpe import ByteBPE

Tokenize = Callable[[str], list[int]]
"""Text to ids. Special tokens in the text become their ids."""
ROLE = "<|im_start|>assistant\n"
"""Marks before the answer."""


def user_turn(text: str) -> str:
    """Put the marks of a user's turn around a text, which may contain those of further turns."""
    return f"<|im_start|>user\n{text}<|im_end|>\n"


def read_tokenizer(path: Path) -> Tokenize:
    """Read the checkpoint's tokenizer, which is thread-safe. Raises CheckpointError."""
    return ByteBPE(path).encode
