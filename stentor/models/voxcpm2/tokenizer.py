"""Text to token ids exactly as the reference does it."""

from __future__ import annotations

from pathlib import Path

from stentor.errors import CheckpointError
from stentor.models.config_files import read_json
from stentor.models.config_reader import ConfigReader

UNKNOWN = 0
AUDIO_START = 101
REFERENCE_START = 103
REFERENCE_END = 104
PREFIX = "▁"


class TextTokenizer:
    """tokenizer.json without special tokens added. Tokens of several Chinese characters become
    single characters."""

    def __init__(self, file: Path) -> None:
        from tokenizers import Tokenizer

        if not file.is_file():
            raise CheckpointError(f"{file} does not exist")
        try:
            self._tokenizer = Tokenizer.from_file(str(file))
        except Exception as e:  # the library raises a bare Exception for a file it cannot read
            raise CheckpointError(f"{file} is not a valid tokenizer: {e}") from e
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        vocab = self._tokenizer.get_vocab()
        self._several = {
            t for t in vocab if len(t) >= 2 and all("\u4e00" <= c <= "\u9fff" for c in t)
        }

    def __call__(self, text: str) -> list[int]:
        """Token ids of `text`, without BOS or EOS. Single characters that the vocabulary lacks
        become <unk>."""
        ids: list[int] = []
        encoding = self._tokenizer.encode(text, add_special_tokens=False)
        for token, index in zip(encoding.tokens, encoding.ids, strict=True):
            bare = token.replace(PREFIX, "")
            if bare in self._several:
                ids.extend(self._id(c) for c in bare)
            else:
                ids.append(index)
        return ids

    def _id(self, token: str) -> int:
        id = self._tokenizer.token_to_id(token)
        if id is None:
            return UNKNOWN
        return id


class CharacterTokenizer:
    """tokenizer.json of a vocabulary of single characters, read without the `tokenizers`
    package."""

    def __init__(self, file: Path) -> None:
        """Raises CheckpointError for a tokenizer that does not split a text into its characters."""
        data = read_json(file)
        model = ConfigReader(data, str(file)).section("model")
        if model.text("type", "") != "WordLevel":
            raise model.error("type", f"must be WordLevel, got {model.data.get('type')!r}")
        self._ids = model.table("vocab")

    def __call__(self, text: str) -> list[int]:
        """Token ids of `text`. Characters that the vocabulary lacks become <unk>."""
        return [self._ids.get(character, UNKNOWN) for character in text]
