"""Messages of a session of /v1/audio/speech/stream: what clients send, and what they get."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import Field, ValidationError, model_validator

from stentor.output.encode import CONTAINERS
from stentor.server.client_json import loads_with_halves, may_hold_halves
from stentor.server.errors import ApiError, from_pydantic, invalid
from stentor.server.limits import LIMITS
from stentor.server.schemas import Body, Shared
from stentor.server.ws.socket import SocketOutbox, check_size, read_json


class Configure(Shared):
    """session.config: the parameters of POST /v1/audio/speech other than its text, or an object `session` of them."""

    type: Literal["session.config"] = "session.config"
    stream_audio: bool | None = Field(
        None,
        description="false: each segment as one whole file, when it is finished. Default: true for pcm, ulaw and alaw",
    )
    word_timestamps: bool = Field(False, description="audio.chunk events as vLLM-Omni has, and words in audio.done")
    encoding: Literal["binary", "base64"] = Field("binary", description="base64: audio.chunk events")

    def streams(self, format: str) -> bool:
        """Whether a segment's audio is sent while it is made. Joined frames of a plain format are a file."""
        return CONTAINERS[format].plain if self.stream_audio is None else self.stream_audio

    @model_validator(mode="before")
    @classmethod
    def _unfolded(cls, value: Any) -> Any:
        nested = value.get("session") if isinstance(value, dict) else None
        if not isinstance(nested, dict):
            return value
        return {**{k: v for k, v in value.items() if k != "session"}, **nested, "type": "session.config"}


class Append(Body):
    """input.text: more text. With a sequence number, it is acknowledged. It may end with half a surrogate pair, whose
    other half begins the next one."""

    type: Literal["input.text"]
    text: str
    sequence: int | None = None


class Commit(Body):
    """input.commit: speak the text so far. The utterance continues."""

    type: Literal["input.commit"]
    commit_id: str | None = Field(None, max_length=LIMITS.name_chars, description="input.committed has it again")


class Done(Body):
    """input.done: the utterance's text is complete."""

    type: Literal["input.done"]


class Cancel(Body):
    """response.cancel: stop now. `played_ms`: how much of the utterance the client has played, if it knows."""

    type: Literal["response.cancel"]
    played_ms: float | None = Field(None, ge=0)


class Close(Body):
    """session.close: close the connection when everything written has been spoken."""

    type: Literal["session.close"]


Message = Configure | Append | Commit | Done | Cancel | Close
KINDS: Mapping[str, type[Configure | Append | Commit | Done | Cancel | Close]] = {
    "session.config": Configure,
    "input.text": Append,
    "input.commit": Commit,
    "input.done": Done,
    "response.cancel": Cancel,
    "session.close": Close,
}


def parse(message: Mapping[str, Any]) -> Message:
    """Parse a WebSocket frame. ApiError says what is wrong with it. CloseSession 1009: it is too large."""
    value = read_json(message)
    kind = value.get("type") if isinstance(value, dict) else None
    if not isinstance(kind, str) or kind not in KINDS:
        raise invalid("type", f"must be one of {', '.join(KINDS)}", "invalid_message")
    if kind != "session.config":
        check_size(message, kind)
    try:
        parsed = KINDS[kind].model_validate(value)
    except ValidationError as e:
        raise from_pydantic(e) from None
    if isinstance(parsed, Append) and may_hold_halves(message["text"]):  # the other half may be in the next message
        return parsed.model_copy(update={"text": loads_with_halves(message["text"])["text"]})
    return parsed


class MessageSender(SocketOutbox):
    """Events and audio on their way to a client."""

    def event(self, name: str, **body: Any) -> None:
        """Queue an event."""
        self.json({"type": name, **body})

    def error(self, error: ApiError, **more: Any) -> None:
        """Queue an `error` event: OpenAI's envelope, and its fields beside it for vLLM-Omni's and nari's clients."""
        detail = error.body["error"]
        flat = {k: v for k, v in detail.items() if k != "type"}
        self.event("error", **flat, status=error.status, error=detail, **more)

    def audio(self, data: bytes) -> None:
        """Queue audio as a binary frame."""
        self.put(data, audio=True)

    def audio_chunk(self, **body: Any) -> None:
        """Queue audio as an event."""
        self.json({"type": "audio.chunk", **body}, audio=True)
