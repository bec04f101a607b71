"""Lines of OpenAI's batch files, `{"custom_id", "method", "url", "body"}`, as the fields of an item."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from stentor.client_names import is_usual_model
from stentor.errors import InvalidRequest

Values = dict[str, Any]

URL = "/v1/audio/speech"
NAMES = {"input": "text", "custom_id": "id"}
"""Other names of fields, in any line."""
FORMATS = {"pcm": "raw"}  # where `--format` has another name


def unfolded(line: Mapping[str, Any], model: str | None, format: str) -> tuple[Values, dict[str, str]]:
    """Return the fields of a line under their usual names, and what the line calls each that it names otherwise.

    model, format: of the run. A body may name them, and no others. InvalidRequest says what of the line is wrong.
    """
    given = {name: value for name, value in line.items() if value is not None}
    if "body" not in given:
        return _renamed(given, "")
    body = given.pop("body")
    if not isinstance(body, dict):
        raise InvalidRequest("body", f"must be an object, got {type(body).__name__}")
    _check_envelope(given)
    fields = {name: value for name, value in body.items() if value is not None}
    _check_run(fields.pop("model", None), fields.pop("response_format", None), model, format)
    if isinstance(fields.get("voice"), dict):
        fields["voice"] = fields["voice"].get("id")
    found, names = _renamed(fields, "body.")
    if "id" in found:
        raise InvalidRequest("body.id", "is not known: custom_id names the item")
    return {**found, "id": given["custom_id"]}, {**names, "id": "custom_id"}


def _renamed(fields: Values, where: str) -> tuple[Values, dict[str, str]]:
    for other, name in NAMES.items():
        if other in fields and name in fields:
            raise InvalidRequest(where + other, f"is another name for {name}: give one of them")
    found = {NAMES.get(name, name): value for name, value in fields.items()}
    return found, {NAMES.get(name, name): where + name for name in fields}


def _check_envelope(line: Values) -> None:
    """Check what stands beside a body."""
    if "custom_id" not in line:
        raise InvalidRequest("custom_id", "is needed with body")
    for name, wanted in (("method", "POST"), ("url", URL)):
        if line.get(name, wanted) != wanted:
            raise InvalidRequest(name, f"must be {wanted}, got {str(line[name])[:80]!r}")
    for name in line.keys() - {"custom_id", "method", "url"}:
        raise InvalidRequest(name, "is not known with body, which holds the fields of the request")


def _check_run(named: object, response_format: object, model: str | None, format: str) -> None:
    """A run has one model and one format."""
    if named is not None and named != model and not (isinstance(named, str) and is_usual_model(named)):
        speaks = model or "the built-in voice"
        raise InvalidRequest("body.model", f"is {str(named)[:80]!r}, and this run speaks with {speaks} (--model)")
    if response_format is not None and FORMATS.get(str(response_format), response_format) != format:
        raise InvalidRequest(
            "body.response_format", f"is {str(response_format)[:80]!r}, and this run writes {format} (--format)"
        )
