"""Messages between the API process and an engine, as MessagePack, with audio as raw bytes behind
them.

A message is a list of structs, and the bytes of arrays that they announce, one after another.
The API process numbers requests. Calls have a number, which `Result` repeats. On
a stream socket each message has the sizes of both in front, and ends at a multiple of eight bytes,
so that arrays are views of what was received.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from typing import Any, Literal

import msgspec
import numpy as np

from stentor.engine.health import Health
from stentor.errors import (
    CheckpointError,
    EngineError,
    InvalidRequest,
    ModelNotFound,
    Overloaded,
    StentorError,
)
from stentor.models.info import Adapter, ModelInfo

API_BITS = 40
"""Ids and numbers of calls count up to 2 ** API_BITS in each API process. What is above says which
process it is."""


class _Message(msgspec.Struct, tag=True, array_like=True): ...


# -- from the API process --


class SentRecording(_Message):
    """Recording by content. `size` float32 samples follow the message, none if the engine has had
    them."""

    key: str
    rate: int
    source: str
    cacheable: bool
    size: int


class SentReference(_Message):
    """Reference audio of a request: which of its recordings, and the transcript if known."""

    recording: int
    text: str | None


class Submit(_Message):
    """A checked request. With `check_only` its prompt is made and nothing is queued. request_id: of
    the client's request, for the log. traced: its first audio comes with moments."""

    id: int
    text: str
    voice: str | None
    language: str
    instructions: str | None
    recordings: list[SentRecording]
    references: list[SentReference]
    prompt: SentReference | None
    speaker_embedding: bytes | None
    live: bool
    seed: int
    options: dict[str, float | int | bool | None]
    adapter: int | None
    streaming: bool
    place: str
    check_only: bool
    request_id: str = ""
    traced: bool = False
    speed: float = 1.0


class Append(_Message):
    """More text of a live request."""

    id: int
    text: str
    last: bool


class Cancel(_Message):
    """End a request. The engine forgets it."""

    id: int


class Connect(_Message):
    """Serve another API process, the high bits of whose ids are `api`. Its socket comes with the
    message."""

    api: int


class Speakable(_Message):
    """Request: which of these texts have anything that the model can speak."""

    call: int
    texts: list[str]


class LoadLora(_Message):
    call: int
    name: str
    path: str


class UnloadLora(_Message):
    call: int
    name: str


class ReleaseLora(_Message):
    """No request of this API process will name the unloaded adapter in this slot."""

    api: int
    number: int


class AskHealth(_Message):
    call: int


class Stop(_Message):
    """End the process."""


Command = (
    Submit
    | Append
    | Cancel
    | Connect
    | Speakable
    | LoadLora
    | UnloadLora
    | ReleaseLora
    | AskHealth
    | Stop
)


# -- from the engine --


Kind = Literal["invalid", "overloaded", "not_found", "checkpoint", "engine"]


class Error(_Message):
    """An exception of stentor: its class, and the field that is wrong."""

    kind: Kind
    message: str
    param: str = ""


class Ready(_Message):
    """The model is loaded and warmed up. `frame`: shape and dtype of one frame. `attended`: numbers
    of a frame that show its place in the text. `lost`: adapters that could not be loaded again."""

    info: ModelInfo
    frame: tuple[tuple[int, ...], str]
    attended: int
    adapters: list[Adapter]
    lora_options: dict[str, Any]
    lost: list[str]


class Broken(_Message):
    """The model could not be loaded, or the engine has stopped."""

    error: Error


class Accepted(_Message):
    """A request is queued. `words`: of each word of its text, where it stands in the prompt
    (Prompt.words)."""

    id: int
    tokens: int
    audio_tokens: int
    runaway_frames: int | None
    words: list[tuple[int, int]]


class Unspeakable(_Message):
    """There is nothing in a request's text that the model can speak."""

    id: int


class Resend(_Message):
    """The engine does not have a recording any more: submit the request again with all of them."""

    id: int


class Audio(_Message):
    """Audio of a request. `samples` float32, `frames` frames and float32 [frames, attended] follow.
    `tokens` and `runaway_frames` are those of `Accepted` now, which grow with live text. moments:
    with the first audio of a traced request, when its prompt was made, it was admitted and
    prefilled, had frame 0, and had audio."""

    id: int
    samples: int
    frames: int
    attended: bool
    finish: str | None
    tokens: int
    runaway_frames: int | None
    moments: list[float] = []


class Ended(_Message):
    """A request has failed."""

    id: int
    error: Error


class Result(_Message):
    """Result of a call."""

    call: int
    error: Error | None = None
    speakable: list[bool] = []


class Beat(_Message):
    """Sent every half second, and for `AskHealth` before its result."""

    health: Health


class Adapters(_Message):
    """The adapters that are loaded now."""

    loaded: list[Adapter]


Event = Ready | Broken | Accepted | Unspeakable | Resend | Audio | Ended | Result | Beat | Adapters

KINDS = {bool: "bool", int: "int", float: "float"}


def _name_kind(value: object) -> str:
    """The name of an option's kind, the only value that MessagePack does not know."""
    if isinstance(value, type) and value in KINDS:
        return KINDS[value]
    raise NotImplementedError(f"{type(value).__name__} has no encoding")


def _kind(wanted: type, value: str) -> type:
    return next(kind for kind, name in KINDS.items() if name == value)


_encoder = msgspec.msgpack.Encoder(enc_hook=_name_kind)
_commands = msgspec.msgpack.Decoder(list[Command])
_events = msgspec.msgpack.Decoder(list[Event], dec_hook=_kind)


def encode(
    messages: Sequence[Command] | Sequence[Event], arrays: Sequence[np.ndarray]
) -> list[Buffer]:
    """The messages, and each array that they announce. No contiguous array is copied."""
    return [_encoder.encode(messages), *(_bytes(a) for a in arrays if a.size)]


def _bytes(a: np.ndarray) -> memoryview:
    return np.ascontiguousarray(a).reshape(-1).view(np.uint8).data


def commands(parts: Sequence[bytes | memoryview]) -> tuple[list[Command], memoryview]:
    """Decode what `encode` gave for commands."""
    return _commands.decode(parts[0]), memoryview(parts[1] if len(parts) > 1 else b"")


def events(parts: Sequence[bytes | memoryview]) -> tuple[list[Event], memoryview]:
    """Decode what `encode` gave for events."""
    return _events.decode(parts[0]), memoryview(parts[1] if len(parts) > 1 else b"")


Buffer = bytes | bytearray | memoryview
SIZES = struct.Struct("<II")  # of the arrays' bytes and of the messages


def frame(parts: Sequence[Buffer]) -> list[Buffer]:
    """Frame the output of `encode`: buffers that follow one another on a stream socket."""
    head, *arrays = parts
    size = sum(map(len, arrays))
    padding = bytes(-(len(head) + size) % 8)
    return [SIZES.pack(size, len(head)), *arrays, head, padding]


def pack(parts: Sequence[Buffer]) -> bytes:
    """Frame the output of `encode` as one piece of memory."""
    return b"".join(frame(parts))


class Unpacker:
    """Cuts the bytes of a stream socket into messages, in time that is linear in their bytes."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self._held = 0  # bytes of them
        self._needed = SIZES.size  # before there is anything to cut

    def feed(self, data: bytes) -> Iterator[tuple[memoryview, memoryview]]:
        """Yield (messages, arrays) of each message that `data` completes, as `commands` and
        `events` take them."""
        self._parts.append(data)
        self._held += len(data)
        if self._held < self._needed:
            return
        if len(self._parts) == 1:
            joined = self._parts[0]
        else:
            joined = b"".join(self._parts)
        view = memoryview(joined)
        at = 0
        while (end := self._end(view, at)) <= len(view):
            body, head = SIZES.unpack_from(view, at)
            middle = at + SIZES.size + body
            yield view[middle : middle + head], view[at + SIZES.size : middle]
            at = end
        self._needed = end - at
        self._parts = [joined[at:]]
        self._held = len(joined) - at

    @staticmethod
    def _end(view: memoryview, at: int) -> int:
        """Where the message at `at` ends, or where enough of it to know that would."""
        if at + SIZES.size > len(view):
            return at + SIZES.size
        body, head = SIZES.unpack_from(view, at)
        return at + SIZES.size + int(body + head + 7) // 8 * 8


class Reader:
    """Takes arrays from the bytes behind a message, in their order."""

    def __init__(self, data: memoryview) -> None:
        self._data = data
        self._at = 0

    def take(self, count: int, dtype: np.dtype[Any], shape: tuple[int, ...] = ()) -> np.ndarray:
        """[count, *shape], a view."""
        size = count * int(np.prod(shape, dtype=int))
        if size:
            array = np.frombuffer(self._data, dtype, size, self._at)
        else:
            array = np.zeros(0, dtype)
        self._at += array.nbytes
        return array.reshape(count, *shape)


_CLASSES: dict[Kind, type[StentorError]] = {
    "overloaded": Overloaded,
    "not_found": ModelNotFound,
    "checkpoint": CheckpointError,
    "engine": EngineError,
}


def error(e: BaseException) -> Error:
    """The message for an exception. What stentor did not raise on purpose is an error of the
    engine."""
    if isinstance(e, InvalidRequest):
        return Error("invalid", e.message, e.param)
    kinds: Iterator[Kind] = (
        kind for kind, error_class in _CLASSES.items() if isinstance(e, error_class)
    )
    return Error(next(kinds, "engine"), str(e))


def exception(e: Error) -> StentorError:
    """The exception of a message."""
    if e.kind == "invalid":
        return InvalidRequest(e.param, e.message)
    return _CLASSES[e.kind](e.message)
