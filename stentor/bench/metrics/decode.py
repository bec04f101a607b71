"""Decode a reply's bytes and arrival times to samples: framing (raw body, SSE, WebSocket), then
container (PCM, WAV).

The sample rate comes from the answer. It is assumed only if the answer does not state it. The
result keeps its source.
"""

import base64
import json
import re
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from stentor.bench.load.record import (
    Arrival,
    ArrivalKind,
    Failure,
    Floats,
    Framing,
    Ints,
    Reply,
    Samples,
)

_RATE_HEADERS = ("x-sample-rate", "x-audio-sample-rate")
_CHANNEL_HEADERS = ("x-channels", "x-audio-channels")
_PCM_TYPES = (
    "audio/pcm",
    "audio/l16",
    "audio/wav",
    "audio/x-wav",
    "audio/wave",
    "application/octet-stream",
    "",
)
_OPEN_SIZES = (0, 0x7FFFFFFF, 0xFFFFFFFF)


class AudioFormat(NamedTuple):
    """How samples are laid out in the bytes."""

    rate: int
    channels: int
    dtype: Literal["<i2", "<i4", "<f4", "|u1"]

    @property
    def frame_bytes(self) -> int:
        return self.channels * int(np.dtype(self.dtype).itemsize)


@dataclass(frozen=True)
class DecodedAudio:
    """The audio of one reply. Shapes: samples [n], times and counts [chunks that brought
    samples]."""

    samples: Samples
    rate: int
    rate_source: str
    times: Floats
    counts: Ints
    audio: bytes
    """The sample bytes as received, without container: what determinism is judged by."""
    first_payload: float | None = None
    """Arrival of the first non-empty piece of payload, be it a container header."""
    failure: Failure | None = None
    input_tokens: int | None = None
    output_tokens: int | None = None
    notes: tuple[str, ...] = ()


@dataclass
class _Payload:
    """Audio bytes by arrival, with what the framing declared about them."""

    pieces: list[tuple[float, bytes]] = field(default_factory=list)
    rate: int | None = None
    usage: Mapping[str, Any] = field(default_factory=dict)
    failure: Failure | None = None


def decode(reply: Reply, body: bytes, framing: Framing, assumed_rate: int) -> DecodedAudio:
    """Decode a reply. Never raises for what a server sent: a bad answer is a `DecodedAudio` with a
    failure."""
    if reply.failure is None and reply.status is not None and not 200 <= reply.status < 300:
        return _nothing(assumed_rate, Failure(f"http_{reply.status}", refusal_text(body)))
    payload = _unframe(reply, body, framing)
    failure = reply.failure or payload.failure
    usage = payload.usage or _header_usage(reply.headers)
    data = b"".join(piece for _, piece in payload.pieces)
    try:
        start, size, fmt, source, notes = _container(
            data, reply.headers, payload.rate, framing, assumed_rate
        )
    except ValueError as error:
        return _nothing(assumed_rate, failure or Failure("format", str(error)), payload)
    times, counts = _chunks(payload.pieces, start, size, fmt.frame_bytes)
    audio = data[start : start + int(counts.sum()) * fmt.frame_bytes]
    if failure is None and not counts.size:
        failure = Failure("no_audio", "the answer ended well but held no audio")
    return DecodedAudio(
        samples=_mono(audio, fmt),
        rate=fmt.rate,
        rate_source=source,
        times=times,
        counts=counts,
        audio=audio,
        first_payload=payload.pieces[0][0] if payload.pieces else None,
        failure=failure,
        input_tokens=_integer(usage.get("input_tokens")),
        output_tokens=_integer(usage.get("output_tokens")),
        notes=notes,
    )


def refusal_text(body: bytes) -> str:
    """The message of an error answer, without its envelope if that is a known one (OpenAI's,
    FastAPI's)."""
    text = body.decode("utf-8", "replace").strip()
    try:
        envelope = json.loads(text)
    except ValueError:
        envelope = None
    if isinstance(envelope, dict):
        error = envelope.get("error", envelope)
        if isinstance(error, dict):
            text = str(error.get("message") or error.get("detail") or text)
        else:
            text = str(error)
    return text[:300]


def _nothing(rate: int, failure: Failure, payload: _Payload | None = None) -> DecodedAudio:
    if payload and payload.pieces:
        first = payload.pieces[0][0]
    else:
        first = None
    empty = np.zeros(0, np.float32)
    return DecodedAudio(
        empty, rate, "none", np.zeros(0), np.zeros(0, np.int64), b"", first, failure
    )


def _integer(value: object) -> int | None:
    if isinstance(value, int) or (isinstance(value, str) and value.isdigit()):
        return int(value)
    return None


def _header_usage(headers: Mapping[str, str]) -> dict[str, str]:
    """Token counts from headers such as `x-usage-input-tokens` or `x-vllm-omni-output-tokens`."""
    ends = {"input-tokens": "input_tokens", "output-tokens": "output_tokens"}
    return {
        key: headers[name] for name in headers for end, key in ends.items() if name.endswith(end)
    }


# ---- framing


def _unframe(reply: Reply, body: bytes, framing: Framing) -> _Payload:
    if framing == "sse":
        return _unframe_sse(reply.arrivals, body)
    if framing == "websocket":
        return _unframe_websocket(reply.arrivals, body)
    payload = _Payload()
    payload.pieces = [(arrival.time, data) for arrival, data in _split(reply.arrivals, body)]
    return payload


def _split(arrivals: list[Arrival], body: bytes) -> Iterator[tuple[Arrival, bytes]]:
    offset = 0
    for arrival in arrivals:
        yield arrival, body[offset : offset + arrival.size]
        offset += arrival.size


def _unframe_sse(arrivals: list[Arrival], body: bytes) -> _Payload:
    """OpenAI `speech.audio.*` events. An event exists when the blank line that ends it has
    arrived."""
    payload = _Payload()
    pending = b""
    ended = False
    for arrival, data in _split(arrivals, body):
        pending = (pending + data).replace(b"\r\n", b"\n")
        *events, pending = pending.split(b"\n\n")
        for event in events:
            ended |= _take_event(payload, arrival.time, _sse_data(event))
    if not ended and payload.failure is None:
        payload.failure = Failure("incomplete", "the event stream ended without speech.audio.done")
    return payload


def _sse_data(event: bytes) -> str:
    lines = [line[5:].strip() for line in event.split(b"\n") if line.startswith(b"data:")]
    return b"\n".join(lines).decode("utf-8", "replace")


def _take_event(payload: _Payload, time: float, text: str) -> bool:
    """Apply one event (SSE data or WebSocket text frame). Returns whether it ends the answer."""
    if text in ("", "[DONE]"):
        return text == "[DONE]"
    try:
        event = json.loads(text)
    except ValueError:
        event = None
    if not isinstance(event, dict):
        payload.failure = payload.failure or Failure("protocol", f"not a JSON object: {text[:120]}")
        return False
    name = str(event.get("type", ""))
    if name == "error" or name.endswith(".error") or event.get("error"):
        payload.failure = payload.failure or Failure("server_error", _error_text(event))
    payload.rate = _integer(event.get("sample_rate")) or payload.rate
    encoded = event.get("audio") or (event.get("data") if name == "audio.chunk" else None)
    if isinstance(encoded, str):
        try:
            payload.pieces.append((time, base64.b64decode(encoded, validate=True)))
        except ValueError as error:
            payload.failure = payload.failure or Failure(
                "protocol", f"{name}: audio is not base64: {error}"
            )
    if isinstance(event.get("usage"), dict):
        payload.usage = event["usage"]
    return name in ("speech.audio.done", "session.done", "response.done")


def _error_text(event: Mapping[str, Any]) -> str:
    error = event.get("error")
    if isinstance(error, dict):
        message = error.get("message")
    else:
        message = event.get("message", error)
    return str(message or event)[:300]


def _unframe_websocket(arrivals: list[Arrival], body: bytes) -> _Payload:
    payload = _Payload()
    ended = False
    for arrival, data in _split(arrivals, body):
        if arrival.kind is ArrivalKind.BINARY:
            payload.pieces.append((arrival.time, data))
        else:
            ended |= _take_event(payload, arrival.time, data.decode("utf-8", "replace"))
    if not ended and payload.failure is None:
        payload.failure = Failure("incomplete", "the socket closed before session.done")
    return payload


# ---- container


def _container(
    data: bytes,
    headers: Mapping[str, str],
    event_rate: int | None,
    framing: Framing,
    assumed_rate: int,
) -> tuple[int, int | None, AudioFormat, str, tuple[str, ...]]:
    """Where samples start, how many bytes of them there are (None: all), their format, the source
    of the rate, notes.

    Raises:
        ValueError: the bytes are neither PCM nor WAV, so arrival times cannot be mapped to samples.
    """
    stated, source = _stated_rate(headers, event_rate)
    if data[:4] == b"RIFF":
        start, size, fmt = _wav_header(data)
        notes = (
            (f"{source} says {stated} Hz, the WAV header {fmt.rate} Hz",)
            if stated not in (None, fmt.rate)
            else ()
        )
        return start, size, fmt, "wav header", notes
    content = headers.get("content-type", "").split(";")[0].strip().lower()
    if framing == "raw" and data and content not in _PCM_TYPES:
        raise ValueError(f"{content} is compressed: its bytes cannot be timed; ask for pcm or wav")
    channels = next((int(headers[h]) for h in _CHANNEL_HEADERS if headers.get(h, "").isdigit()), 1)
    dtype: Literal["<f4", "<i2"] = "<f4" if framing == "float32" else "<i2"
    fmt = AudioFormat(stated or assumed_rate, max(channels, 1), dtype)
    return 0, None, fmt, source if stated else "assumed", ()


def _stated_rate(headers: Mapping[str, str], event_rate: int | None) -> tuple[int | None, str]:
    for name in _RATE_HEADERS:
        if headers.get(name, "").isdigit() and int(headers[name]) > 0:
            return int(headers[name]), name
    if match := re.search(r"rate=(\d+)", headers.get("content-type", "")):
        return int(match.group(1)), "content-type"
    return event_rate, "event"


_DTYPES: dict[tuple[int, int], Literal["<i2", "<i4", "<f4", "|u1"]] = {
    (1, 8): "|u1",
    (1, 16): "<i2",
    (1, 32): "<i4",
    (3, 32): "<f4",
}


def _wav_header(data: bytes) -> tuple[int, int | None, AudioFormat]:
    """Offset and size of the samples (None where the header leaves it open) and their format."""
    offset = 12
    fmt = None
    while offset + 8 <= len(data):
        name, size = struct.unpack_from("<4sI", data, offset)
        if name == b"data":
            if fmt is None:
                raise ValueError("the WAV data chunk comes before its fmt chunk")
            return offset + 8, None if size in _OPEN_SIZES or size > 0xFFFF0000 else size, fmt
        if name == b"fmt " and offset + 24 <= len(data):
            fmt = _wav_format(data[offset + 8 : offset + 8 + size])
        offset += 8 + size + size % 2
    raise ValueError("the WAV header is cut off")


def _wav_format(chunk: bytes) -> AudioFormat:
    tag, channels, rate, _, _, bits = struct.unpack_from("<HHIIHH", chunk)
    if tag == 0xFFFE and len(chunk) >= 26:  # extensible: the true tag opens the sub-format
        (tag,) = struct.unpack_from("<H", chunk, 24)
    if (tag, bits) not in _DTYPES or not channels or not rate:
        raise ValueError(
            f"WAV format tag {tag} with {bits} bits, {channels} channels at {rate} Hz is not supported"
        )
    return AudioFormat(rate, channels, _DTYPES[tag, bits])


def _chunks(
    pieces: list[tuple[float, bytes]], start: int, size: int | None, frame_bytes: int
) -> tuple[Floats, Ints]:
    """Arrival times and whole sample counts of the pieces that completed at least one sample."""
    ends = np.cumsum([len(piece) for _, piece in pieces], dtype=np.int64)
    if ends.size:
        limit = max(int(ends[-1]) - start, 0)
    else:
        limit = 0
    inside = np.clip(ends - start, 0, limit if size is None else min(size, limit))
    counts: Ints = np.diff(inside // frame_bytes, prepend=0).astype(np.int64)
    times = np.array([time for time, _ in pieces], dtype=np.float64)
    return times[counts > 0], counts[counts > 0]


def _mono(audio: bytes, fmt: AudioFormat) -> Samples:
    """Samples in [-1, 1], channels averaged."""
    raw: NDArray[Any] = np.frombuffer(audio, dtype=fmt.dtype)
    scale, offset = {
        "<i2": (32768.0, 0.0),
        "<i4": (2147483648.0, 0.0),
        "<f4": (1.0, 0.0),
        "|u1": (128.0, 128.0),
    }[fmt.dtype]
    # a server may send any floats, and quality.py counts those that are not finite
    with np.errstate(invalid="ignore"):
        samples = (raw.astype(np.float32) - np.float32(offset)) / np.float32(scale)
    if fmt.channels > 1:
        samples = samples.reshape(-1, fmt.channels).mean(axis=1, dtype=np.float32)
    return samples
