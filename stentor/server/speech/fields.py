"""Fields of a request that its model uses. The others are noted, and the request is served without them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from stentor.models.info import ModelInfo
from stentor.server.ignored import Ignored
from stentor.server.schemas import ALIASES, Shared
from stentor.server.speech.languages import known_language

NOT_OPTIONS = {"user", "stream_options"}  # sent by OpenAI-style proxies, without a meaning here

Unused = Iterator[tuple[str, str]]
"""A field that is given, and why it is not used."""


def usable(body: Shared, spec: ModelInfo, ignored: Ignored) -> Shared:
    """The body without what its model cannot use. ApiError in a strict server."""
    dropped: dict[str, None] = {}
    for part in (_task(body, spec), _instructions(body, spec), _cloning(body, spec), _prompt(body, spec)):
        for name, why in part:
            ignored.field(name, why)
            dropped[name] = None
    for i, item in enumerate(body.references or []):
        for name in item.model_extra or {}:
            ignored.field(f"references[{i}].{name}", "is not known")
    return body.model_copy(update=dropped)


def _task(body: Shared, spec: ModelInfo) -> Unused:
    able = {"CustomVoice": bool(spec.voices), "VoiceDesign": spec.takes_instructions, "Base": spec.takes_reference}
    if body.task_type is not None and not able[body.task_type]:
        yield "task_type", f"this model can do: {', '.join(k for k, v in able.items() if v) or 'none of them'}"


def _instructions(body: Shared, spec: ModelInfo) -> Unused:
    for name in ("instructions", "instruct"):
        if getattr(body, name) and not spec.takes_instructions:
            yield name, "this model takes none"


def _cloning(body: Shared, spec: ModelInfo) -> Unused:
    for name in ("ref_audio", "ref_text", "references"):
        if getattr(body, name) and not spec.takes_reference:
            yield name, "this model has only its own voice"
    if body.ref_text and not body.ref_audio and spec.takes_reference and body.references is None:
        yield "ref_text", "needs ref_audio"
    if body.speaker_embedding is not None and not spec.speaker_size:
        yield "speaker_embedding", "this model takes none"


def _prompt(body: Shared, spec: ModelInfo) -> Unused:
    if body.prompt_audio is not None and not spec.takes_prompt:
        yield "prompt_audio", "this model takes none"
    if body.prompt_text and (body.prompt_audio is None or not spec.takes_prompt):
        yield "prompt_text", "needs prompt_audio" if spec.takes_prompt else "this model takes none"


def without_instructions(body: Shared, ignored: Ignored) -> Shared:
    """The body for a model that takes none beside audio that it continues."""
    for name in ("instructions", "instruct"):
        if getattr(body, name):
            ignored.field(name, "this model takes none beside audio with its text")
    return body.model_copy(update={"instructions": None, "instruct": None})


def language(body: Shared, spec: ModelInfo, ignored: Ignored) -> str:
    """The model's name of the language, or "auto"."""
    found = known_language(body.language, spec.languages)
    if found is None:
        known = f"known: auto, {', '.join(spec.languages)}" if spec.languages else "this model detects the language"
        ignored.field("language", known)
    return found or "auto"


def options(body: Shared, spec: ModelInfo, ignored: Ignored) -> dict[str, Any]:
    """The family's own options under any engine's name. The top level wins over extra_params and stage_params."""
    values: dict[str, Any] = {}
    for path, name, value in _given(body, spec):
        option = ALIASES.get(name, name)
        if value is None or name in NOT_OPTIONS:
            continue
        if option in spec.options:
            values[option] = value
        else:
            taken = ", ".join(sorted(spec.options))
            ignored.field(path + name, f"is not a parameter of this model; its own are {taken}")
    return values


def given_as(param: str, body: Shared, spec: ModelInfo) -> str:
    """The name under which a body gives an option of the family."""
    names = {ALIASES.get(name, name): path + name for path, name, value in _given(body, spec) if value is not None}
    return names.get(param, param)


def _given(body: Shared, spec: ModelInfo) -> Iterator[tuple[str, str, Any]]:
    """(where it stands if not at the top, name, value) of everything that may be an option. The last counts."""
    for stage, values in (body.stage_params or {}).items():
        yield from ((f"stage_params.{stage}.", k, v) for k, v in values.items())
    yield from (("", k, v) for k, v in (body.extra_params or {}).items())
    yield from (("", k, v) for k, v in (body.model_extra or {}).items())
    yield "", "max_new_tokens", body.max_new_tokens
    if "x_vector_only" in spec.options or not (body.ref_audio or body.references):  # else it drops the transcript
        yield "", "x_vector_only_mode", body.x_vector_only_mode or None
