"""Messages of a WebSocket session: reading and parsing what clients send, and a bounded queue of what they get."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Mapping, MutableMapping
from typing import Any, Literal

import orjson
from pydantic import Field, ValidationError, model_validator
from starlette.websockets import WebSocket

from stentor.server.backpressure import SlowClient
from stentor.server.errors import ApiError, from_pydantic
from stentor.server.json_sse import json_bytes
from stentor.server.limits import LIMITS
from stentor.server.schemas import Body, Shared

MAX_CONFIG_BYTES = LIMITS.ws_config_mb << 20  # of any message. A replica's uvicorn, which Ray starts, takes more
MAX_AHEAD_BYTES = LIMITS.ws_ahead_kib << 10  # of what is read during a session.config
MAX_MESSAGE_BYTES = LIMITS.ws_message_kib << 10  # of a message other than session.config


class CloseSession(Exception):
    """Ends the session with a close code (RFC 6455) and, if there is one, an error event before it."""

    def __init__(self, code: int, error: ApiError | None = None, reason: str = "") -> None:
        super().__init__(reason)
        self.code, self.error = code, error
        self.reason = reason or ("" if error is None else error.code or error.message)


class Configure(Shared):
    """session.config: the parameters of POST /v1/audio/speech other than its text, or an object `session` of them."""

    type: Literal["session.config"] = "session.config"
    stream_audio: bool | None = Field(
        None,
        description="false: each segment as one whole file, when it is finished. Default: true for pcm, else false",
    )
    word_timestamps: bool = Field(False, description="audio.chunk events as vLLM-Omni has, and words in audio.done")
    encoding: Literal["binary", "base64"] = Field("binary", description="base64: audio.chunk events")

    def streams(self, format: str) -> bool:
        """Whether a segment's audio is sent while it is made. Joined frames of pcm are a file as they are."""
        return format == "pcm" if self.stream_audio is None else self.stream_audio

    @model_validator(mode="before")
    @classmethod
    def _unfolded(cls, value: Any) -> Any:
        nested = value.get("session") if isinstance(value, dict) else None
        if not isinstance(nested, dict):
            return value
        return {**{k: v for k, v in value.items() if k != "session"}, **nested, "type": "session.config"}


class Append(Body):
    """input.text: more text. With a sequence number, it is acknowledged."""

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
    text = message.get("text")
    if text is None:
        raise ApiError(400, "messages must be JSON in text frames", code="invalid_message")
    if len(text) > MAX_CONFIG_BYTES:
        raise CloseSession(
            1009, ApiError(413, f"the message is larger than {LIMITS.ws_config_mb} MiB", code="message_too_large")
        )
    try:
        value = orjson.loads(text)
    except orjson.JSONDecodeError:
        raise ApiError(400, "the message is not valid JSON", code="invalid_json") from None
    kind = value.get("type") if isinstance(value, dict) else None
    if not isinstance(kind, str) or kind not in KINDS:
        raise ApiError(400, f"type: must be one of {', '.join(KINDS)}", param="type", code="invalid_message")
    if kind != "session.config" and len(text) > MAX_MESSAGE_BYTES:
        raise CloseSession(
            1009, ApiError(413, f"{kind} is larger than {MAX_MESSAGE_BYTES >> 10} KiB", code="message_too_large")
        )
    try:
        return KINDS[kind].model_validate(value)
    except ValidationError as e:
        raise from_pydantic(e) from None


class MessageReader:
    """Gives what a client sends in order. Some of it may be read before it is wanted."""

    def __init__(self, ws: WebSocket) -> None:
        self.ws = ws
        self._ahead: deque[MutableMapping[str, Any]] = deque()

    async def next(self) -> MutableMapping[str, Any]:
        """The next message of ASGI."""
        return self._ahead.popleft() if self._ahead else await self.ws.receive()

    async def ahead(self) -> MutableMapping[str, Any]:
        """Read a message, such as that the client has left, and keep it for `next`. Waits for ever while
        `MAX_AHEAD_BYTES` are kept."""
        if sum(max(1024, len(m.get("text") or m.get("bytes") or ())) for m in self._ahead) >= MAX_AHEAD_BYTES:
            await asyncio.Event().wait()
        message = await self.ws.receive()
        self._ahead.append(message)
        return message


class MessageSender:
    """Queues frames in order and sends them. Adding one raises SlowClient when the queue exceeds `max_bytes`."""

    def __init__(self, ws: WebSocket, max_bytes: int) -> None:
        self.ws, self.max_bytes = ws, max_bytes
        self.size = 0
        self._frames: deque[tuple[str | bytes, bool]] = deque()  # frame, whether it is audio
        self._ready = asyncio.Event()

    def event(self, name: str, **body: Any) -> None:
        """Queue an event."""
        self._put(json_bytes({"type": name, **body}).decode(), audio=False)

    def error(self, error: ApiError, **more: Any) -> None:
        """Queue an `error` event: OpenAI's envelope, and its fields beside it for vLLM-Omni's and nari's clients."""
        detail = error.body["error"]
        flat = {k: v for k, v in detail.items() if k != "type"}
        self.event("error", **flat, status=error.status, error=detail, **more)

    def audio(self, data: bytes) -> None:
        """Queue audio as a binary frame."""
        self._put(data, audio=True)

    def audio_chunk(self, **body: Any) -> None:
        """Queue audio as an event."""
        self._put(json_bytes({"type": "audio.chunk", **body}).decode(), audio=True)

    def drop_audio(self) -> None:
        """Drop audio that has not been sent. A frame that is being sent still counts."""
        self.size -= sum(len(f) for f, audio in self._frames if audio)
        self._frames = deque(f for f in self._frames if not f[1])

    def _put(self, frame: str | bytes, audio: bool) -> None:
        if self.size and self.size + len(frame) > self.max_bytes:
            raise SlowClient
        self.size += len(frame)
        self._frames.append((frame, audio))
        self._ready.set()

    async def run(self) -> None:
        """Send frames until cancelled."""
        while True:
            await self.flush()
            self._ready.clear()
            await self._ready.wait()

    async def flush(self) -> None:
        """Send all queued frames."""
        while self._frames:
            frame = self._frames.popleft()[0]
            try:
                if isinstance(frame, bytes):
                    await self.ws.send_bytes(frame)
                else:
                    await self.ws.send_text(frame)
            finally:
                self.size -= len(frame)
