"""Turns of a request: one text in one voice, a text with marks, or a script."""

from __future__ import annotations

from collections.abc import Sequence

from stentor.server.errors import ApiError, invalid
from stentor.server.ignored import Ignored
from stentor.server.schemas import Shared, SpeechBody
from stentor.speech.script import Turn, marked, scripted

OF_A_VOICE = (
    "voice",
    "speaker",
    "ref_audio",
    "ref_text",
    "references",
    "speaker_embedding",
    "prompt_audio",
    "prompt_text",
)
"""Fields that say which voice speaks."""


def turns_of(body: SpeechBody) -> list[Turn]:
    """The turns of a body. ApiError or InvalidRequest names the field that is wrong."""
    if body.script is None:
        if body.input is None:
            raise invalid("input", "is required")
        return marked(body.input)
    if body.input is not None:
        raise invalid("script", "stands for input: give one of them")
    return scripted([{"voice": t.voice, "text": t.text, "pause": t.pause} for t in body.script])


def note_unused(body: SpeechBody, turns: Sequence[Turn], ignored: Ignored) -> None:
    """Name what of a dialogue is not used: fields of turns that nobody knows, and the request's own voice where each
    turn has another. ApiError in a strict server."""
    for i, turn in enumerate(body.script or []):
        for name in turn.model_extra or {}:
            ignored.field(f"script[{i}].{name}", "is not known")
    if all(turn.voice is not None for turn in turns):
        for name in OF_A_VOICE:
            if getattr(body, name):
                ignored.field(name, "every turn has its own voice")


def in_voice(body: Shared, voice: str | None) -> Shared:
    """The body for turns in a voice of that name. None: in its own."""
    if voice is None:
        return body
    return body.model_copy(update={**dict.fromkeys(OF_A_VOICE), "voice": voice})


def at_turn(error: ApiError, turn: Turn) -> ApiError:
    """An error of the voice of a turn, which names the field that the turn has it in."""
    if error.param != "voice" or turn.voice is None:
        return error
    name = "input" if turn.field is None else turn.named("voice")
    return invalid(name, error.message.removeprefix("voice: "), error.code)
