"""`stentor say --server`: a running server speaks."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from stentor.cli import main
from tests.helpers.server_live import Live, serving, tone_wav

SHORT = ["--max-frames", "8", "--min-frames", "8", "--seed", "3"]
CUT = 3


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    with serving(tmp_path_factory.mktemp("voices")) as server:
        yield server


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("STENTOR_API_KEY", "http_proxy"):
        monkeypatch.delenv(name, raising=False)


def test_a_server_speaks_as_a_model_of_this_process_does(live: Live) -> None:
    text = "One is here. [voice: high] Two is here."
    flags = ["--voice", "low", "--speed", "1.5", *SHORT]
    assert main(["say", text, "--server", live.url, "-o", "a.wav", *flags]) == CUT
    assert main(["say", text, "--model", "dummy:toy", "-o", "b.wav", *flags]) == CUT
    assert Path("a.wav").read_bytes() == Path("b.wav").read_bytes()


@pytest.mark.parametrize("words", [[], ["--words"]])
@pytest.mark.parametrize("suffix", ["srt", "vtt", "ass"])
def test_a_server_sends_the_subtitles(live: Live, suffix: str, words: list[str]) -> None:
    flags = ["One is here.", "-o", "a.wav", *words, *SHORT]
    here = ["--model", "dummy:toy", "--subtitles", f"here.{suffix}"]
    assert main(["say", "--server", live.url, *flags, "--subtitles", f"a.{suffix}"]) == CUT
    assert main(["say", *flags, *here]) == CUT
    assert Path(f"a.{suffix}").read_text() == Path(f"here.{suffix}").read_text()


def test_recordings_are_sent_and_fields_that_a_server_does_not_use_are_named(
    live: Live, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("voice.wav").write_bytes(tone_wav())
    ask = ["say", "One.", "--server", live.url, "-o", "a.wav", *SHORT]
    assert main([*ask, "--reference", "voice.wav", "--reference-text", "Zero."]) == CUT
    assert main([*ask, "--language", "klingon"]) == CUT
    assert "warning: the server does not use 'language'" in capsys.readouterr().err


WRONG = [
    (["--voice", "nobody"], 2, "stentor: voice: 'nobody' is not known"),
    (["--model", "other"], 2, "model: 'other' is not served here"),
    (["--device", "cpu"], 2, "device: has no effect with --server"),
    (["--lexicon", "words.yaml"], 2, "lexicon: has no effect with --server"),
    (["--temperature", "-1"], 2, "stentor: temperature: "),
]


@pytest.mark.parametrize(("flags", "code", "expected"), WRONG)
def test_what_a_server_refuses_is_named_as_here(
    live: Live, flags: list[str], code: int, expected: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["say", "One.", "--server", live.url, "-o", "a.wav", *flags]) == code
    assert expected in capsys.readouterr().err
    assert not Path("a.wav").exists()


def test_an_address_without_a_server_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as taken:  # bound, and nobody listens
        taken.bind(("127.0.0.1", 0))
        address = f"localhost:{taken.getsockname()[1]}"
        assert main(["say", "One.", "--server", address, "-o", "a.wav"]) == 1
    assert f"cannot reach http://{address}: " in capsys.readouterr().err


@pytest.mark.parametrize("address", ["ftp://localhost", "http://", "localhost:port"])
def test_what_is_no_address_is_refused(address: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["say", "One.", "--server", address])
    assert "must be an address such as http://localhost:8000" in capsys.readouterr().err


def test_a_key_is_asked_for_and_taken_from_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with serving(tmp_path, api_key=("secret",)) as live:
        ask = ["say", "One.", "--server", f"{live.url}/v1/", "-o", "a.wav", *SHORT]
        assert main(ask) == 1
        assert "needs a key: set STENTOR_API_KEY" in capsys.readouterr().err
        monkeypatch.setenv("STENTOR_API_KEY", "secret")
        assert main(ask) == CUT


def test_a_failure_in_the_middle_ends_the_command_and_keeps_what_was_spoken(
    live: Live, capsys: pytest.CaptureFixture[str]
) -> None:
    text = "One is here. Two \x01 breaks the toy."
    flags = ["--split", "sentence", "--cleanup", "none", *SHORT]
    assert main(["say", text, "--server", live.url, "-o", "a.wav", *flags]) == 1
    assert live.url in capsys.readouterr().err
    assert Path("a.wav").stat().st_size > 44
