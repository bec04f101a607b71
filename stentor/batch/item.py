"""One line of the input on its way: what is to be spoken, and what became of it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from stentor.batch.fields import check_id, merged, unfolded
from stentor.batch.reader import Record
from stentor.errors import InvalidRequest

Row = dict[str, Any]
"""A line of the manifest."""

_CANONICAL = json.JSONEncoder(sort_keys=True, separators=(",", ":"))

SAID = "ok"  # values of a row's `status`
LOST = "error"


@dataclass(frozen=True)
class BatchItem:
    """A checked line. chars: of its text, or bytes of its file. digest: changes with the line.
    fields: its fields over the defaults of the run, always with a seed. error: the field that is
    wrong and why, if it cannot be spoken."""

    line: int
    id: str
    chars: int
    digest: str
    fields: Mapping[str, Any]
    error: tuple[str | None, str] | None = None


@dataclass(frozen=True)
class ItemOutcome:
    """Outcome of an item. path: its audio, complete, in the folder for audio on its way. None if it
    failed."""

    row: Row
    chars: int
    text: str = ""
    path: Path | None = None


def failed(item: BatchItem, field: str | None, message: str) -> ItemOutcome:
    """The outcome of an item that cannot be spoken. field: what is wrong in its line, where that is
    known."""
    row = {"line": item.line, "id": item.id, "status": LOST, "input": item.digest}
    return ItemOutcome({**row, "error": {"field": field, "message": message}}, item.chars)


def said(field: str | None, message: str) -> str:
    """An error in words."""
    if field:
        return f"{field}: {message}"
    return message


@dataclass(frozen=True)
class Run:
    """Settings that all items of a run share, in whatever process. inputs: the folder from which
    lines name files. defaults: of lines. seed: of the run. dots: whether an id may contain any.
    load: arguments of `TTS`. format: of the audio, as `stentor say` names it. provenance,
    watermark: its marks."""

    inputs: Path
    defaults: Mapping[str, Any] = field(default_factory=dict)
    seed: int = 0
    dots: bool = True
    load: Mapping[str, Any] = field(default_factory=dict)
    format: str = "wav"
    provenance: bool = False
    watermark: str | None = None


def checked(record: Record, run: Run) -> BatchItem:
    """The item of a record. One that is wrong has an error."""
    id = f"{record.line:08}"
    line = dict(record.fields)
    fields = {}
    error = record.error
    names: Mapping[str, str] = {}
    try:
        values, names = unfolded(line, run.load.get("model"), run.format)
        if values.get("id") is not None:
            id = check_id(values["id"], run.dots)
        fields = {"seed": derived_seed(run.seed, id), **merged(values, run.defaults)}
    except InvalidRequest as e:
        error = error or (names.get(e.param, e.param), e.message)
    fields.pop("id", None)
    if error:
        chars = 0
    else:
        chars = _length(fields, run.inputs)
    return BatchItem(record.line, id, chars, digest(line or error), {} if error else fields, error)


def derived_seed(run: int, id: str) -> int:
    """The seed of an item that names none, from 0 to 2**63 - 1. It hangs on the run's seed and the
    id alone."""
    hashed = hashlib.blake2b(f"{run}:{id}".encode(), digest_size=8).digest()
    return int.from_bytes(hashed, "big") >> 1


def digest(value: Any) -> str:
    """A short hash of JSON data. Equal data has an equal hash, whatever the order of its fields."""
    return hashlib.blake2b(_CANONICAL.encode(value).encode(), digest_size=8).hexdigest()


def _length(fields: Mapping[str, Any], inputs: Path) -> int:
    if "text" in fields:
        return len(fields["text"])
    try:
        return (inputs / Path(fields["text_file"]).expanduser()).stat().st_size
    except (OSError, ValueError, RuntimeError):  # told when it is read
        return 0
