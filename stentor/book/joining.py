"""The audio of a chapter: its pieces one after another, with the pauses between them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import soundfile

from stentor.book.pieces import Piece
from stentor.errors import InvalidRequest
from stentor.speech.speaking import SegmentJoiner
from stentor.speech.timing import SegmentTiming, WordTiming
from stentor.text.pauses import LONGEST_PAUSE, PAUSES

BLOCK = 1 << 16
"""Samples that are read at a time."""
PAUSE_NAMES = ("paragraph", "heading", "scene", "start", "end")
USUAL = {
    **{name: PAUSES[name] for name in ("stop", "turn", "paragraph", "heading", "scene")},
    "start": 0.5,  # of a chapter: ACX asks for 0.5 to 1 s
    "end": 1.5,  # ACX: 1 to 5 s
}


@dataclass(frozen=True)
class SpokenPiece:
    """A piece with its row in the manifest, and its file."""

    piece: Piece
    row: Mapping[str, Any]
    path: Path

    @property
    def seconds(self) -> float:
        """Its length, as its file has it."""
        return float(self.row["seconds"])

    def segments(self, start: float) -> Iterator[SegmentTiming]:
        """When its sentences are spoken, in a file in which it begins at `start` seconds."""
        for segment in self.row["segments"]:
            words = tuple(WordTiming(**_moved(word, start)) for word in segment["words"])
            yield SegmentTiming(**{**_moved(segment, start), "words": words})


def _moved(timing: Mapping[str, Any], seconds: float) -> dict[str, Any]:
    """The fields of a timing, moved back by `seconds`."""
    return {**timing, "start": timing["start"] + seconds, "end": timing["end"] + seconds}


def pauses(text: str | None) -> dict[str, float]:
    """The pauses of a book in seconds. text: those that differ, as "heading=1,scene=2".
    InvalidRequest("pauses") names what is wrong."""
    values = dict(USUAL)
    for part in (text or "").split(","):
        if not part.strip():
            continue
        name, _, number = part.partition("=")
        if name.strip() not in PAUSE_NAMES:
            raise InvalidRequest(
                "pauses", f"{name.strip()!r} is not known; use {', '.join(PAUSE_NAMES)}"
            )
        values[name.strip()] = _seconds(number)
    return values


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds <= LONGEST_PAUSE:
        raise InvalidRequest(
            "pauses", f"must be seconds from 0 to {LONGEST_PAUSE:g}, got {text.strip()!r}"
        )
    return seconds


class ChapterAudio:
    """The audio of a chapter, read from the files of its pieces as often as it is iterated over.

    rate: Hz of all pieces. starts: seconds at which each piece begins.
    """

    def __init__(self, pieces: Sequence[SpokenPiece], gaps: Mapping[str, float], rate: int) -> None:
        self.pieces = pieces
        self.rate = rate
        self._gaps = gaps
        self.starts = list(self._starts())

    def __iter__(self) -> Iterator[np.ndarray]:
        """Yield float32 samples [n] in [-1, 1]."""
        joiner = SegmentJoiner(self.rate)
        joiner.fade_in = True
        yield np.zeros(self._samples(self._gaps["start"]), np.float32)
        for spoken, pause in zip(self.pieces, self._pauses(), strict=True):
            with soundfile.SoundFile(spoken.path) as file:
                while len(samples := file.read(BLOCK, dtype="float32")):
                    yield joiner.feed(samples)
            yield joiner.end_segment(pause, fade=True)

    def _pauses(self) -> list[float]:
        """Seconds behind each piece."""
        behind = [self._gaps[spoken.piece.ending] for spoken in self.pieces]
        return [*behind[:-1], self._gaps["end"]]

    def _starts(self) -> Iterator[float]:
        at = self._samples(self._gaps["start"])
        for spoken, pause in zip(self.pieces, self._pauses(), strict=True):
            yield at / self.rate
            at += round(spoken.seconds * self.rate) + self._samples(pause)

    def _samples(self, seconds: float) -> int:
        return round(seconds * self.rate)
