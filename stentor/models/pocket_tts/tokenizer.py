"""The tokenizer of a checkpoint: tokenizer.json, or SentencePiece's tokenizer.model of the small
models."""

from __future__ import annotations

from pathlib import Path

from tokenizers import Tokenizer as Library

from stentor.errors import CheckpointError
from stentor.host.installed import pip_install
from stentor.models.calm_tokenizer import Tokenizer


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
