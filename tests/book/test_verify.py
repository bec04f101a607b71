"""A verified book: a wrong piece is found, spoken again, and shown in the report."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from stentor.batch import meters
from stentor.batch.item import BatchItem, ItemOutcome
from stentor.batch.verify import Checks
from tests.book import made
from tests.book.test_command import CUT, speak

LOST = "Rice is often"


class PlantedMeters:
    """Measures that find every try of one piece wrong, and the first of another."""

    def __init__(self, checks: Checks, inputs: Path) -> None:
        self.tries: dict[str, int] = {}

    def __call__(self, item: BatchItem, outcome: ItemOutcome) -> dict[str, object]:
        self.tries[item.id] = self.tries.get(item.id, 0) + 1
        text = " ".join(segment["text"] for segment in outcome.row["segments"])
        errors = 0
        if text == "Punch" and self.tries[item.id] == 1:
            errors = 1
        if text.startswith(LOST):
            errors = 2
        words = len(text.split())
        transcript = text.replace("Rice is", "Mice <are>")
        return {"wer": errors / words, "errors": errors, "words": words, "transcript": transcript}


@pytest.mark.parametrize("name", ["b.m4b", "walks"])
def test_wrong_pieces_are_spoken_again_and_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    monkeypatch.setattr(meters, "Meters", PlantedMeters)
    out = tmp_path / name
    assert speak(made.markdown(tmp_path / "b.md"), out, "--verify") == CUT
    folder = tmp_path if name == "b.m4b" else out
    prefix = "b." if name == "b.m4b" else ""
    report = json.loads((folder / f"{prefix}report.json").read_text("utf-8"))
    assert [chapter["spoken_again"] for chapter in report["chapters"]] == [1, 1]
    assert [chapter["errors"] for chapter in report["chapters"]] == [0, 2]
    assert report["errors"] == 2
    worst = report["worst"]
    assert [place["text"][: len(LOST)] for place in worst] == [LOST]
    assert worst[0]["tries"] == 3
    page = (folder / f"{prefix}report.html").read_text("utf-8")
    assert "<mark>Mice &lt;are&gt;</mark>" in page
    assert page.count("<audio") == 1
    assert "data:audio/mpeg;base64," in page
    assert str(folder / f"{prefix}report.html") in capsys.readouterr().out


def test_a_retry_needs_verification(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert speak(made.markdown(tmp_path / "b.md"), tmp_path / "b.m4b", "--retry-above", "0.2") == 2
    assert "retry_above: needs --verify" in capsys.readouterr().err
