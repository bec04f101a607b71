"""Tags of audio files: words, a picture, and the places of chapters."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Picture:
    """A cover. format: "jpeg" or "png"."""

    data: bytes
    format: str


@dataclass(frozen=True)
class Tags:
    """Tags of a file. values: words by their names in FFmpeg, such as "title" and "artist"."""

    values: Mapping[str, str] = field(default_factory=dict)
    picture: Picture | None = None


@dataclass(frozen=True)
class ChapterMark:
    """A chapter of a file, from `start` to `end` in seconds."""

    title: str
    start: float
    end: float


NO_TAGS = Tags()
