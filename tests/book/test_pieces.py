"""A test of the pieces of a book: who speaks them, and how their audio is joined."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import soundfile

from stentor.batch.fields import ID
from stentor.book.chapters import Part
from stentor.book.contents import Block, Chapter
from stentor.book.joining import ChapterAudio, SpokenPiece, pauses
from stentor.book.loudness import ACX_PEAK, Target, levelled, measured
from stentor.book.pieces import PIECE_CHARS, Piece, pieces_of
from stentor.book.voices import Cast, read
from stentor.errors import InvalidRequest

RATE = 24_000
SENTENCE = "The juice of lemons makes fine punch. "


def parts(*blocks: Block, number: int = 3) -> list[Part]:
    return [Part(number, Chapter("A Title", blocks), True)]


def paragraph(text: str) -> Block:
    return Block("paragraph", text)


def cut(*blocks: Block, cast: Cast | None = None, gap: str = "\n\n") -> list[Piece]:
    return pieces_of(parts(*blocks), True, cast or Cast(), gap)


def test_short_paragraphs_share_a_piece_and_headings_and_scenes_end_one() -> None:
    pieces = cut(
        Block("heading", "One"),
        paragraph("A b."),
        paragraph("C d."),
        Block("scene", ""),
        paragraph("E f."),
    )
    assert [(p.text, p.ending) for p in pieces] == [
        ("One", "heading"),
        ("A b.\n\nC d.", "scene"),
        ("E f.", "paragraph"),
    ]
    assert [p.id for p in pieces] == ["c0003-p00001", "c0003-p00002", "c0003-p00003"]
    assert all(ID.fullmatch(p.id) for p in pieces)


def test_no_word_is_lost_where_a_long_paragraph_is_cut() -> None:
    text = SENTENCE * 200
    pieces = cut(Block("heading", "One"), paragraph(text))[1:]
    assert all(len(piece.text) <= PIECE_CHARS for piece in pieces)
    assert " ".join(piece.text for piece in pieces).split() == text.split()
    assert [piece.ending for piece in pieces] == ["stop"] * (len(pieces) - 1) + ["paragraph"]


def test_paragraphs_without_words_are_no_pieces() -> None:
    assert [p.text for p in cut(Block("heading", "One"), paragraph("…"), paragraph("A."))] == [
        "One",
        "A.",
    ]


def test_a_pause_between_paragraphs_is_a_mark_in_the_text() -> None:
    pieces = cut(
        Block("heading", "One"), paragraph("A."), paragraph("B."), gap="\n\n[pause 0.8s]\n\n"
    )
    assert pieces[1].text == "A.\n\n[pause 0.8s]\n\nB."


VOICES = """
narrator: {voice: low}
chapters:
  3-4: {voice: high}
speakers:
  Ann: {reference: ann.wav, speed: 1.5}
"""


def test_chapters_and_marked_speakers_have_their_voices(tmp_path: Path) -> None:
    (tmp_path / "ann.wav").touch()
    (tmp_path / "voices.yaml").write_text(VOICES)
    cast = read(tmp_path / "voices.yaml")
    text = "He said [voice: ann] Come in. [voice: narrator] She did. [voice: bob] Yes."
    pieces = cut(Block("heading", "One"), paragraph(text), paragraph("Still Bob."), cast=cast)
    ann = {"reference": str(tmp_path / "ann.wav"), "speed": 1.5}
    assert [(p.text, dict(p.fields), p.ending) for p in pieces] == [
        ("One", {"voice": "high"}, "heading"),
        ("He said", {"voice": "high"}, "turn"),
        ("Come in.", ann, "turn"),
        ("She did.", {"voice": "high"}, "turn"),
        ("Yes.\n\nStill Bob.", {"voice": "bob"}, "paragraph"),
    ]
    assert cast.fields(9, None) == {"voice": "low"}


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("people: {}", "'people' is not known"),
        ("narrator: low", "narrator must be a mapping"),
        ("chapters: {x: {}}", "must be numbers"),
        ("speakers: {a: {reference: no.wav}}", "speakers.a.reference: no file"),
        ("speakers: {a: {text: x}}", "speakers.a.text is not of a voice"),
        ("speakers: {a: {speed: 9}}", "speakers.a.speed"),
        ("[", "is not YAML"),
    ],
)
def test_a_wrong_file_of_voices_is_named(tmp_path: Path, text: str, reason: str) -> None:
    (tmp_path / "voices.yaml").write_text(text)
    with pytest.raises(InvalidRequest, match="voices: ") as error:
        read(tmp_path / "voices.yaml")
    assert reason in str(error.value)


def spoken(folder: Path, samples: list[np.ndarray], endings: list[str]) -> list[SpokenPiece]:
    """Pieces with this audio, each of which has one sentence."""
    pieces = []
    for at, (each, ending) in enumerate(zip(samples, endings, strict=True)):
        path = folder / f"{at}.flac"
        soundfile.write(path, each, RATE, "PCM_16")
        row = {
            "seconds": len(each) / RATE,
            "segments": [
                {
                    "index": 0,
                    "text": "A.",
                    "start": 0.1,
                    "end": 0.2,
                    "start_char": 0,
                    "end_char": 2,
                    "words": [],
                }
            ],
        }
        pieces.append(SpokenPiece(Piece(f"p{at}", 1, "A.", ending), row, path))
    return pieces


def test_a_chapter_has_its_pauses_and_no_steps_at_joins(tmp_path: Path) -> None:
    loud = np.full(RATE, 0.5, np.float32)
    gaps = pauses("heading=1,scene=2,start=0.5,end=1.5")
    audio = ChapterAudio(
        spoken(tmp_path, [loud] * 3, ["heading", "scene", "paragraph"]), gaps, RATE
    )
    samples = np.concatenate(list(audio))
    assert audio.starts == [0.5, 2.5, 5.5]
    assert len(samples) == round((0.5 + 1 + 1 + 1 + 2 + 1 + 1.5) * RATE)
    assert np.abs(np.diff(samples)).max() < 0.01
    for start in audio.starts:
        inside = samples[round((start + 0.01) * RATE) : round((start + 0.99) * RATE)]
        assert np.allclose(inside, 0.5, atol=1e-4)
    assert [
        s.start
        for piece, at in zip(audio.pieces, audio.starts, strict=True)
        for s in piece.segments(at)
    ] == [pytest.approx(start + 0.1) for start in audio.starts]
    assert len(np.concatenate(list(audio))) == len(samples), "it is read as often as it is needed"


def bursts(level: float, seconds: int = 8) -> list[np.ndarray]:
    """Speech-like noise: half of each second is louder, and the last tenth silent."""
    rng = np.random.default_rng(3)
    parts = []
    for _ in range(seconds):
        part = rng.standard_normal(RATE) * level
        part[: RATE // 2] *= 0.3
        part[-RATE // 2 :] *= np.linspace(1, 0, RATE // 2)
        parts.append(np.concatenate((part, np.zeros(RATE // 2))).astype(np.float32))
    return parts


@pytest.mark.parametrize("level", [0.01, 0.05, 0.4])
def test_quiet_and_loud_chapters_reach_the_levels_of_acx(level: float) -> None:
    audio = bursts(level)
    target = Target.of("acx")
    even = list(levelled(audio, RATE, target.gain(measured(audio, RATE))))
    levels = measured(even, RATE)
    assert levels.acx, levels
    assert levels.peak <= ACX_PEAK
    assert sum(map(len, even)) == sum(map(len, audio))


def test_a_loudness_in_lufs_is_reached() -> None:
    audio = bursts(0.02)
    levels = measured(audio, RATE)
    even = levelled(audio, RATE, Target.of("-24").gain(levels))
    assert measured(even, RATE).lufs == pytest.approx(-24, abs=0.5)
    assert Target.of("off").gain(levels) == 0
