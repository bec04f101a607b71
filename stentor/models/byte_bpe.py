"""Byte-level BPE from vocab.json and merges.txt with Qwen2's pre-tokeniser, by which several
families read text."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any
from unicodedata import category

from stentor.arguments.untrusted import JSON_BYTES, Unreadable, read_text
from stentor.errors import CheckpointError
from stentor.models.config_files import read_json

QWEN2 = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"


class ByteBPE:
    """A checkpoint's tokenizer. Thread-safe."""

    def __init__(self, path: Path, pattern: str = QWEN2) -> None:
        """Read vocab.json, merges.txt and the added tokens of tokenizer_config.json. Raises
        CheckpointError."""
        from tokenizers import Regex, Tokenizer, decoders, normalizers, pre_tokenizers
        from tokenizers.models import BPE

        vocab = read_json(path / "vocab.json")
        merges = _read_merges(path / "merges.txt")
        try:
            self._fast = Tokenizer(
                BPE(vocab=vocab, merges=merges, fuse_unk=False, byte_fallback=False)
            )
        except (
            Exception
        ) as e:  # tokenizers raises bare Exception for a vocabulary and merges that disagree
            raise CheckpointError(
                f"{path}: vocab.json and merges.txt do not fit together: {e}"
            ) from e
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
        from tokenizers import AddedToken

        added = config.get("added_tokens_decoder")
        if not isinstance(added, dict) or not added:
            raise CheckpointError(
                f"{path / 'tokenizer_config.json'}: added_tokens_decoder is missing"
            )
        for index, entry in added.items():
            if not (
                index.isdecimal()
                and isinstance(entry, dict)
                and isinstance(entry.get("content"), str)
            ):
                raise CheckpointError(
                    f"{path / 'tokenizer_config.json'}: added token {index!r} is not an id with a content"
                )
        for index, entry in sorted(added.items(), key=lambda item: int(item[0])):
            flags = {
                k: bool(entry.get(k, False))
                for k in ("lstrip", "rstrip", "single_word", "normalized", "special")
            }
            self._fast.add_tokens([AddedToken(entry["content"], **flags)])
            if self._fast.token_to_id(entry["content"]) != int(index):
                raise CheckpointError(
                    f"{path / 'tokenizer_config.json'}: added token {entry['content']!r} has id {index}, "
                    f"but vocab.json leaves {self._fast.token_to_id(entry['content'])} for it"
                )

    @property
    def size(self) -> int:
        """Ids that it has, those of added tokens included."""
        return int(self._fast.get_vocab_size(with_added_tokens=True))

    def add(self, names: list[str]) -> None:
        """More special tokens, whose ids go on from the last one. Text that contains one becomes
        its id."""
        from tokenizers import AddedToken

        self._fast.add_special_tokens(
            [AddedToken(name, normalized=False, special=True) for name in names]
        )

    def id(self, name: str) -> int | None:
        """The id of a token, None where it has none."""
        token_id: int | None = self._fast.token_to_id(name)
        return token_id

    def encode(self, text: str) -> list[int]:
        """Ids of a text. Special tokens in it become their ids."""
        return list(self._fast.encode(text, add_special_tokens=False).ids)


def _read_merges(file: Path) -> list[tuple[str, str]]:
    try:
        lines = read_text(file, JSON_BYTES).split("\n")
    except Unreadable as e:
        raise CheckpointError(f"{file} {e}") from None
    if lines[0].startswith("#version"):
        del lines[0]
    pairs = [line.split(" ") for line in lines if line]
    if any(len(p) != 2 for p in pairs):
        raise CheckpointError(f"{file}: every line must hold two tokens")
    return [(a, b) for a, b in pairs]


def settled(text: str) -> int:
    """Characters of a text whose ids no longer depend on what follows: up to the end of its last
    complete word.

    The pre-tokeniser's pattern ends a run of letters before whatever is no letter and no mark (NFC
    may join marks to letters), and starts anew there. Signs that occur inside special tokens do not
    count.
    """
    for at in range(len(text) - 1, 0, -1):
        if (
            category(text[at - 1])[0] == "L"
            and category(text[at])[0] not in "LM"
            and text[at] not in "<|_>/"
        ):
            return at
    return 0


class WithheldText:
    """Text that arrives, of which the end is withheld while a next letter could change its ids."""

    def __init__(self, encode: Callable[[str], list[int]]) -> None:
        self._encode = encode
        self._pending = ""

    def more(self, text: str) -> list[int]:
        """Add text, and return the ids that are settled."""
        pending = self._pending + text
        cut = settled(pending)
        self._pending = pending[cut:]
        return self._encode(pending[:cut])

    def rest(self, text: str = "") -> str:
        """Add the last text, and return all that is withheld."""
        pending = self._pending + text
        self._pending = ""
        return pending
