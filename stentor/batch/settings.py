"""`run.json`: the settings of a run, which a resumed run must share."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from stentor.arguments import shown
from stentor.batch import disk
from stentor.errors import InvalidRequest
from stentor.untrusted import MIB, Missing, Unreadable, read_json

NAME = "run.json"


def check(folder: Path, settings: dict[str, Any], resume: bool) -> None:
    """InvalidRequest if the folder holds another run, or this one with other settings. Nothing is written."""
    known = _read(folder)
    if known is None:
        return
    if not resume:
        raise InvalidRequest("output", f"{str(folder)!r} holds a run already; --resume continues it")
    for name in sorted(known.keys() | settings.keys()):
        before, now = known.get(name), settings.get(name)
        if before != now:
            said = f"was {shown(before)} when the run began, and is {shown(now)}; use another folder"
            raise InvalidRequest(name, said)


def write(folder: Path, settings: dict[str, Any]) -> None:
    """Note the settings of a run."""
    with disk.replaced(folder / NAME) as handle:
        disk.write_all(handle, (json.dumps(settings, indent=2, ensure_ascii=False) + "\n").encode())


def _read(folder: Path) -> dict[str, Any] | None:
    path = folder / NAME
    try:
        known = read_json(path, MIB)
    except Missing:
        return None
    except Unreadable as e:
        raise InvalidRequest("output", f"{str(path)!r} {e}") from None
    if not isinstance(known, dict):
        raise InvalidRequest("output", f"{str(path)!r} holds no settings")
    return known
