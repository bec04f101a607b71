"""`stentor book`: from flags to a book in audio."""

from __future__ import annotations

import argparse
import itertools
import shutil
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from stentor.batch import command as batch
from stentor.batch import disk
from stentor.batch.item import Row
from stentor.batch.manifest import NAME, rows
from stentor.batch.plan import check_settings
from stentor.book import captions, overlay, reading, report
from stentor.book.chapters import Part, chosen, listed
from stentor.book.contents import Book
from stentor.book.joining import ChapterAudio, SpokenPiece
from stentor.book.plan import EPUB, M4B, BookPlan, plan
from stentor.book.writing import BookWriter, SpokenChapter, WrittenChapter
from stentor.errors import EngineError, InvalidRequest
from stentor.output.marks import Marks
from stentor.say import left_out
from stentor.say.signals import terminated_by_signals

LOCK = ".book.lock"
WRITTEN = (0, batch.SOME_CUT, left_out.EXIT_CODE)
"""Exit codes of a batch after which the book is written."""


def run(args: argparse.Namespace, load: dict[str, Any]) -> int:
    """Read a book aloud, with these arguments of `TTS`. Returns the exit code."""
    book = reading.read(args.input, args.alt_text)
    parts = chosen(book, args.matter, args.chapters)
    if args.list:
        for line in listed(book, parts):
            print(line)
        return 0
    job = plan(args, load, parts)
    if not args.resume and job.output.is_file():
        raise InvalidRequest("output", f"{str(job.output)!r} is there already; remove it first")
    marks = Marks.of(True, args.watermark, args.model)
    writer = BookWriter(book, _narrator(args), marks, job.target)
    check_settings(job.work, job.job.settings, args.resume)
    with terminated_by_signals(), _locked(job):
        _write_pieces(job)
        ended = batch.complete(job.job, args.resume, strict=True, retry_failed=args.resume)
        if ended.code not in WRITTEN:
            _explain(ended.code)
            return ended.code
        try:
            written = _written(job, writer, _chapters(parts, _spoken(job), job))
            if args.subtitles is not None:
                captions.write(written, args.subtitles, args.words)
            if args.verify:
                print(f"Report: {_proof(job, book, written)}")
        except OSError as e:
            raise EngineError(f"the run stopped, and --resume continues: {e}") from e
        if not args.keep_parts:
            shutil.rmtree(job.work, ignore_errors=True)
    _report(job, book, written)
    return ended.code


@contextmanager
def _locked(job: BookPlan) -> Iterator[None]:
    """The folder of the pieces is there, and no other process works on this book."""
    try:
        job.work.mkdir(exist_ok=True)
        lock = FileLock(job.work / LOCK, timeout=0).acquire()
    except Timeout:
        raise InvalidRequest("output", f"another process works on {str(job.output)!r}") from None
    except OSError as e:
        raise InvalidRequest("output", f"cannot write to {str(job.work)!r}: {e.strerror}") from None
    with lock:
        yield


def _write_pieces(job: BookPlan) -> None:
    """Write the items of the batch."""
    try:
        with disk.replaced(job.job.input) as handle:
            disk.write_all(handle, b"".join(piece.line for piece in job.pieces))
    except OSError as e:
        raise EngineError(f"the run stopped, and --resume continues: {e}") from e


def _spoken(job: BookPlan) -> list[SpokenPiece]:
    """The pieces with their rows, in the order of the book."""
    by_id: dict[str, Row] = {row["id"]: row for row in rows(job.work / NAME)}
    spoken = []
    for piece in job.pieces:
        row = by_id[piece.id]
        spoken.append(SpokenPiece(piece, row, job.work / row["path"]))
    return spoken


def _chapters(
    parts: Sequence[Part], spoken: Sequence[SpokenPiece], job: BookPlan
) -> list[SpokenChapter]:
    titles = {part.number: part.chapter.title for part in parts}
    chapters = []
    for number, group in itertools.groupby(spoken, lambda each: each.piece.chapter):
        pieces = list(group)
        rate = int(pieces[0].row["sample_rate"])
        audio = ChapterAudio(pieces, job.gaps, rate)
        chapters.append(SpokenChapter(number, titles[number], audio))
    return chapters


def _written(
    job: BookPlan, writer: BookWriter, chapters: Sequence[SpokenChapter]
) -> list[WrittenChapter]:
    if job.kind == M4B:
        return writer.m4b(job.output, chapters)
    if job.kind == EPUB:
        written = writer.folder(job.work / "epub", overlay.FORMAT, chapters)
        overlay.write(job.output, writer.book, written, writer.narrator, writer.marks)
        return written
    return writer.folder(job.output, job.format, chapters)


def _proof(job: BookPlan, book: Book, written: Sequence[WrittenChapter]) -> Path:
    """Write the report of a verified book, beside its file or into its folder."""
    if job.kind:
        return report.write(job.output.parent, f"{job.output.stem}.", book, written)
    return report.write(job.output, "", book, written)


def _narrator(args: argparse.Namespace) -> str:
    """The name of the narrator in tags."""
    if args.narrator is not None:
        return str(args.narrator)
    voice = args.voice or "voice"
    return f"stentor, synthetic {voice}"


def _explain(code: int) -> None:
    if code == batch.SOME_FAILED:
        print(
            "stentor: the book is not complete. --resume speaks the failed pieces again",
            file=sys.stderr,
        )


def _report(job: BookPlan, book: Book, written: Sequence[WrittenChapter]) -> None:
    """Print where the book is, and what its loudness misses."""
    seconds = sum(chapter.end - chapter.start for chapter in written)
    minutes = round(seconds / 60)
    length = f"{minutes // 60} h {minutes % 60:02} min"
    print(f"Saved {job.output} ({book.title}: {len(written)} chapters, {length}).")
    loud = [chapter.title for chapter in written if not chapter.levels.acx]
    if loud and job.target.kind == "rms":
        print(
            f"stentor: warning: not within ACX's levels: {left_out.first_of(loud)}", file=sys.stderr
        )
