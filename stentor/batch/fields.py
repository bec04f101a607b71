"""Fields of a line of the input. Checked as far as that is possible without a model."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from stentor.errors import InvalidRequest
from stentor.flags import check_speed
from stentor.text.cleanup import ALL, steps
from stentor.text.sentences import GRANULARITIES

Values = dict[str, Any]

ID = re.compile(r"[A-Za-z0-9_](?:[A-Za-z0-9._-]{0,126}[A-Za-z0-9_-])?")


def _strings(value: object) -> bool:
    return isinstance(value, str) or (
        isinstance(value, list) and all(isinstance(v, str) for v in value) and value != []
    )


def _number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _string(value: object) -> bool:
    return isinstance(value, str)


Kind = tuple[Callable[[object], bool], str]

_STRING: Kind = (_string, "a string")
_STRINGS: Kind = (_strings, "a string or a list of strings")
_WHOLE: Kind = (_whole, "a whole number")
_OPTION: Kind = (lambda v: _number(v) or isinstance(v, bool), "a number, true or false")

FIELDS: Mapping[str, Kind] = {
    "id": (lambda v: _string(v) or _whole(v), "a string or a whole number"),
    "text": _STRING,
    "text_file": _STRING,
    "voice": _STRING,
    "language": _STRING,
    "instructions": _STRING,
    "reference": _STRINGS,
    "reference_text": _STRINGS,
    "prompt": _STRING,
    "prompt_text": _STRING,
    "lora": _STRING,
    "speaker_embedding": (lambda v: isinstance(v, list) and all(map(_number, v)), "a list of numbers"),
    "seed": _WHOLE,
    "speed": (_number, "a number"),
    "split_granularity": _STRING,
    "cleanup": _STRING,
    "word_timestamps": (lambda v: isinstance(v, bool), "true or false"),
    "retries": _WHOLE,
}
"""Fields that every model knows, and what they must be. Others are options of the model: numbers and booleans."""

REPLACED: Mapping[str, tuple[str, ...]] = {
    "text": ("text_file",),
    "text_file": ("text",),
    "reference": ("reference_text", "speaker_embedding"),
    "prompt": ("prompt_text",),
    "speaker_embedding": ("reference", "reference_text"),
}
"""A line that says the first does not take the others from the defaults of the run."""


def check_id(value: object, dots: bool) -> str:
    """An id, which becomes the name of a file. dots: whether it may have any. InvalidRequest says what is allowed."""
    if not FIELDS["id"][0](value):
        raise InvalidRequest("id", f"must be {FIELDS['id'][1]}, got {type(value).__name__}")
    id = str(value)
    if not ID.fullmatch(id):
        allowed = "1 to 128 of A-Z a-z 0-9 . _ -, neither the first nor the last a dot, nor the first a hyphen"
        raise InvalidRequest("id", f"{id[:200]!r} is no file name; it must be {allowed}")
    if "." in id and not dots:
        raise InvalidRequest("id", f"{id!r} has a dot, at which WebDataset ends the name of a sample")
    return id


def merged(given: Mapping[str, Any], defaults: Mapping[str, Any]) -> Values:
    """A line's fields over the defaults of the run. None is not given. InvalidRequest names the field that is wrong."""
    own = {name: value for name, value in given.items() if value is not None}
    for name, value in own.items():
        _check_kind(name, value)
    hidden = {name for said, others in REPLACED.items() if said in own for name in others}
    fields = {name: value for name, value in defaults.items() if name not in hidden} | own
    _check_together(fields)
    return fields


def _check_kind(name: str, value: object) -> None:
    accepts, words = FIELDS.get(name, _OPTION)
    if accepts(value):
        return
    if name in FIELDS:
        raise InvalidRequest(name, f"must be {words}, got {type(value).__name__}")
    known, got = ", ".join(FIELDS), type(value).__name__
    raise InvalidRequest(
        name, f"is not a known field; known: {known}, and options of the model, each {words}, and not {got}"
    )


def _check_together(fields: Values) -> None:
    if ("text" in fields) == ("text_file" in fields):
        raise InvalidRequest("text", "give text or text_file" + (", not both" if "text" in fields else ""))
    if "text" in fields and not fields["text"].strip():
        raise InvalidRequest("text", "must not be empty")
    for audio in ("reference", "prompt"):
        if f"{audio}_text" in fields and audio not in fields:
            raise InvalidRequest(f"{audio}_text", f"needs {audio}")
    texts = fields.get("reference_text")
    if texts is not None and len(listed(texts)) != len(listed(fields["reference"])):
        raise InvalidRequest("reference_text", "must have one text for each reference")
    if "speed" in fields:
        check_speed(fields["speed"])
    if fields.get("split_granularity", "auto") not in GRANULARITIES:
        raise InvalidRequest("split_granularity", f"must be one of {', '.join(GRANULARITIES)}")
    steps(fields.get("cleanup", ALL))


def listed(value: str | list[str]) -> list[str]:
    """A field that may be one string or several, as several."""
    return [value] if isinstance(value, str) else value
