"""`--server`: a running server speaks a batch, and a book, with the bytes of a run here."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from stentor.batch import over_http
from stentor.cli import main
from tests.batch.runs import audio, check, lines, manifest
from tests.book import made
from tests.helpers.server_live import Live, serving

SHORT = ("--min-frames", "2", "--max-frames", "3")
HERE = ("--model", "dummy:toy", "--max-num-seqs", "1", *SHORT)
CUT, SOME_FAILED = 3, 4
ITEMS = [
    {"id": "a", "text": "One is here. Two is here.", "split_granularity": "sentence"},
    {"id": "b", "text": "Three.", "voice": "high", "seed": 5},
    {"id": "c", "text": "Four.", "voice": "nobody"},
]


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    with serving(tmp_path_factory.mktemp("voices")) as server:
        yield server


@pytest.fixture(autouse=True)
def _no_key(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("STENTOR_API_KEY", "http_proxy"):
        monkeypatch.delenv(name, raising=False)


def test_a_server_speaks_a_batch_as_a_model_of_this_process_does(
    live: Live, tmp_path: Path
) -> None:
    source = tmp_path / "in.jsonl"
    source.write_text(lines(*ITEMS))
    there, here = tmp_path / "there", tmp_path / "here"
    assert main(["batch", str(source), str(there), "--server", live.url, *SHORT]) == SOME_FAILED
    assert main(["batch", str(source), str(here), *HERE]) == SOME_FAILED
    assert sorted(check(there)) == ["a", "b"]
    assert audio(there) == audio(here)
    rows = {row["id"]: row for row in manifest(there)}
    assert rows["c"]["error"]["field"] == "voice"
    assert [segment["text"] for segment in rows["a"]["segments"]] == [
        "One is here.",
        "Two is here.",
    ]


def test_a_server_speaks_a_book(live: Live, tmp_path: Path) -> None:
    book = made.markdown(tmp_path / "b.md")
    words = ["book", str(book), *SHORT, "--split", "sentence", "--narrator", "Ada", "-o"]
    assert main([*words, str(tmp_path / "a"), "--server", live.url, "--format", "flac"]) == CUT
    assert main([*words, str(tmp_path / "b"), *HERE[:4], "--format", "flac"]) == CUT
    names = [path.name for path in sorted((tmp_path / "a").iterdir())]
    assert names == ["01 Punch.flac", "02 Rice.flac"]
    for name in names:
        assert (tmp_path / "a" / name).stat().st_size > 0
        assert (tmp_path / "b" / name).stat().st_size > 0


def test_a_server_that_does_not_answer_ends_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(over_http, "PAUSE_SECONDS", 0.0)
    source = tmp_path / "in.jsonl"
    source.write_text(lines(*ITEMS))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{free.getsockname()[1]}"
        assert main(["batch", str(source), str(tmp_path / "out"), "--server", url]) == 1
    assert "--resume continues" in capsys.readouterr().err


@pytest.mark.parametrize(
    "flags", [["--threads", "2"], ["--max-num-seqs", "2"], ["--replicas", "2"]]
)
def test_flags_of_a_model_of_this_process_are_refused(
    tmp_path: Path, flags: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "in.jsonl").write_text(lines(*ITEMS))
    words = ["batch", str(tmp_path / "in.jsonl"), str(tmp_path / "out"), "--server", "localhost"]
    assert main([*words, *flags]) == 2
    assert "has no effect with --server" in capsys.readouterr().err
