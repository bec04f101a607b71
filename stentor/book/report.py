"""The report of a verified book: word errors and loudness by chapter, and the places to listen to,
as HTML with players and as JSON."""

from __future__ import annotations

import base64
import difflib
import html
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from string import Template
from typing import Any

import soundfile

from stentor.batch import disk
from stentor.book.contents import Book
from stentor.book.joining import SpokenPiece
from stentor.book.writing import WrittenChapter
from stentor.output.encode import encoder, legal_rate
from stentor.output.resample import resampler

TEMPLATE = Path(__file__).with_name("report.html")
PLACES = 20
PLAYER = "mp3"
"""A format that every browser plays."""
GOOD_WER = 0.02
TONES = {True: "good", False: "bad"}


@dataclass(frozen=True)
class ChapterProof:
    """The measures of a chapter. again: pieces that were spoken more than once."""

    chapter: WrittenChapter
    errors: int
    words: int
    again: int

    @property
    def wer(self) -> float:
        return self.errors / max(self.words, 1)

    def as_json(self) -> dict[str, Any]:
        chapter = self.chapter
        return {
            "number": chapter.number,
            "title": chapter.title,
            "seconds": round(chapter.end - chapter.start, 3),
            "wer": round(self.wer, 4),
            "errors": self.errors,
            "words": self.words,
            "spoken_again": self.again,
            "loudness": chapter.levels.as_json(),
        }


@dataclass(frozen=True)
class Place:
    """A piece to listen to. start: seconds in the file of its chapter."""

    chapter: WrittenChapter
    spoken: SpokenPiece
    start: float

    @property
    def measures(self) -> dict[str, Any]:
        measures: dict[str, Any] = self.spoken.row["verify"]
        return measures

    @property
    def text(self) -> str:
        return " ".join(segment["text"] for segment in self.spoken.row["segments"])

    def as_json(self) -> dict[str, Any]:
        return {
            "id": self.spoken.piece.id,
            "chapter": self.chapter.number,
            "start": round(self.start, 3),
            "text": self.text,
            **self.measures,
        }


def write(folder: Path, prefix: str, book: Book, chapters: Sequence[WrittenChapter]) -> Path:
    """Write PREFIXreport.html and PREFIXreport.json. Returns the path of the page."""
    proofs = [_proof(chapter) for chapter in chapters]
    places = _places(chapters)
    errors = sum(proof.errors for proof in proofs)
    words = sum(proof.words for proof in proofs)
    content = {
        "title": book.title,
        "author": book.author,
        "wer": round(errors / max(words, 1), 4),
        "errors": errors,
        "words": words,
        "chapters": [proof.as_json() for proof in proofs],
        "worst": [place.as_json() for place in places],
    }
    text = json.dumps(content, indent=2, ensure_ascii=False) + "\n"
    _write(folder / f"{prefix}report.json", text)
    page = folder / f"{prefix}report.html"
    _write(page, _page(book, proofs, places, errors / max(words, 1)))
    return page


def _write(path: Path, text: str) -> None:
    with disk.replaced(path) as handle:
        disk.write_all(handle, text.encode("utf-8", "backslashreplace"))


def _proof(chapter: WrittenChapter) -> ChapterProof:
    measures = [spoken.row["verify"] for spoken in chapter.source.pieces]
    return ChapterProof(
        chapter,
        sum(each["errors"] for each in measures),
        sum(each["words"] for each in measures),
        sum(each["tries"] > 1 for each in measures),
    )


def _places(chapters: Sequence[WrittenChapter]) -> list[Place]:
    """The pieces with the most word errors, by their rate. Those without any are left out."""
    places = [
        Place(chapter, spoken, chapter.start + start)
        for chapter in chapters
        for spoken, start in zip(chapter.source.pieces, chapter.source.starts, strict=True)
    ]
    wrong = [place for place in places if place.measures["errors"]]
    wrong.sort(key=lambda place: (-place.measures["wer"], place.spoken.piece.id))
    return wrong[:PLACES]


def _page(book: Book, proofs: Sequence[ChapterProof], places: Sequence[Place], wer: float) -> str:
    minutes = sum(proof.chapter.end - proof.chapter.start for proof in proofs) / 60
    again = sum(proof.again for proof in proofs)
    loud = sum(proof.chapter.levels.acx for proof in proofs)
    facts = (
        (f"{wer:.1%}", "word error rate"),
        (f"{len(proofs)}", "chapters"),
        (f"{minutes:.0f} min", "of speech"),
        (f"{again}", "pieces spoken again"),
        (f"{loud} of {len(proofs)}", "chapters within ACX's levels"),
    )
    return Template(TEMPLATE.read_text("utf-8")).substitute(
        title=html.escape(book.title),
        byline=html.escape(f"by {book.author}" * bool(book.author)),
        facts="".join(f"<div><b>{value}</b>{name}</div>" for value, name in facts),
        chapters="\n".join(map(_row, proofs)),
        places="\n".join(map(_place, places)) or "<li>None: every transcript equals its text.</li>",
    )


def _row(proof: ChapterProof) -> str:
    chapter = proof.chapter
    levels = chapter.levels
    tone = TONES[proof.wer <= GOOD_WER]
    acx = f'<span class="{TONES[levels.acx]}">{"yes" * levels.acx or "no"}</span>'
    return (
        f"<tr><td>{chapter.number}</td><td>{html.escape(chapter.title)}</td>"
        f"<td>{_clock(chapter.end - chapter.start)}</td><td class={tone}>{proof.wer:.1%}</td>"
        f'<td><span class="bar"><i style="width:{min(100, proof.wer * 1000):.0f}%"></i></span></td>'
        f"<td>{proof.again}</td><td>{levels.rms:.1f} dB</td><td>{levels.peak:.1f} dB</td>"
        f"<td>{levels.lufs:.1f}</td><td>{acx}</td></tr>"
    )


def _place(place: Place) -> str:
    measures = place.measures
    written, spoken = _differences(place.text, measures["transcript"])
    return (
        f"<li><b>{measures['wer']:.0%}</b> {html.escape(place.chapter.title)}, {_clock(place.start)} "
        f"<small>{place.spoken.piece.id}, spoken {measures['tries']} ×</small>"
        f"<p><small>text</small> {written}</p><p><small>transcript</small> {spoken}</p>"
        f'<audio controls preload="none" src="{_player(place.spoken.path)}"></audio></li>'
    )


def _differences(text: str, transcript: str) -> tuple[str, str]:
    """Both texts as HTML, with the words that differ marked."""
    written = text.split()
    spoken = transcript.split()
    matcher = difflib.SequenceMatcher(None, [*map(_plain, written)], [*map(_plain, spoken)], False)
    marked: tuple[list[str], list[str]] = ([], [])
    for kind, start, end, other_start, other_end in matcher.get_opcodes():
        marked[0].extend(_words(written[start:end], kind != "equal"))
        marked[1].extend(_words(spoken[other_start:other_end], kind != "equal"))
    return " ".join(marked[0]), " ".join(marked[1])


def _words(words: Sequence[str], differ: bool) -> Iterator[str]:
    if words and differ:
        yield f"<mark>{html.escape(' '.join(words))}</mark>"
    elif words:
        yield html.escape(" ".join(words))


def _plain(word: str) -> str:
    return "".join(sign for sign in word.casefold() if sign.isalnum())


def _player(path: Path) -> str:
    """The audio of a piece as the address of a player."""
    samples, rate = soundfile.read(path, dtype="float32")
    player_rate = legal_rate(PLAYER, rate)
    coder = encoder(PLAYER, player_rate, whole=True)
    resample = resampler(rate, player_rate)
    coder.feed(resample.feed(samples))
    coder.feed(resample.finish())
    return f"data:audio/mpeg;base64,{base64.b64encode(coder.finish()).decode()}"


def _clock(seconds: float) -> str:
    return f"{int(seconds) // 60}:{int(seconds) % 60:02}"
