"""Text to token ids and back, by tokenizer.json or by SentencePiece's tokenizer.model of the small
models."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from tokenizers import Tokenizer as Library

from stentor.errors import CheckpointError
from stentor.host.installed import pip_install


class Tokenizer:
    """Ids without BOS or EOS. ends, pauses: the ids of marks that end sentences, and of those that
    end clauses."""

    def __init__(
        self, encode: Callable[[str], list[int]], decode: Callable[[list[int]], str]
    ) -> None:
        self.encode = encode
        self.decode = decode
        # The first id of each is that of a beginning word.
        self.ends = frozenset(encode(".!...?")[1:])
        self.pauses = frozenset(encode(",;:")[1:])


def read_tokenizer(file: Path) -> Tokenizer:
    """Read the tokenizer of a file. Raises CheckpointError."""
    if not file.is_file():
        raise CheckpointError(f"{file} does not exist")
    try:
        if file.suffix == ".json":
            return _of_json(file)
        return _of_sentencepiece(file)
    except ImportError as e:
        raise CheckpointError(f"{file} needs sentencepiece: {pip_install('pocket')}") from e
    except Exception as e:  # both libraries raise bare exceptions for a file that they cannot read
        raise CheckpointError(f"{file} is not a valid tokenizer: {e}") from e


def _of_json(file: Path) -> Tokenizer:
    library = Library.from_file(str(file))
    library.no_truncation()
    library.no_padding()
    return Tokenizer(lambda text: list(library.encode(text).ids), library.decode)


def _of_sentencepiece(file: Path) -> Tokenizer:
    from sentencepiece import SentencePieceProcessor

    library = SentencePieceProcessor(str(file))
    return Tokenizer(library.encode, library.decode)
