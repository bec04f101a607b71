"""A book that is killed at writes chosen by a seed, and resumed, has the bytes of one that was not."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest

from tests.book import made
from tests.book.test_command import CUT, TOY, speak
from tests.helpers.child import python

pytestmark = pytest.mark.skipif(os.name == "nt", reason="there is no fork")
KILLS = 5


@pytest.mark.slow
@pytest.mark.parametrize("name", ["b.m4b", "chapters"])
def test_a_killed_book_is_resumed_to_the_same_bytes(tmp_path: Path, name: str) -> None:
    book = made.epub2(tmp_path / "b.epub", chapters=4)
    whole = tmp_path / "whole"
    whole.mkdir()
    assert speak(book, whole / name) == CUT
    words = ["book", str(book), "-o", str(tmp_path / name), "--resume", *TOY]
    run = python("-m", "tests.book.killed", json.dumps(words), str(KILLS), OMP_NUM_THREADS="1")
    assert run.returncode == 0, run.stderr
    codes = json.loads(run.stdout)
    assert codes[-1] == CUT, (codes, run.stderr)
    assert codes.count(-signal.SIGKILL) >= KILLS // 2, codes
    assert contents(tmp_path / name) == contents(whole / name)
    assert not (tmp_path / f"{name}.parts").exists()


def contents(path: Path) -> dict[str, bytes]:
    """The bytes of a file, or of all files of a folder."""
    if path.is_file():
        return {path.name: path.read_bytes()}
    return {file.name: file.read_bytes() for file in path.iterdir()}
