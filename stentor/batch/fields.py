"""Fields of a line of the input. Checked as far as that is possible without a model."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from stentor.errors import InvalidRequest
from stentor.flags import check_speed
from stentor.speech.client_names import is_usual_model
from stentor.text.cleanup import ALL, steps
from stentor.text.sentences import GRANULARITIES

Values = dict[str, Any]

ID = re.compile(r"[A-Za-z0-9_](?:[A-Za-z0-9._-]{0,126}[A-Za-z0-9_-])?")


def _strings(value: object) -> bool:
    return isinstance(value, str) or (
        isinstance(value, list) and all(isinstance(v, str) for v in value) and value != []
    )


def _of(*types: type) -> Callable[[object], bool]:
    """Whether a value has one of these types. true and false are no numbers."""
    return lambda value: isinstance(value, types) and (bool in types or not isinstance(value, bool))


Kind = tuple[Callable[[object], bool], str]

_STRING: Kind = (_of(str), "a string")
_STRINGS: Kind = (_strings, "a string or a list of strings")
_WHOLE: Kind = (_of(int), "a whole number")
_NUMBER: Kind = (_of(int, float), "a number")
_OPTION: Kind = (_of(int, float, bool), "a number, true or false")

FIELDS: Mapping[str, Kind] = {
    "id": (_of(str, int), "a string or a whole number"),
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
    "speaker_embedding": (
        lambda v: isinstance(v, list) and all(map(_NUMBER[0], v)),
        "a list of numbers",
    ),
    "seed": _WHOLE,
    "speed": _NUMBER,
    "split_granularity": _STRING,
    "cleanup": _STRING,
    "word_timestamps": (_of(bool), "true or false"),
    "retries": _WHOLE,
}
"""Fields that every model knows, and what they must be. Others are options of the model: numbers
and booleans."""

REPLACED: Mapping[str, tuple[str, ...]] = {
    "text": ("text_file",),
    "text_file": ("text",),
    "reference": ("reference_text", "speaker_embedding"),
    "prompt": ("prompt_text",),
    "speaker_embedding": ("reference", "reference_text"),
}
"""A line that says the first does not take the others from the defaults of the run."""


def check_id(value: object, dots: bool) -> str:
    """Check an id, which becomes the name of a file. dots: whether it may contain any. Raises
    InvalidRequest."""
    if not FIELDS["id"][0](value):
        raise InvalidRequest("id", f"must be {FIELDS['id'][1]}, got {type(value).__name__}")
    id = str(value)
    if not ID.fullmatch(id):
        allowed = "1 to 128 of A-Z a-z 0-9 . _ -, neither the first nor the last a dot, nor the first a hyphen"
        raise InvalidRequest("id", f"{id[:200]!r} is no file name; it must be {allowed}")
    if "." in id and not dots:
        raise InvalidRequest(
            "id", f"{id!r} has a dot, at which WebDataset ends the name of a sample"
        )
    return id


def merged(line: Mapping[str, Any], defaults: Mapping[str, Any]) -> Values:
    """Merge a line's fields over the defaults of the run. A field that is None counts as absent.
    InvalidRequest names a wrong field."""
    values = {name: value for name, value in line.items() if value is not None}
    for name, value in values.items():
        _check_kind(name, value)
    hidden = {name for field, others in REPLACED.items() if field in values for name in others}
    fields = {name: value for name, value in defaults.items() if name not in hidden} | values
    _check_together(fields)
    return fields


def _check_kind(name: str, value: object) -> None:
    accepts, words = FIELDS.get(name, _OPTION)
    if accepts(value):
        return
    if name in FIELDS:
        raise InvalidRequest(name, f"must be {words}, got {type(value).__name__}")
    names = ", ".join(FIELDS)
    got = type(value).__name__
    raise InvalidRequest(
        name,
        f"is not a known field; known: {names}, and options of the model, each {words}, and not {got}",
    )


def _check_together(fields: Values) -> None:
    if ("text" in fields) == ("text_file" in fields):
        raise InvalidRequest(
            "text", "give text or text_file" + (", not both" if "text" in fields else "")
        )
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
    if isinstance(value, str):
        return [value]
    return value


# ---- lines of OpenAI's batch files, `{"custom_id", "method", "url", "body"}`

URL = "/v1/audio/speech"
NAMES = {"input": "text", "custom_id": "id"}
"""Other names of fields, in any line."""
FORMATS = {"pcm": "raw"}  # where `--format` has another name


def unfolded(
    line: Mapping[str, Any], model: str | None, format: str
) -> tuple[Values, dict[str, str]]:
    """Return the fields of a line under their usual names, and what the line calls each that it
    names otherwise.

    model, format: of the run. A body may name these and no others. InvalidRequest names a wrong
    field.
    """
    values = {name: value for name, value in line.items() if value is not None}
    if "body" not in values:
        return _renamed(values, "")
    body = values.pop("body")
    if not isinstance(body, dict):
        raise InvalidRequest("body", f"must be an object, got {type(body).__name__}")
    _check_envelope(values)
    fields = {name: value for name, value in body.items() if value is not None}
    _check_run(fields.pop("model", None), fields.pop("response_format", None), model, format)
    if isinstance(fields.get("voice"), dict):
        fields["voice"] = fields["voice"].get("id")
    renamed, names = _renamed(fields, "body.")
    if "id" in renamed:
        raise InvalidRequest("body.id", "is not known: custom_id names the item")
    return {**renamed, "id": values["custom_id"]}, {**names, "id": "custom_id"}


def _renamed(fields: Values, where: str) -> tuple[Values, dict[str, str]]:
    for other, name in NAMES.items():
        if other in fields and name in fields:
            raise InvalidRequest(where + other, f"is another name for {name}: give one of them")
    renamed = {NAMES.get(name, name): value for name, value in fields.items()}
    return renamed, {NAMES.get(name, name): where + name for name in fields}


def _check_envelope(line: Values) -> None:
    """Check what stands beside a body."""
    if "custom_id" not in line:
        raise InvalidRequest("custom_id", "is needed with body")
    for name, expected in (("method", "POST"), ("url", URL)):
        if line.get(name, expected) != expected:
            raise InvalidRequest(name, f"must be {expected}, got {str(line[name])[:80]!r}")
    for name in line.keys() - {"custom_id", "method", "url"}:
        raise InvalidRequest(name, "is not known with body, which holds the fields of the request")


def _check_run(model_name: object, response_format: object, model: str | None, format: str) -> None:
    """A run has one model and one format."""
    if (
        model_name is not None
        and model_name != model
        and not (isinstance(model_name, str) and is_usual_model(model_name))
    ):
        speaks = model or "the built-in voice"
        raise InvalidRequest(
            "body.model",
            f"is {str(model_name)[:80]!r}, and this run speaks with {speaks} (--model)",
        )
    if response_format is not None and FORMATS.get(str(response_format), response_format) != format:
        raise InvalidRequest(
            "body.response_format",
            f"is {str(response_format)[:80]!r}, and this run writes {format} (--format)",
        )
