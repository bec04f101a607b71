"""`stentor book` on the toy model: the files that it writes, and what it does with wrong flags."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import av
import mutagen
import mutagen.mp4
import pytest

from stentor.cli import main
from stentor.output.marks import SOURCE_TYPE
from tests.book import made

# one at a time, for the same bytes: products of several rows differ in their last bits
TOY = ("--model", "dummy:toy", "--min-frames", "4", "--max-frames", "8", "--max-num-seqs", "1")
CUT = 3


def speak(book: Path, out: Path, *flags: str) -> int:
    return main(["book", str(book), "-o", str(out), *TOY, *flags])


def test_an_m4b_has_chapter_marks_cover_tags_and_marks_of_synthetic_speech(tmp_path: Path) -> None:
    out = tmp_path / "b.m4b"
    book = made.epub2(tmp_path / "b.epub")
    assert speak(book, out, "--narrator", "Ada") == CUT
    file = mutagen.mp4.MP4(out)
    assert file.tags is not None
    tags = {name: values[0] for name, values in file.tags.items()}
    assert (tags["©nam"], tags["©ART"], tags["©wrt"], tags["©day"]) == (
        "The Plank and the River",
        "A. Writer",
        "Ada",
        "1897",
    )
    assert SOURCE_TYPE in tags["©cmt"]
    assert bytes(tags["covr"]) == made.png()
    titles = [chapter.title for chapter in file.chapters]
    assert titles == ["Part One. Chapter 1", "Chapter 2", "Chapter 3"]
    with av.open(out) as container:
        marks = [(c["start"], c["end"]) for c in container.chapters()]
        seconds = container.duration / av.time_base
    assert marks[0][0] == 0
    assert [end for _, end in marks[:-1]] == [start for start, _ in marks[1:]]
    assert marks[-1][1] / 1000 == pytest.approx(seconds, abs=0.2)
    assert not (tmp_path / "b.m4b.parts").exists()


@pytest.mark.skipif(shutil.which("ffprobe") is None, reason="ffprobe is not installed")
def test_ffprobe_shows_the_chapters(tmp_path: Path) -> None:
    out = tmp_path / "b.m4b"
    speak(made.markdown(tmp_path / "b.md"), out)
    probe = ("ffprobe", "-v", "error", "-show_chapters", "-of", "csv", str(out))
    shown = subprocess.run(probe, capture_output=True, text=True, check=True)
    assert shown.stderr == ""
    assert [line.rsplit(",", 1)[1] for line in shown.stdout.splitlines()] == ["Punch", "Rice"]


@pytest.mark.parametrize(
    ("format", "track"),
    [("mp3", "TRCK"), ("opus", "tracknumber"), ("flac", "tracknumber"), ("m4a", "trkn")],
)
def test_a_folder_has_a_file_per_chapter_with_tags(tmp_path: Path, format: str, track: str) -> None:
    out = tmp_path / "walks"
    assert speak(made.epub3(tmp_path / "b.epub"), out, "--format", format) == CUT
    assert sorted(path.name for path in out.iterdir()) == [
        f"01 The Boats.{format}",
        f"02 The Tyger.{format}",
    ]
    second = mutagen.File(out / f"02 The Tyger.{format}", easy=format not in {"m4a", "mp3"})
    value = second.tags[track]
    shown = str(value[0] if isinstance(value, list) else value)
    assert shown in ("2/2", "2", "(2, 2)")
    assert second.info.length > 2


def test_a_book_that_is_there_is_not_replaced(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "b.m4b"
    out.write_bytes(b"mine")
    assert speak(made.markdown(tmp_path / "b.md"), out) == 2
    assert "is there already" in capsys.readouterr().err
    assert out.read_bytes() == b"mine"


@pytest.mark.parametrize(
    ("flags", "reason"),
    [
        (["-o", "b.wav"], "output: "),
        (["-o", "no/b.m4b"], "output: folder"),
        ([], "output: name a .m4b"),
        (["-o", "b.m4b", "--loudness", "loud"], "loudness: must be acx"),
        (["-o", "b.m4b", "--pauses", "comma=1"], "pauses: 'comma' is not known"),
        (["-o", "b.m4b", "--pauses", "scene=99"], "pauses: must be seconds"),
        (["-o", "b.m4b", "--chapters", "9"], "chapters: '9' is not within"),
        (["-o", "b.m4b", "--voices", "none.yaml"], "voices: 'none.yaml' does not exist"),
        (["-o", "b.m4b", "--speed", "9"], "speed: must be"),
    ],
)
def test_a_wrong_flag_is_named_before_anything_is_written(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    flags: list[str],
    reason: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    made.markdown(tmp_path / "b.md")
    assert main(["book", "b.md", *flags, *TOY]) == 2
    assert capsys.readouterr().err.startswith(f"stentor: {reason}")
    assert [path.name for path in tmp_path.iterdir()] == ["b.md"]


def test_another_run_in_the_same_place_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    book = made.markdown(tmp_path / "b.md")
    out = tmp_path / "b.m4b"
    assert speak(book, out, "--keep-parts") == CUT
    out.unlink()
    assert speak(book, out) == 2
    assert "--resume continues it" in capsys.readouterr().err
    assert speak(book, out, "--resume", "--seed", "9") == 2
    assert "seed: was 0 when the run began" in capsys.readouterr().err
    assert speak(book, out, "--resume", "--no-titles") == 2
    assert "use another folder" in capsys.readouterr().err


def test_the_loudness_can_change_without_speaking_again(tmp_path: Path) -> None:
    book = made.markdown(tmp_path / "b.md")
    out = tmp_path / "b.m4b"
    assert speak(book, out, "--keep-parts") == CUT
    first = out.read_bytes()
    pieces = {
        path.name: path.stat().st_mtime_ns for path in (tmp_path / "b.m4b.parts/audio").iterdir()
    }
    assert speak(book, out, "--resume", "--keep-parts", "--loudness", "-30") == CUT
    assert out.read_bytes() != first
    assert pieces == {
        path.name: path.stat().st_mtime_ns for path in (tmp_path / "b.m4b.parts/audio").iterdir()
    }


@pytest.mark.parametrize("name", ["b.m4b", "walks"])
def test_subtitles_have_the_times_of_all_chapters_of_a_file(tmp_path: Path, name: str) -> None:
    out = tmp_path / name
    assert speak(made.epub3(tmp_path / "b.epub"), out, "--subtitles", "srt") == CUT
    texts = [path.read_text("utf-8") for path in sorted(tmp_path.rglob("*.srt"))]
    assert len(texts) == (1 if name == "b.m4b" else 2)
    shown = " ".join("\n".join(texts).split())
    for words in ("The Boats", "The last boat was late.", "Could frame thy fearful symmetry?"):
        assert words in shown
    assert "&" not in shown


def test_a_long_title_keeps_whole_characters_and_a_damaged_cover_is_left_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "b.m4b"
    title = "山" * 100
    items = [
        ("c", "c.xhtml", "application/xhtml+xml", ""),
        ("pic", "c.png", "image/png", "cover-image"),
    ]
    spine = "<spine><itemref idref='c'/></spine>"
    members = {
        "OEBPS/content.opf": made.opf("3.0", "<dc:title>T</dc:title>", items, spine),
        "OEBPS/c.xhtml": made.page(f"<h1>{title}</h1><p>Hello there.</p>"),
        "OEBPS/c.png": b"no picture",
    }
    assert speak(made.zipped(tmp_path / "b.epub", members), out) == CUT
    assert "the cover is damaged" in capsys.readouterr().err
    file = mutagen.mp4.MP4(out)
    assert [chapter.title for chapter in file.chapters] == ["山" * 85]
    assert "covr" not in file.tags
