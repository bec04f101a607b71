"""Lines take every option of a request, as JSON lines and as CSV."""

from __future__ import annotations

import csv
import inspect
import io
import json
import re
from pathlib import Path
from typing import Any

import pytest

import stentor
from stentor import request
from stentor.batch.fields import FIELDS
from stentor.batch.reader import records
from tests.batch.runs import CUT, TOY, manifest, speak
from tests.helpers.child import ROOT
from tests.helpers.server_live import tone_wav

NOT_OF_A_LINE = {"spec", "model", "live", "options"}  # of the run, or of text that comes in pieces
LINE: dict[str, Any] = {
    "id": "all",
    "text": "One is here. Two is here.",
    "voice": "low",
    "language": "english",
    "reference": ["A.wav"],
    "reference_text": ["What I say."],
    "seed": 2**63 - 1,
    "split_granularity": "sentence",
    "retries": 1,
    "temperature": 0.5,
    "top_k": 3,
    "top_p": 0.5,
    "cfg": 1.5,
    "flow_steps": 2,
    "min_frames": 1,
    "max_frames": 2,
}


def as_csv(line: dict[str, Any]) -> str:
    out = io.StringIO()
    cells = {
        name: json.dumps(value) if isinstance(value, list) else value
        for name, value in line.items()
    }
    writer = csv.DictWriter(out, list(cells))
    writer.writeheader()
    writer.writerow(cells)
    return out.getvalue()


def test_lines_have_the_fields_of_a_request_and_the_page_names_them() -> None:
    taken = set(inspect.signature(request.build).parameters) - NOT_OF_A_LINE
    assert taken <= FIELDS.keys()
    page = (ROOT / "docs" / "batch.md").read_text()
    table = page[page.index("| field |") : page.index("| any option")]
    assert set(re.findall(r"`([a-z_]+)`[^|]*(?=\|)", table)) <= FIELDS.keys() | {"loras"}
    assert all(f"`{name}`" in table for name in FIELDS)


@pytest.mark.parametrize("form", ["jsonl", "csv"])
def test_every_option_of_a_line_reaches_the_request(
    form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[dict[str, Any]] = []
    generate = stentor.TTS.generate

    def heard(self: stentor.TTS, text: str, **options: Any) -> Any:
        asked.append({"text": text, **options})
        return generate(self, text, **options)

    monkeypatch.setattr(stentor.TTS, "generate", heard)
    (tmp_path / "A.wav").write_bytes(tone_wav(0.5))
    text = as_csv(LINE) if form == "csv" else json.dumps(LINE) + "\n"
    assert speak(tmp_path, text, "--input-format", form, "--voice", "high", toy=TOY[:2]) == CUT
    (got,) = asked
    (reference,) = got.pop("reference")
    assert reference.text == "What I say."
    assert got == {n: v for n, v in LINE.items() if n not in ("id", "reference", "reference_text")}
    (row,) = manifest(tmp_path / "out")
    assert [s["text"] for s in row["segments"]] == ["One is here.", "Two is here."]
    assert (
        row["segments"][0]["start"] == 0 < row["segments"][0]["end"] <= row["segments"][1]["start"]
    )


def test_cells_of_a_table_are_what_their_fields_want() -> None:
    table = as_csv(
        {
            "text": "12",
            "reference": ["Ä.wav", "B.wav"],
            "speaker_embedding": [0.5, -1],
            "trim": "TRUE",
        }
    )
    (record,) = records(io.BytesIO(table.encode()), "csv")
    assert record.fields == {"text": "12", "reference": ["Ä.wav", "B.wav"], "speaker_embedding": [0.5, -1], "trim": True}  # fmt: skip
    (record,) = records(io.BytesIO(b"text,reference\nx,[1] me.wav\n"), "csv")
    assert record.fields["reference"] == "[1] me.wav"
