"""Speakers of `stentor say`: a model of this process, or a running server."""

from __future__ import annotations

import json
import os
import urllib.error
import urllib.request
from base64 import b64decode, b64encode
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol
from urllib.parse import urlsplit

import numpy as np

from stentor.errors import InvalidRequest, ModelNotFound, StentorError
from stentor.speech.result import Speech
from stentor.speech.subtitles import FORMATS
from stentor.speech.timing import SegmentTiming

if TYPE_CHECKING:
    from http.client import HTTPResponse

    from stentor.api import TTS

SILENCE_SECONDS = 300
"""A server may load a model before it speaks."""
KEY = "STENTOR_API_KEY"
_SEGMENT_FIELDS = ("index", "text", "start", "end", "start_char", "end_char")


class Speaker(Protocol):
    """Speaks one text. sample_rate: Hz of its audio."""

    sample_rate: int

    def speech(self) -> Iterator[Speech]:
        """Yield the audio as it is made, the last chunk with a finish reason."""
        ...

    def subtitles(self, segments: list[SegmentTiming]) -> str:
        """Return the subtitles of what was spoken."""
        ...


class ModelSpeaker:
    """A model of this process. format: of subtitles, or None. words: they mark each word."""

    def __init__(
        self, tts: TTS, text: str, options: Mapping[str, Any], format: str | None, words: bool
    ) -> None:
        self.sample_rate = tts.sample_rate
        self._tts = tts
        self._text = text
        self._options = dict(options)
        self._format = format
        self._words = words
        if format is not None:
            self._options["word_timestamps"] = words or self._has_word_times()

    def _has_word_times(self) -> bool:
        """Whether cues can be cut by word times. Else words share the time of their sentence."""
        language = self._options.get("language")
        return self._tts.aligners.missing(self._tts.spec, language, self._text) is None

    def speech(self) -> Iterator[Speech]:
        return self._tts.stream(self._text, **self._options)

    def subtitles(self, segments: list[SegmentTiming]) -> str:
        assert self._format is not None
        return FORMATS[self._format](segments, self._words)


class ServerSpeaker:
    """A request to a running server, whose audio comes as server-sent events."""

    def __init__(self, url: str, body: Mapping[str, Any]) -> None:
        """Send the request. InvalidRequest and ModelNotFound are the server's own, StentorError
        where it cannot be reached."""
        self._url = url
        self._response = _open(f"{url}/v1/audio/speech", url, body)
        self.sample_rate = int(self._response.headers["X-Sample-Rate"])
        self._seed = int(self._response.headers["X-Seed"])
        self._subtitles = ""
        self.unused: list[str] = []
        """Fields of the request that the server does not use."""

    def speech(self) -> Iterator[Speech]:
        with self._response, _connected(self._url):
            segments: list[SegmentTiming] = []
            for event in _events(self._response):
                kind = event.get("type")
                if kind == "speech.audio.error":
                    raise StentorError(f"{self._url}: {event['error']['message']}")
                if kind == "speech.audio.segment":
                    segments.append(SegmentTiming(**{k: event[k] for k in _SEGMENT_FIELDS}))
                elif kind == "speech.audio.delta":
                    yield self._chunk(b64decode(event["audio"]), tuple(segments))
                    segments = []
                elif kind == "speech.audio.done":
                    yield self._last(event, tuple(segments))
                    return
        raise StentorError(f"{self._url}: the server closed the connection before the end")

    def _chunk(self, data: bytes, segments: tuple[SegmentTiming, ...], **more: Any) -> Speech:
        samples = np.frombuffer(data, "<i2").astype(np.float32) / 32767
        facts = {"finish_reason": None, "seed": self._seed, **more}
        return Speech(samples, self.sample_rate, np.zeros(0), segments=segments, **facts)

    def _last(self, event: Mapping[str, Any], segments: tuple[SegmentTiming, ...]) -> Speech:
        self._subtitles = event.get("subtitles", "")
        ignored = event.get("ignored", [])
        self.unused = [item["param"] for item in ignored if "text" not in item]
        pieces = tuple(item["text"] for item in ignored if item.get("param") == "input")
        finish = event["finish_reason"]
        return self._chunk(b"", segments, finish_reason=finish, seed=event["seed"], ignored=pieces)

    def subtitles(self, segments: list[SegmentTiming]) -> str:
        return self._subtitles


def joined(chunks: Iterable[Speech]) -> Speech:
    """The chunks of a stream as one speech."""
    parts = list(chunks)
    last = parts[-1]
    return Speech(
        np.concatenate([part.samples for part in parts]),
        last.sample_rate,
        last.frames,
        last.finish_reason,
        last.seed,
        segments=tuple(segment for part in parts for segment in part.segments),
        ignored=tuple(text for part in parts for text in part.ignored),
    )


def fetch(url: str, path: str) -> Any:
    """The JSON that a server returns. Raises as `ServerSpeaker` does."""
    with _open(url + path, url) as response, _connected(url):
        try:
            return json.load(response)
        except ValueError:
            raise StentorError(f"{url}{path} is not JSON, so this is not stentor's API") from None


def request_body(
    text: str, model: str | None, options: Mapping[str, Any], format: str | None, words: bool
) -> dict[str, Any]:
    """The body of a request with the options of `TTS.stream`."""
    body = {"input": text, "response_format": "pcm", "stream_format": "sse", **options}
    if model is not None:
        body["model"] = model
    for name, audio, transcript in (
        ("reference", "ref_audio", "ref_text"),
        ("prompt", "prompt_audio", "prompt_text"),
    ):
        recording = body.pop(name, None)
        if recording is not None:
            body[audio] = _as_data_url(Path(recording.audio))
            body[transcript] = recording.text
    if format is not None:
        body["timestamps"] = format
        body["word_timestamps"] = words
    return body


def _as_data_url(file: Path) -> str:
    data = file.read_bytes()
    return f"data:audio/wav;base64,{b64encode(data).decode()}"


def _open(url: str, server: str, body: Mapping[str, Any] | None = None) -> HTTPResponse:
    """The answer to a POST of a body, or to a GET without one."""
    headers = {}
    data = None
    if body is not None:
        headers["Content-Type"] = "application/json"
        data = json.dumps(body).encode()
    if key := os.environ.get(KEY):
        headers["Authorization"] = f"Bearer {key}"
    request = urllib.request.Request(url, data, headers)
    opener = urllib.request.build_opener(*_handlers(url))
    with _connected(server):
        try:
            response: HTTPResponse = opener.open(request, timeout=SILENCE_SECONDS)
        except urllib.error.HTTPError as e:
            with e:
                raise _refusal(server, e.code, e.read()) from None
    return response


def _handlers(url: str) -> list[urllib.request.BaseHandler]:
    """No proxy for a server of this machine."""
    if urlsplit(url).hostname in ("localhost", "127.0.0.1", "::1"):
        return [urllib.request.ProxyHandler({})]
    return []


@contextmanager
def _connected(server: str) -> Iterator[None]:
    """Raise StentorError where the server cannot be reached, or stops answering."""
    try:
        yield
    except urllib.error.URLError as e:
        raise StentorError(f"cannot reach {server}: {e.reason}") from None
    except OSError as e:
        raise StentorError(f"{server} does not answer: {e}") from None


def _refusal(server: str, status: int, data: bytes) -> StentorError:
    """The error that a server has sent."""
    try:
        error = json.loads(data)["error"]
        message = str(error["message"])
        field = error.get("param")
    except (ValueError, KeyError, TypeError, AttributeError):
        return StentorError(f"{server} answers {status}, which is not stentor's API")
    if status == 401:
        return StentorError(f"{server} needs a key: set {KEY}")
    if status == 404 and field == "model":
        return ModelNotFound(f"{server}: {message}")
    if status == 400 and field is not None:
        return InvalidRequest(field, message.removeprefix(f"{field}: "))
    return StentorError(f"{server}: {message}")


def _events(response: HTTPResponse) -> Iterator[dict[str, Any]]:
    """The events of an answer, each with its name as `type`."""
    for line in response:
        if line.startswith(b"data: "):
            yield json.loads(line[6:])
