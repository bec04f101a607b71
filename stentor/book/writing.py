"""The files of a book: one m4b with chapter marks, or a folder with a file per chapter."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from stentor.batch import disk
from stentor.book.contents import Book
from stentor.book.joining import ChapterAudio
from stentor.book.loudness import Levels, Meter, Target, levelled, measured
from stentor.output.encode import is_readable, serial_number
from stentor.output.marks import Marks
from stentor.output.tags import ChapterMark, Tags
from stentor.say.target import Output

GENRE = "Audiobook"
AUDIOBOOK = "2"
"""iTunes' number for a kind of media."""
_UNSAFE = re.compile(r'[\x00-\x1f<>:"/\\|?*]+')
NAME_CHARS = 80


@dataclass(frozen=True)
class SpokenChapter:
    """A chapter with its audio. number: in the list of the book."""

    number: int
    title: str
    audio: ChapterAudio


@dataclass(frozen=True)
class WrittenChapter:
    """A chapter as it was written. start, end: seconds in its file."""

    number: int
    title: str
    file: Path
    start: float
    end: float
    levels: Levels
    source: ChapterAudio


class BookWriter:
    """Writes the chapters of a book at an even loudness."""

    def __init__(self, book: Book, narrator: str, marks: Marks, target: Target) -> None:
        self.book = book
        self.narrator = narrator
        self.marks = marks
        self._target = target

    def m4b(self, path: Path, chapters: Sequence[SpokenChapter]) -> list[WrittenChapter]:
        """Write one file with chapter marks and cover."""
        cover = self.book.cover
        if cover is not None and not is_readable(cover):
            print("stentor: warning: the cover is damaged, and left out", file=sys.stderr)
            cover = None
        tags = Tags({**self._words(self.book.title), "media_type": AUDIOBOOK}, cover)
        written: list[WrittenChapter] = []
        with disk.written_aside(path) as aside:
            output = self._output(aside, "m4b", chapters[0].audio.rate, tags)
            start = 0.0
            try:
                for chapter in chapters:
                    written.append(self._feed(output, chapter, path, start))
                    start = written[-1].end
                output.mark_chapters(
                    [ChapterMark(each.title, each.start, each.end) for each in written]
                )
            finally:
                output.finish()
        return written

    def folder(
        self, folder: Path, format: str, chapters: Sequence[SpokenChapter]
    ) -> list[WrittenChapter]:
        """Write a file per chapter, with its number and tags."""
        folder.mkdir(exist_ok=True)
        written: list[WrittenChapter] = []
        width = max(2, len(str(len(chapters))))
        for track, chapter in enumerate(chapters, 1):
            name = f"{track:0{width}} {_file_name(chapter.title)}.{format}"
            words = {**self._words(chapter.title), "track": f"{track}/{len(chapters)}"}
            path = folder / name
            with disk.written_aside(path) as aside:
                output = self._output(aside, format, chapter.audio.rate, Tags(words))
                try:
                    written.append(self._feed(output, chapter, path, 0.0))
                finally:
                    output.finish()
        return written

    def _output(self, path: Path, format: str, rate: int, tags: Tags) -> Output:
        serial = serial_number(0, f"{self.book.title} {path.name}")
        return Output(path, format, rate, self.marks, serial, tags)

    def _feed(
        self, output: Output, chapter: SpokenChapter, path: Path, start: float
    ) -> WrittenChapter:
        """Write a chapter into an open file."""
        rate = chapter.audio.rate
        meter = Meter(rate)
        samples_written = 0
        for samples in self._even(chapter.audio):
            meter.feed(samples)
            output.feed(samples)
            samples_written += len(samples)
        end = start + samples_written / rate
        return WrittenChapter(
            chapter.number, chapter.title, path, start, end, meter.levels(), chapter.audio
        )

    def _even(self, audio: ChapterAudio) -> Iterator[np.ndarray]:
        """The audio of a chapter at the loudness of the book."""
        if self._target.kind == "off":
            return iter(audio)
        gain = self._target.gain(measured(audio, audio.rate))
        return levelled(audio, audio.rate, gain)

    def _words(self, title: str) -> dict[str, str]:
        book = self.book
        words = {
            "title": title,
            "album": book.title,
            "artist": book.author,
            "album_artist": book.author,
            "composer": self.narrator,  # where players look for the narrator
            "date": book.year,
            "genre": GENRE,
        }
        return {name: word for name, word in words.items() if word}


def _file_name(title: str) -> str:
    """A title as a part of a file's name on any system."""
    name = " ".join(_UNSAFE.sub(" ", title).split()).strip(". ")
    return name[:NAME_CHARS].strip(". ") or "chapter"
