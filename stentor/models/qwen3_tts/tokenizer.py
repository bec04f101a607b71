"""The text tokenizer: byte-level BPE with Qwen2's own pre-tokeniser.

The reference has transformers "fix" the pre-tokeniser of local directories to Mistral's, which
splits CamelCase words differently from a Hub load. Here the plain Qwen2 pattern is the default and
Mistral's a choice.
"""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from stentor.models.byte_bpe import QWEN2, ByteBPE

MISTRAL = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


class Tokenizer(Protocol):
    """Text to ids. Special tokens in the text become their ids."""

    def encode(self, text: str) -> list[int]: ...


class QwenTokenizer(ByteBPE):
    """The checkpoint's tokenizer. Thread-safe."""

    def __init__(self, path: Path, mistral: bool = False) -> None:
        """Read vocab.json, merges.txt and the added tokens of tokenizer_config.json. Raises
        CheckpointError."""
        super().__init__(path, MISTRAL if mistral else QWEN2)
