"""Parts of a checkpoint: weights, a tokenizer, voices, and a description in YAML or of a released
name."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from stentor.errors import CheckpointError
from stentor.models.pocket_tts import released
from stentor.models.pocket_tts.config import parse

VOICES = "embeddings"
ENCODER = {
    "mimi.encoder.": "encoder.",
    "mimi.encoder_transformer.transformer.": "transformer.",
    "mimi.downsample.conv.conv.": "downsample.",
}
"""How names in a checkpoint begin, and the same here."""


class Files:
    """Where the parts of a checkpoint are. What a folder of the Hub lacks comes from the open
    repository."""

    def __init__(self, path: Path) -> None:
        self.path = path
        described = _described(path)
        if described is None and path.name not in released.NAMES:
            names = ", ".join(released.NAMES)
            raise CheckpointError(
                f"{path} has no YAML with flow_lm and mimi, and its name is none of {names}"
            )
        self._released = path.name if described is None else None
        file, data = described or (path / f"{path.name}.yaml", released.description(path.name))
        self.config = parse(data, str(file))
        if described is None or file.stem in released.NAMES:
            name = file.stem
        else:
            name = path.name
        self.language = next(
            (lang for lang in released.DEFAULT_VOICES if name.startswith(lang)), "english"
        )

    @property
    def weights(self) -> Path:
        """The file of weights."""
        file = self._local(self.config.weights)
        other = self.config.weights_without_cloning
        if file.is_file() or other is None:
            return file
        return self._local(other)

    @property
    def clones(self) -> bool:
        """Whether the weights are those with which recordings may be cloned. The others have an
        encoder that does not work, and only their path shows it."""
        is_local = self.weights == self._local(self.config.weights)
        return is_local and "without-voice-cloning" not in str(self.path.resolve())

    @property
    def tokenizer(self) -> Path:
        """The tokenizer's file."""
        file = self._local(self.config.tokenizer)
        if file.is_file() or self._released is None:
            return file
        name = released.TOKENIZERS.get(self._released, f"languages/{self._released}/{file.name}")
        return _open_files(name) / name

    @property
    def voices(self) -> Path:
        """The folder of its voices, which may not exist."""
        folder = self.path / VOICES
        if folder.is_dir() or self._released is None or not _is_download(self.path):
            return folder
        name = f"languages/{self._released}/{VOICES}"
        return _open_files(f"{name}/*") / name

    def _local(self, name: str) -> Path:
        """A file that the description names, beside it. Of an address only the last part counts."""
        return self.path / (Path(name.partition("@")[0]).name if "://" in name else name)


def _described(path: Path) -> tuple[Path, Any] | None:
    """Return the YAML of a folder that describes a model, with its content, or None.
    CheckpointError if there are several."""
    descriptions = []
    for file in sorted(path.glob("*.yaml")):
        try:
            data = yaml.safe_load(file.read_text(encoding="utf-8"))
        except (yaml.YAMLError, UnicodeDecodeError, OSError) as e:
            raise CheckpointError(f"{file} is not valid YAML: {e}") from e
        if isinstance(data, Mapping) and {"flow_lm", "mimi"} <= data.keys():
            descriptions.append((file, data))
    if len(descriptions) > 1:
        raise CheckpointError(
            f"{path} describes several models: {', '.join(file.name for file, _ in descriptions)}"
        )
    if descriptions:
        return descriptions[0]
    return None


def _is_download(path: Path) -> bool:
    """Whether a folder is one of the gated repository in the cache of the Hub's library."""
    return f"models--{released.REPOSITORY.replace('/', '--')}" in path.parts


def _open_files(pattern: str) -> Path:
    """The open repository with files that match, downloaded or found in the cache."""
    from huggingface_hub import errors, snapshot_download

    try:
        return Path(snapshot_download(released.OPEN_REPOSITORY, allow_patterns=[pattern]))
    except (errors.HfHubHTTPError, errors.LocalEntryNotFoundError, OSError) as e:
        raise CheckpointError(
            f"{released.OPEN_REPOSITORY}: {pattern} could not be downloaded: {e}"
        ) from e
