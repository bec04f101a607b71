"""`stentor say --server`: a running server speaks."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from stentor.cli import main
from stentor.models.toy.model import BROKEN
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
    text = f"One is here. Two {BROKEN}."
    flags = ["--split", "sentence", "--cleanup", "none", *SHORT]
    assert main(["say", text, "--server", live.url, "-o", "a.wav", *flags]) == 1
    assert live.url in capsys.readouterr().err
    assert Path("a.wav").stat().st_size > 44


def test_voices_of_a_server_are_listed_as_those_of_a_model(
    live: Live, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["voices", "--model", "dummy:toy"]) == 0
    here = capsys.readouterr().out.splitlines()
    assert main(["voices", "--server", live.url]) == 0
    there = capsys.readouterr().out.splitlines()
    assert there[0].split() == ["model", live.http.get("/v1/models").json()["data"][0]["id"]]
    times = [line for line in here if line.startswith("word timestamps")]
    assert [line for line in there[1:] if line not in here] == [
        f"{'word timestamps':<16}depend on the language"
    ]
    assert [line for line in here if line not in there] == times

    form = {"name": "anna", "consent": "yes", "ref_text": "Zero."}
    files = {"audio_sample": ("a.wav", tone_wav(), "audio/wav")}
    assert live.http.post("/v1/audio/voices", data=form, files=files).status_code == 200
    try:
        assert main(["voices", "--server", live.url, "--sample", "voices"]) == 0
    finally:
        live.http.delete("/v1/audio/voices/anna")
    out = capsys.readouterr().out
    assert "low, high, anna (uploaded)" in out
    files_written = sorted(path.name for path in Path("voices").iterdir())
    assert files_written == ["anna.wav", "high.wav", "low.wav"]
    assert "voices/anna.wav" in out.splitlines()


@pytest.mark.parametrize(("flags", "code", "expected"), WRONG[1:3])
def test_what_voices_of_a_server_are_refused_is_named(
    live: Live, flags: list[str], code: int, expected: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["voices", "--server", live.url, *flags]) == code
    assert expected in capsys.readouterr().err


def test_a_server_that_is_not_stentor_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    class Page(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b"<html>")

        def log_message(self, *_: object) -> None: ...

    with ThreadingHTTPServer(("127.0.0.1", 0), Page) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        address = f"http://127.0.0.1:{server.server_port}"
        assert main(["voices", "--server", address]) == 1
        server.shutdown()
    assert f"{address}/v1/models is not JSON" in capsys.readouterr().err


def test_each_model_of_a_server_is_listed_with_aliases_of_voices(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    models = {"model": ("dummy:toy", "dummy:toy"), "served_model_name": ("one", "two/2")}
    with serving(tmp_path / "uploads", voice_alias=("ash=low",), **models) as live:
        assert main(["voices", "--server", live.url, "--sample", "voices"]) == 0
        assert main(["voices", "--server", live.url, "--model", "two/2"]) == 0
    out = capsys.readouterr().out
    assert _listed(out) == ["one", "two/2", "two/2"]
    assert out.count("low, high, ash (alias of low)") == 3
    written = sorted(str(path) for path in Path("voices").rglob("*.wav"))
    assert written == [
        f"voices/{model}/{voice}.wav"
        for model in ("one", "two_2")
        for voice in ("ash", "high", "low")
    ]


def test_a_model_with_two_names_is_listed_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with serving(tmp_path / "uploads", served_model_name=("mine", "other")) as live:
        assert main(["voices", "--server", live.url]) == 0
        assert main(["voices", "--server", live.url, "--model", "other"]) == 0
    assert _listed(capsys.readouterr().out) == ["mine", "other"]


def _listed(out: str) -> list[str]:
    return [line.split()[1] for line in out.splitlines() if line.startswith("model ")]
