"""The text tokenizer, which is that of the language model that the checkpoint was made from."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from stentor.errors import CheckpointError
from stentor.models.config_files import read_json
from stentor.models.config_reader import ConfigReader

FILE = "tokenizer.json"
PREPROCESSOR = "preprocessor_config.json"
USUAL_SOURCE = "Qwen/Qwen2.5-0.5B"
SPECIAL = {
    "begin": "<|vision_start|>",
    "finish": "<|vision_end|>",
    "audio": "<|vision_pad|>",
    "end": "<|endoftext|>",
}
"""Special tokens that stand around audio, by what they are used for."""


class Tokenizer(NamedTuple):
    """Text to ids, in which names of special tokens are letters like others, and the ids of special
    tokens by name."""

    encode: Callable[[str], list[int]]
    special: dict[str, int]


def read_tokenizer(path: Path) -> Tokenizer:
    """Read tokenizer.json of the checkpoint, or of the language model that its
    preprocessor_config.json names. CheckpointError."""
    from tokenizers import Tokenizer as Library

    file = path / FILE
    if not file.is_file():
        file = _of_language_model(path)
    data = read_json(file)
    added = data.get("added_tokens", [])
    try:
        special = {str(token["content"]): int(token["id"]) for token in added}
        plain = {**data, "added_tokens": [], "post_processor": None}
        library = Library.from_str(json.dumps(plain))
    except Exception as e:  # the library raises a bare Exception for a file that it cannot read
        raise CheckpointError(f"{file} is not a valid tokenizer: {e}") from e
    missing = [name for name in SPECIAL.values() if name not in special]
    if missing:
        raise CheckpointError(f"{file} has no token {missing[0]}")
    return Tokenizer(lambda text: list(library.encode(text, add_special_tokens=False).ids), special)


def _of_language_model(path: Path) -> Path:
    """The file in the cache of the Hub's library, downloaded if it is not there."""
    from huggingface_hub import errors, hf_hub_download

    name = USUAL_SOURCE
    if (path / PREPROCESSOR).is_file():
        reader = ConfigReader(read_json(path / PREPROCESSOR), str(path / PREPROCESSOR))
        name = reader.text("language_model_pretrained_name", USUAL_SOURCE)
    try:
        return Path(hf_hub_download(name, FILE))
    except (errors.HfHubHTTPError, errors.LocalEntryNotFoundError, OSError, ValueError) as e:
        raise CheckpointError(
            f"{path} has no {FILE}, and that of {name} could not be downloaded: {e}"
        ) from e
