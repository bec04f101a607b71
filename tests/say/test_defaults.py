"""Defaults of `stentor say` in the user's file, and samples of voices."""

from __future__ import annotations

from pathlib import Path

import pytest
import soundfile

from stentor.cli import main
from stentor.output.loudness import integrated

CUT = 3
SHORT = ["--max-frames", "8", "--min-frames", "8", "--seed", "3"]


@pytest.fixture(autouse=True)
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("STENTOR_CONFIG", raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "home"))
    file = tmp_path / "home" / "stentor.toml"
    file.parent.mkdir()
    return file


def spoken(*flags: str) -> bytes:
    assert main(["say", "Hello there.", "-o", "a.wav", *SHORT, *flags]) == CUT
    return Path("a.wav").read_bytes()


def test_the_file_sets_defaults_and_a_flag_wins(config: Path) -> None:
    low = spoken("--model", "dummy:toy", "--voice", "low", "--speed", "0.5")
    high = spoken("--model", "dummy:toy", "--voice", "high", "--speed", "0.5")
    config.write_text(
        '[say]\nmodel = "dummy:toy"\nvoice = "low"\nspeed = 0.5\nprovenance = false\n'
    )
    assert spoken() == low
    assert spoken("--voice", "high") == high


def test_another_file_may_be_named_and_none(
    config: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    config.write_text('[say]\nvoice = "nobody"\n')
    Path("mine.toml").write_text('[say]\nmodel = "dummy:toy"\n\n[other]\nkey = 1\n')
    monkeypatch.setenv("STENTOR_CONFIG", "mine.toml")
    spoken()
    monkeypatch.setenv("STENTOR_CONFIG", "")
    spoken("--model", "dummy:toy")
    monkeypatch.setenv("STENTOR_CONFIG", "none.toml")
    assert main(["say", "Hello."]) == 2
    assert "STENTOR_CONFIG names 'none.toml', which does not exist" in capsys.readouterr().err


def test_defaults_of_loading_are_left_out_where_a_server_speaks(
    config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config.write_text('[say]\ndevice = "cpu"\nthreads = 1\n')
    assert main(["say", "Hello.", "-o", "a.wav", "--server", "http://127.0.0.1:1"]) == 1
    assert "has no effect with --server" not in capsys.readouterr().err


WRONG = [
    ("voic = 'low'", "say.voic is not known; did you mean voice?"),
    ("output = 'a.wav'", "say.output belongs to one command"),
    ("play = 1", "say.play must be true or false, got 1"),
    ("voice = ['low']", "say.voice must be a text or a number, got ['low']"),
    ("speed = 'fast'", "say.speed has no such value: 'fast'"),
    ("split = 'word'", "say.split must be one of auto, "),
    ("loudness = 3", "say.loudness must be from -40 to -5 or off, got 3"),
    ("voice =", "cannot read "),
]


@pytest.mark.parametrize(("line", "expected"), WRONG)
def test_a_wrong_key_is_named_with_its_file(
    config: Path, line: str, expected: str, capsys: pytest.CaptureFixture[str]
) -> None:
    config.write_text(f"[say]\n{line}\n")
    assert main(["say", "Hello.", "--model", "dummy:toy"]) == 2
    error = capsys.readouterr().err
    assert error.startswith("stentor: config: ")
    assert str(config) in error
    assert expected in error


def test_help_works_with_a_broken_file(config: Path) -> None:
    config.write_text("[say\n")
    with pytest.raises(SystemExit, match="0"):
        main(["say", "--help"])


def loudness_of(*flags: str) -> float:
    assert (
        main(["say", "The ferry left at nine, and nobody waved.", "-o", *flags, "--seed", "4"]) == 0
    )
    samples, rate = soundfile.read(flags[0], dtype="float32")
    return integrated(samples, rate)


def test_a_file_has_the_loudness_of_players_unless_another_is_named() -> None:
    assert loudness_of("a.wav") == pytest.approx(-16.0, abs=0.5)
    assert loudness_of("b.wav", "--loudness", "-23") == pytest.approx(-23.0, abs=0.1)
    assert loudness_of("c.flac", "--loudness", "off") < -20


@pytest.mark.parametrize("value", ["-3", "loud"])
def test_a_loudness_out_of_range_is_refused(value: str) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["say", "Hello.", "--loudness", value])


def test_a_sample_of_each_voice_is_written(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["voices", "--model", "dummy:toy", "--sample", "new/samples"]) == 0
    files = [Path("new/samples", f"{name}.wav") for name in ("low", "high")]
    assert all(soundfile.info(file).frames for file in files)
    assert capsys.readouterr().out.splitlines()[-2:] == list(map(str, files))


def test_samples_need_a_folder(capsys: pytest.CaptureFixture[str]) -> None:
    Path("file").write_text("")
    assert main(["voices", "--model", "dummy:toy", "--sample", "file"]) == 2
    assert "sample: 'file' is no folder" in capsys.readouterr().err
