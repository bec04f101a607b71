"""Subtitles of a book: a file for each file of audio, by the times of its sentences."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path

from stentor.batch import disk
from stentor.book.writing import WrittenChapter
from stentor.speech.subtitles import FORMATS
from stentor.speech.timing import SegmentTiming


def write(chapters: Sequence[WrittenChapter], format: str, words: bool) -> list[Path]:
    """Write subtitles beside each file of audio, under its name. words: with the times of words."""
    paths: list[Path] = []
    for file, group in itertools.groupby(chapters, lambda chapter: chapter.file):
        segments: list[SegmentTiming] = []
        for chapter in group:
            segments += segments_of(chapter)

        path = file.with_suffix(f".{format}")
        with disk.replaced(path) as handle:
            disk.write_all(handle, FORMATS[format](segments, words).encode())
        paths.append(path)
    return paths


def segments_of(chapter: WrittenChapter) -> Iterator[SegmentTiming]:
    """When each sentence of a chapter is spoken, in seconds of its file."""
    for spoken, start in zip(chapter.source.pieces, chapter.source.starts, strict=True):
        yield from spoken.segments(chapter.start + start)
