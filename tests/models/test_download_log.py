"""Log lines of a download, on a server without a terminal."""

from __future__ import annotations

import logging
import sys
import threading
from types import SimpleNamespace

import huggingface_hub
import pytest

from stentor.models import hub
from stentor.models.download_log import Progress, log, logged

MB = 10**6


def test_a_line_is_logged_for_each_tenth_that_has_arrived():
    progress = Progress("owner/name", 0, lambda: 2_000 * MB)
    lines = [progress.line(cached * MB) for cached in (0, 190, 210, 390, 900, 990, 2_000)]
    assert lines == [
        None,
        None,
        "downloading owner/name: 10 % (0.21 of 2.00 GB)",
        None,
        "downloading owner/name: 45 % (0.90 of 2.00 GB)",
        None,
        "downloading owner/name: 100 % (2.00 of 2.00 GB)",
    ]


def test_the_hub_is_asked_for_sizes_only_once_bytes_arrive():
    sizes_read: list[int] = []

    def total() -> int:
        sizes_read.append(1)
        return 1_000 * MB

    progress = Progress("owner/name", 500 * MB, total)
    assert progress.line(500 * MB) is None
    assert sizes_read == []
    assert progress.line(600 * MB) == "downloading owner/name: 60 % (0.60 of 1.00 GB)"
    assert progress.line(700 * MB) is not None
    assert sizes_read == [1]


class Lines(logging.Handler):
    """Counts down to an event as lines arrive."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []
        self.arrived = threading.Event()

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())
        self.arrived.set()


@pytest.fixture
def lines(monkeypatch: pytest.MonkeyPatch) -> Lines:
    handler = Lines()
    monkeypatch.setattr(log, "handlers", [handler])
    monkeypatch.setattr(log, "level", logging.INFO)
    log.manager._clear_cache()
    return handler


def test_lines_are_logged_while_a_download_runs(lines: Lines):
    cached = iter([0, 0, 40])
    with logged("owner/name", lambda: next(cached, 40), lambda: 100, poll_seconds=0.001):
        assert lines.arrived.wait(60)
    assert lines.lines == ["downloading owner/name: 40 % (0.00 of 0.00 GB)"]


def test_a_hub_that_gives_no_sizes_does_not_end_the_download(lines: Lines):
    read = threading.Event()
    cached = iter([0])

    def refuse() -> int:
        read.set()
        raise OSError("unreachable")

    with logged("owner/name", lambda: next(cached, 40), refuse, poll_seconds=0.001):
        assert read.wait(60)
    assert lines.lines == []


def test_a_terminal_has_the_bars_of_the_library_instead(
    lines: Lines, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)

    def refuse() -> int:
        raise AssertionError("nothing is read on a terminal")

    with logged("owner/name", refuse, refuse, poll_seconds=0.001):
        pass
    assert lines.lines == []


def test_files_that_no_family_reads_are_not_counted(monkeypatch: pytest.MonkeyPatch):
    files = {"model.safetensors": 700, "README.md": 20, "config.json": 3, "languages/x.bin": 5}

    siblings = [SimpleNamespace(rfilename=name, size=size) for name, size in files.items()]
    info = SimpleNamespace(siblings=siblings)
    monkeypatch.setattr(huggingface_hub.HfApi, "model_info", lambda *_, **__: info)
    assert hub._hub_bytes("owner/name", None, ["*.md"]) == 708
    assert hub._hub_bytes("owner/name", ["languages/*"], ["*.md"]) == 5
