"""Voices that come with a checkpoint, each in a file."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from stentor.models.base import Voice


def voice_files(folder: Path, suffix: str = ".safetensors") -> dict[str, Path]:
    """The voices in a folder, which may not exist, by the names of their files in small letters."""
    files = sorted(folder.glob(f"*{suffix}"))
    return {file.stem.lower(): file for file in files}


class VoiceFiles(Mapping[str, Voice]):
    """Voices by name.

    They are read when they are first used, by any thread. read: raises CheckpointError for a file
    that is not of this checkpoint.
    """

    def __init__(self, files: Mapping[str, Path], read: Callable[[Path], Voice]) -> None:
        self._files = files
        self._read = read
        self._voices: dict[str, Voice] = {}

    def __iter__(self) -> Iterator[str]:
        return iter(self._files)

    def __len__(self) -> int:
        return len(self._files)

    def __getitem__(self, name: str) -> Voice:
        voice = self._voices.get(name)
        if voice is None:
            voice = self._read(self._files[name])
            self._voices[name] = voice
        return voice
