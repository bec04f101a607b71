"""The text tokenizer: byte-level BPE from vocab.json and merges.txt with Qwen2's own pre-tokeniser.

The reference asks transformers to "fix" the pre-tokeniser of local directories to Mistral's, which splits CamelCase
words differently from a Hub load. Here the plain Qwen2 pattern is the default and Mistral's
a choice.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Protocol

from tokenizers import AddedToken, Regex, decoders, normalizers, pre_tokenizers
from tokenizers import Tokenizer as FastTokenizer
from tokenizers.models import BPE

from stentor.errors import CheckpointError
from stentor.models.weights import read_json

QWEN2 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
MISTRAL = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


class Tokenizer(Protocol):
    """Text to ids. Special tokens in the text become their ids."""

    def encode(self, text: str) -> list[int]: ...


class QwenTokenizer:
    """The checkpoint's tokenizer. Thread-safe."""

    def __init__(self, path: Path, mistral: bool = False) -> None:
        """Read vocab.json, merges.txt and the added tokens of tokenizer_config.json. Raises CheckpointError."""
        vocab = read_json(path / "vocab.json")
        merges = _read_merges(path / "merges.txt")
        try:
            self._fast = FastTokenizer(BPE(vocab=vocab, merges=merges, fuse_unk=False, byte_fallback=False))
        except Exception as e:  # tokenizers raises bare Exception for a vocabulary and merges that disagree
            raise CheckpointError(f"{path}: vocab.json and merges.txt do not fit together: {e}") from e
        pattern = MISTRAL if mistral else QWEN2
        self._fast.normalizer = normalizers.NFC()
        self._fast.pre_tokenizer = pre_tokenizers.Sequence(
            [
                pre_tokenizers.Split(Regex(pattern), behavior="isolated", invert=False),
                pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
            ]
        )
        self._fast.decoder = decoders.ByteLevel()
        self._add(read_json(path / "tokenizer_config.json"), path)

    def _add(self, config: dict[str, Any], path: Path) -> None:
        added = config.get("added_tokens_decoder")
        if not isinstance(added, dict) or not added:
            raise CheckpointError(f"{path / 'tokenizer_config.json'}: added_tokens_decoder is missing")
        for index, entry in sorted(added.items(), key=lambda item: int(item[0])):
            flags = {k: bool(entry.get(k, False)) for k in ("lstrip", "rstrip", "single_word", "normalized", "special")}
            self._fast.add_tokens([AddedToken(entry["content"], **flags)])
            if self._fast.token_to_id(entry["content"]) != int(index):
                raise CheckpointError(
                    f"{path / 'tokenizer_config.json'}: added token {entry['content']!r} has id {index}, "
                    f"but vocab.json leaves {self._fast.token_to_id(entry['content'])} for it"
                )

    def encode(self, text: str) -> list[int]:
        return list(self._fast.encode(text, add_special_tokens=False).ids)


def _read_merges(file: Path) -> list[tuple[str, str]]:
    try:
        lines = file.read_text(encoding="utf-8").split("\n")
    except FileNotFoundError as e:
        raise CheckpointError(f"{file} does not exist") from e
    if lines[0].startswith("#version"):
        del lines[0]
    pairs = [line.split(" ") for line in lines if line]
    if any(len(p) != 2 for p in pairs):
        raise CheckpointError(f"{file}: every line must hold two tokens")
    return [(a, b) for a, b in pairs]
