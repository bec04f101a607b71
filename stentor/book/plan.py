"""Plan of a book from the flags of `stentor book`, checked before anything is spoken or written."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stentor.batch import plan as batch_plan
from stentor.book import joining, voices
from stentor.book.chapters import Part
from stentor.book.loudness import Target
from stentor.book.pieces import Piece, pieces_of
from stentor.errors import InvalidRequest
from stentor.flags import RETRY_ABOVE
from stentor.say.target import available

PIECES = "pieces.jsonl"
PARTS = ".parts"
PART_FORMAT = "wav"
M4B = ".m4b"
EPUB = ".epub"


@dataclass(frozen=True)
class BookPlan:
    """A checked command line. output: a file, or a folder for files of
    `format`. work: the
    folder of the spoken pieces. job: the batch that speaks them."""

    output: Path
    format: str
    work: Path
    pieces: list[Piece]
    gaps: dict[str, float]
    target: Target
    job: batch_plan.Plan

    @property
    def kind(self) -> str:
        """How the book is written: ".m4b", ".epub", or "" for a folder of files."""
        return _kind(self.output)


def plan(args: argparse.Namespace, load: dict[str, Any], parts: list[Part]) -> BookPlan:
    """Check the flags. parts: the chapters of the book. InvalidRequest names a wrong flag."""
    output = _output(args.output)
    format = available(_format(args, output), ())
    work = output.with_name(output.name + PARTS)
    if work.is_symlink():
        raise InvalidRequest("output", f"{str(work)!r} is a link, and a run deletes it: remove it")
    if args.subtitles is not None and _kind(output) == EPUB:
        raise InvalidRequest("subtitles", "an EPUB holds the times of its sentences")
    if args.words and args.subtitles is None:
        raise InvalidRequest("words", "needs --subtitles")
    cast = voices.read(args.voices)
    pieces = pieces_of(parts, not args.no_titles, cast, _gap(args.pauses))
    batch = argparse.Namespace(
        **{
            **vars(args),
            "input": work / PIECES,
            "output": work,
            "format": PART_FORMAT,
            "input_format": "jsonl",
            "loras": [],
            "shards": None,
            "parquet": False,
            "retry_failed": False,
            "replicas": None,
            "provenance": False,
            "watermark": None,
            "split": _split(args, output),
            **_verify(args),
        }
    )
    return BookPlan(
        output,
        format,
        work,
        pieces,
        joining.pauses(args.pauses),
        Target.of(args.loudness),
        batch_plan.plan(batch, load),
    )


def _output(path: Path | None) -> Path:
    if path is None:
        raise InvalidRequest("output", "name a .m4b or .epub file or a folder (-o), or use --list")
    output = path.resolve()
    if _kind(output):
        if output.is_dir():
            raise InvalidRequest("output", f"{str(path)!r} is a folder")
    elif output.suffix and not output.is_dir():
        raise InvalidRequest(
            "output",
            f"{str(path)!r} must end in {M4B} or {EPUB}, or be a folder, whose name has no dot",
        )
    if not output.parent.is_dir():
        raise InvalidRequest("output", f"folder {str(output.parent)!r} does not exist")
    return output


def _format(args: argparse.Namespace, output: Path) -> str:
    if _kind(output):
        return "m4b"
    return str(args.format)


def _verify(args: argparse.Namespace) -> dict[str, Any]:
    """The flags of a batch that measures words."""
    if not args.verify:
        return {"verify": None}
    retry_above = args.retry_above
    if retry_above is None:
        retry_above = RETRY_ABOVE
    return {"verify": "wer", "retry_above": retry_above}


def _split(args: argparse.Namespace, output: Path) -> str:
    """Where text is cut: at each sentence where the times of sentences are written."""
    timed = args.subtitles is not None or _kind(output) == EPUB
    if timed and args.split == "auto":
        return "sentence"
    return str(args.split)


def _kind(output: Path) -> str:
    suffix = output.suffix.lower()
    if suffix in (M4B, EPUB):
        return suffix
    return ""


def _gap(pauses: str | None) -> str:
    """The text between two paragraphs of a piece: with a mark for their pause, if it is not the
    usual one."""
    seconds = joining.pauses(pauses)["paragraph"]
    if seconds == joining.USUAL["paragraph"]:
        return "\n\n"
    return f"\n\n[pause {seconds:g}s]\n\n"
