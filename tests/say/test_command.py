"""`stentor say` and `stentor voices` as a user meets them."""

from __future__ import annotations

import importlib.util
import io
import re
import sys
from pathlib import Path

import numpy as np
import pytest
import soundfile

from stentor.cli import main
from stentor.host.installed import pip_install
from stentor.models.toy.model import BROKEN
from stentor.say import source
from tests.helpers.fake_loudspeaker import FakeDevice
from tests.helpers.server_live import decoded

STORY = "One is here. Two is here.\n\nThree is here."
SHORT = [
    "--model",
    "dummy:toy",
    "--max-frames",
    "8",
    "--min-frames",
    "8",
    "--seed",
    "3",
    "--voice",
    "low",
]
CUT, LEFT_OUT = 3, 5
FRAMES = 8 * 6  # samples of a sentence at 600 Hz


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class Pipe:
    """Standard output that takes bytes."""

    def __init__(self) -> None:
        self.buffer = io.BytesIO()

    def isatty(self) -> bool:
        return False


@pytest.fixture
def book(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "book.txt"
    path.write_text(STORY, encoding="utf-8-sig")
    return path


def test_what_the_voice_cannot_speak_is_named_and_has_a_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for text, left_out in (("你好", "你好"), ("Hello 你好 world. مرحبا بك", "你好, مرحبا بك")):
        assert main(["say", text, "-o", "a.wav", "--seed", "3"]) == LEFT_OUT
        assert f"the voice cannot speak, and left out: {left_out}\n" in capsys.readouterr().err
    assert main(["say", "Hello world.", "-o", "a.wav", "--seed", "3"]) == 0
    assert "warning" not in capsys.readouterr().err


@pytest.mark.parametrize(
    "name",
    ["a.wav", "a.flac", "a.mp3", "a.opus", "a.ogg", "a.m4a", "a.aac", "a.raw", "a.ulaw", "a.alaw"],
)
def test_a_book_is_spoken_into_every_kind_of_file(book: Path, name: str) -> None:
    assert main(["say", "--file", str(book), "--split", "sentence", "-o", name, *SHORT]) == CUT
    wanted = (3 * FRAMES + 0.55 * 600) / 600
    data = (book.parent / name).read_bytes()
    if name == "a.raw":
        assert len(data) == round(2 * 600 * wanted)
        return
    samples, rate = decoded(data, name[2:])
    assert wanted - 0.01 < len(samples) / rate < wanted + 0.3  # aac has no count of its padding
    if name == "a.wav":
        assert soundfile.info(book.parent / name).frames == len(samples) == round(600 * wanted)


@pytest.mark.parametrize(
    ("format", "head"), [("wav", b"RIFF"), ("raw", b""), ("flac", b"fLaC"), ("opus", b"OggS")]
)
def test_audio_goes_to_a_pipe_and_words_to_standard_error(
    format: str, head: bytes, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pipe = Pipe()
    monkeypatch.setattr("sys.stdout", pipe)
    assert main(["say", "hello", "-o", "-", "--format", format, *SHORT]) == CUT
    data = pipe.buffer.getvalue()
    assert data.startswith(head)
    assert len(data) == 2 * FRAMES if format == "raw" else len(data) > 44
    assert "max_frames cut the speech" in capsys.readouterr().err


def test_speed_stretches_no_pause_that_the_text_asks_for(book: Path) -> None:
    for speed in ("0.5", "1", "2"):
        ask = ["say", "One. [pause 2s] Two.", "-o", "a.wav", "--srt", "a.srt", *SHORT]
        assert main([*ask, "--speed", speed]) == CUT
        _, begin = re.findall(r"(\S+) --> ", Path("a.srt").read_text())
        seconds = float(begin[6:].replace(",", "."))
        assert seconds - FRAMES / 600 / float(speed) == pytest.approx(2.0, abs=6e-3)


def test_speed_changes_length_and_times(book: Path) -> None:
    ask = ["say", "--file", str(book), "--subtitles", "a.srt", "-o", "a.wav", *SHORT]
    assert main([*ask, "--speed", "2"]) == CUT
    assert soundfile.info("a.wav").frames == round((3 * FRAMES + 330) / 2)
    assert Path("a.srt").read_text() == (
        "1\n00:00:00,000 --> 00:00:01,200\nOne is here. Two is here. Three is here.\n"
    )


@pytest.mark.parametrize(("suffix", "head"), [("vtt", "WEBVTT"), ("ass", "[Script Info]")])
def test_the_suffix_of_subtitles_chooses_their_format(book: Path, suffix: str, head: str) -> None:
    ask = ["say", "--file", str(book), "-o", "a.wav", *SHORT]
    assert main([*ask, "--subtitles", f"a.{suffix}"]) == CUT
    assert Path(f"a.{suffix}").read_text().startswith(head)


def test_subtitles_of_another_format_are_refused_with_those_that_there_are(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["say", "hello", "--subtitles", "a.txt", *SHORT]) == 2
    assert "must end in one of .srt, .vtt, .ass, got 'a.txt'" in capsys.readouterr().err


def test_subtitles_of_a_language_without_an_aligner_share_out_the_time_of_sentences(
    book: Path,
) -> None:
    text = "Die Katze sitzt dort und wartet auf den Regen, der nicht kommt, aber bald."
    assert main(["say", text, "--subtitles", "a.srt", "-o", "a.wav", *SHORT]) == CUT
    assert "Die Katze sitzt dort" in Path("a.srt").read_text()


def test_words_have_subtitles_where_their_times_can_be_found(book: Path) -> None:
    ask = ["say", "--file", str(book), "--words", "-o", "a.wav", *SHORT]
    words = [*ask, "--srt", "a.srt", "--model", "dummy:toy-words"]
    assert main(words) == CUT
    assert [cue.split("\n")[2] for cue in Path("a.srt").read_text().split("\n\n")[:2]] == [
        "One",
        "is",
    ]
    assert main([*ask, "--srt", "b.srt"]) == CUT  # by the aligner for English
    assert Path("b.srt").read_text().startswith("1\n00:00:00,000 -->")


def test_an_aligner_of_another_package_times_the_words(book: Path) -> None:
    ask = ["say", "Die Katze sitzt dort.", "--words", "--srt", "a.srt", "-o", "a.wav", *SHORT]
    assert main([*ask, "--aligner", "tests.helpers.aligners:every"]) == CUT
    cues = [cue.split("\n")[1:] for cue in Path("a.srt").read_text().split("\n\n")]
    assert [words.strip() for _, words, *_ in cues] == ["Die", "Katze", "sitzt", "dort."]
    ends = [clock.split(" --> ")[1] for clock, *_ in cues]
    assert ends == [f"00:00:00,{round(FRAMES / 600 * 1000 * (n + 1) / 4):03}" for n in range(4)]


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        ([], "text: give a text"),
        (["hello", "--file", "book.txt"], "text: give a text"),
        (["--file", "none.txt"], "file: cannot read 'none.txt'"),
        (["--file", "latin.txt"], "file: 'latin.txt' is not UTF-8 text: byte 3"),
        (["hello", "--speed", "9"], "speed: must be from 0.25 to 4, got 9"),
        (["hello", "--words"], "words: needs --subtitles"),
        (["hello", "-o", "-", "--format", "m4a"], "format: m4a cannot be written to a pipe"),
        (["hello", "-o", ""], "output: '' is no path: it is empty"),
        (
            ["hello", "-o", "~nobody-of-this-name/a.wav"],
            "output: '~nobody-of-this-name/a.wav' is no path",
        ),
    ],
)
def test_wrong_flags_are_told_before_anything_is_loaded(
    flags: list[str],
    says: str,
    book: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("stentor.api.TTS", None)
    monkeypatch.setattr("sys.stdin", Terminal())
    (book.parent / "latin.txt").write_bytes(b"caf\xe9")
    assert main(["say", *flags, *SHORT]) == 2
    assert says in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (
            ["say", "--file", "~nobody-of-this-name/a"],
            "--file: '~nobody-of-this-name/a' is no path",
        ),
        (["say", "hello", "--srt="], "--subtitles/--srt: '' is no path"),
        (["batch", "in.jsonl", ""], "argument OUTPUT: '' is no path"),
        (["say", "hello", "--temperature", "hot"], "--temperature: invalid number value: 'hot'"),
    ],
)
def test_a_flag_that_is_no_path_or_no_number_is_told_with_the_usage(
    flags: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(flags)
    assert says in capsys.readouterr().err


def test_what_cannot_be_written_is_told_in_one_line(
    book: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("taken.srt").mkdir()
    assert main(["say", "hello", "--srt", "taken.srt", *SHORT]) == 1
    assert "stentor: cannot write 'taken.srt': Is a directory" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (["-o", "books"], "output: 'books' is a folder; name a file in it, such as books/out.wav"),
        (["-o", "a.wav", "--format", "mp3"], "name it 'a.mp3' or leave --format out"),
        (["-o", "a.PCM", "--format", "flac"], "format: is flac, and 'a.PCM' ends in .PCM"),
    ],
)
def test_an_output_that_means_something_else_is_refused(
    flags: list[str], says: str, book: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("books").mkdir()
    assert main(["say", "hello", *flags, *SHORT]) == 2
    assert says in capsys.readouterr().err


def test_words_are_joined_and_a_suffix_may_stand_for_two_formats(book: Path) -> None:
    assert main(["say", "-o", "joined.wav", *SHORT, "hello", "there"]) == CUT
    assert main(["say", "hello there", "-o", "quoted.wav", *SHORT]) == CUT
    assert Path("joined.wav").read_bytes() == Path("quoted.wav").read_bytes()
    assert main(["say", "hello", "-o", "a.ogg", "--format", "opus", *SHORT]) == CUT
    assert main(["say", "hello", "-o", "a.audio", "--format", "wav", *SHORT]) == CUT


def test_a_file_is_written_while_it_is_played(book: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    device = FakeDevice()
    monkeypatch.setitem(sys.modules, "sounddevice", device)
    assert main(["say", "hello", "--play", "-o", "a.wav", *SHORT]) == CUT
    assert sum(len(b) for b in device.written) == FRAMES == soundfile.info("a.wav").frames


def test_audio_is_not_written_on_a_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stdout", Terminal())
    assert main(["say", "hello", "-o", "-", *SHORT]) == 2
    assert "standard output is a terminal" in capsys.readouterr().err


def test_without_pyav_the_formats_that_need_it_are_named(
    book: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *rest: None if name == "av" else find(name, *rest)
    )
    assert main(["say", "hello", "-o", "a.m4a", *SHORT]) == 2
    assert f"m4a needs PyAV: {pip_install('audio')}" in capsys.readouterr().err
    for name in ("a.flac", "a.mp3", "a.ogg"):
        assert main(["say", "hello", "-o", name, *SHORT]) == CUT
        assert len(decoded(Path(name).read_bytes())[0]) >= FRAMES


@pytest.mark.parametrize(
    ("answer", "spoken"), [("\n", STORY), ("yes\n", STORY), ("n\n", "book.txt"), ("", STORY)]
)
def test_the_name_of_a_file_as_text_is_asked_about_on_a_terminal(
    answer: str, spoken: str, book: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", Terminal(answer))
    monkeypatch.setattr("sys.stderr", Terminal())
    assert source.read([book.name], None) == spoken
    assert "'book.txt' is a file. Speak the text in it?" in sys.stderr.getvalue()


def test_the_name_of_a_file_as_text_is_spoken_with_a_warning_elsewhere(
    book: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert source.read([book.name], None) == "book.txt"
    assert "warning: 'book.txt' is a file" in capsys.readouterr().err
    assert source.read(["word " * 1000 + "\0"], None).startswith("word")


def test_what_was_spoken_before_a_failure_is_in_the_file(book: Path) -> None:
    book.write_text(f"One is here. Two {BROKEN}.")
    assert main(["say", "--file", str(book), "--split", "sentence", "-o", "a.wav", *SHORT]) == 1
    assert soundfile.info("a.wav").frames == FRAMES + 90


def test_speech_that_ends_by_itself_is_a_success(
    book: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["say", "Yes. No.", "-o", "a.wav", "--seed", "1", "--verbose"]) == 0
    said = capsys.readouterr()
    assert said.out.startswith("Saved a.wav (")
    assert "(stop, seed 1)" in said.err


def test_text_from_a_pipe_needs_no_dash(
    book: Path, monkeypatch: pytest.MonkeyPatch, capsys
) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"from a pipe")))
    assert main(["say", *SHORT]) == CUT
    assert capsys.readouterr().out.startswith("Saved out.wav (0.1 s).")
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b" ")))
    assert main(["say", *SHORT]) == 2
    assert "text: give a text" in capsys.readouterr().err


def test_the_way_to_play_is_that_of_a_program_that_is_there(
    book: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("shutil.which", lambda name: f"/bin/{name}" if name == "mpv" else None)
    assert main(["say", "hello", "-o", "a b.wav", *SHORT]) == CUT
    assert capsys.readouterr().out == "Saved a b.wav (0.1 s). Play it with: mpv 'a b.wav'\n"
    # which no player knows by its name
    assert main(["say", "hello", "-o", "a.ulaw", *SHORT]) == CUT
    assert capsys.readouterr().out == "Saved a.ulaw (0.1 s).\n"


def test_ctrl_c_tells_what_was_kept(
    book: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupt(bar: object, character: int, seconds: float) -> None:
        if seconds > 0.2:
            raise KeyboardInterrupt

    monkeypatch.setattr("stentor.say.progress.SpeakingBar.at", interrupt)
    command = ["say", "--file", str(book), "--split", "sentence", "-o", "a.wav"]
    assert main([*command, "--subtitles", "a.srt", *SHORT]) == 130
    kept = soundfile.info("a.wav").duration
    assert kept > 0.2
    assert Path("a.srt").read_text().startswith("1\n00:00:00,000 --> ")
    assert f"stentor: interrupted; a.wav has the first {kept:.1f} s\n" in capsys.readouterr().err


def test_a_terminal_shows_how_far_a_long_text_is(
    book: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stderr", Terminal())
    main(["say", "--file", str(book), "--split", "sentence", "-o", "a.wav", *SHORT])
    assert "speaking" in sys.stderr.getvalue()
    assert "s of audio" in sys.stderr.getvalue()


def test_voices_are_listed_with_what_a_model_takes(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["voices", "--model", "dummy:toy"]) == 0
    out = capsys.readouterr().out
    for words in ("low, high", "english", "0.05 to 5 s of speech to clone", "600 Hz"):
        assert words in out
    assert "--instructions  how to speak" in out


@pytest.mark.parametrize(("own_rate", "count"), [(None, FRAMES), (1200, 2 * FRAMES)])
def test_it_is_played_at_a_rate_that_the_device_takes_and_no_file_is_written(
    own_rate: int | None, count: int, book: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    device = FakeDevice(own_rate=own_rate)
    monkeypatch.setitem(sys.modules, "sounddevice", device)
    assert main(["say", "hello", "--play", *SHORT]) == CUT
    assert device.rate == (own_rate or 600)
    assert sum(len(b) for b in device.written) == count
    assert [p.name for p in book.parent.iterdir()] == ["book.txt"]


@pytest.mark.parametrize(
    ("device", "says"),
    [
        (None, pip_install("play")),
        (FakeDevice(device=False), "play: this machine has no device to play on"),
    ],
)
def test_what_playing_needs_is_told_before_anything_is_loaded(
    device: FakeDevice | None,
    says: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr("stentor.api.TTS", None)
    monkeypatch.setitem(sys.modules, "sounddevice", device)
    assert main(["say", "hello", "--play", *SHORT]) == 2
    assert says in capsys.readouterr().err


def test_a_lexicon_and_pauses_are_read(book: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("words.yaml").write_text("SQL: sequel\n", encoding="utf-8")
    say = ["say", "-o", "a.wav", "--split", "sentence", "--loudness", "off", *SHORT]
    assert main([*say, "Use SQL. [pause 500ms] Now.", "--lexicon", "words.yaml"]) == CUT
    lexical, rate = soundfile.read("a.wav")
    assert main([*say, "Use sequel. Now."]) == CUT
    plain, _ = soundfile.read("a.wav")
    assert len(lexical) - len(plain) == round(0.35 * rate)
    assert np.array_equal(lexical[: FRAMES - 10], plain[: FRAMES - 10])
    assert main([*say, "Hi.", "--lexicon", "none.yaml"]) == 2
    assert "lexicon: 'none.yaml' does not exist" in capsys.readouterr().err
