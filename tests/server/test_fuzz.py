"""Anything that clients send, over HTTP and WebSocket: every request ends, and none with a 5xx.

The suite tries some examples. STENTOR_FUZZ_EXAMPLES=20000 tries so many in all, and --hypothesis-profile=search others
each time. A 503 with Retry-After is an answer, as the server may be full.
"""

from __future__ import annotations

import base64
import io
import json
import logging
import os
from collections.abc import Iterator, Sequence
from typing import Any
from urllib.parse import quote

import httpx
import numpy as np
import pytest
import soundfile
from hypothesis import given, settings
from hypothesis import strategies as st
from websockets.exceptions import ConnectionClosed

from stentor.server.config import FORMATS
from stentor.server.schemas import ALIASES, BatchBody, SpeechBody
from stentor.server.ws.utterance import KINDS
from tests.helpers.patience import STUCK_S
from tests.helpers.server_live import Live, serving
from tests.helpers.ws_talk import talk

EXAMPLES = int(os.environ.get("STENTOR_FUZZ_EXAMPLES", "400"))


# of the toy
OPTIONS = (
    "cfg",
    "flow_steps",
    "max_frames",
    "min_frames",
    "temperature",
    "top_k",
    "top_p",
)


def share(part: float) -> settings:
    return settings(max_examples=max(1, int(part * EXAMPLES)))


class Errors(logging.Handler):
    """Errors in the server's log."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.found: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.found.append(self.format(record))


@pytest.fixture(scope="module")
def fuzzed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Live, Errors]]:
    errors = Errors()
    logging.getLogger().addHandler(errors)
    voices = tmp_path_factory.mktemp("fuzzed")
    with serving(voices, request_timeout=STUCK_S, max_voices=20, ws_idle_seconds=STUCK_S) as live:
        yield live, errors
    logging.getLogger().removeHandler(errors)
    assert errors.found == []


# -- what is sent --

ANY_TEXT = st.text(st.characters(exclude_categories=()), max_size=40)
MARKS = st.sampled_from(
    [
        "Hello. ", "One, two. ", "\n\n", "<p>", "</p>", "<s>", '<break time="1s"/>', "[pause 2s]", "[pause]", "&amp;", "&#0;",
        '<sub alias="World Wide Web">', "</sub>", "W3C", '<say-as interpret-as="characters">', "</say-as>", "[x](/ks/)",
        '<phoneme ph="a b">', "</phoneme>", "**", "| a | b |\n|--|--|\n", "$1,000,000.50 ", "12/31/2024 ", "x^2 ", "你好。",
        "مرحبا ", "\U0001f600", "\ud83d", "\ude00", "\0", "\u202e", "e\u0301", "https://a.example/b?c=d ", "1" * 50, "-", "…",
    ]
)  # fmt: skip
RUNS = st.builds(
    lambda units, times: "".join(units) * times,
    st.lists(MARKS | st.characters(exclude_categories=()), min_size=1, max_size=2),
    st.sampled_from([40, 100]),
)
"""One or two signs again and again: what a pattern that backtracks reads for long."""
SPOKEN = st.one_of(st.lists(MARKS, max_size=12).map("".join), ANY_TEXT, RUNS)
NUMBERS = st.one_of(
    st.integers(-3, 40),
    st.floats(),
    st.sampled_from([2**31, 2**63 - 1, 2**63, 2**64, -(2**63), 10**30, 1e308, 0.25, 4.0]),
)
SCALARS = st.one_of(st.none(), st.booleans(), NUMBERS, ANY_TEXT)
ANY = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(ANY_TEXT, inner, max_size=4),
    max_leaves=12,
)


def wav(**how: Any) -> bytes:
    out = io.BytesIO()
    soundfile.write(out, 0.3 * np.sin(np.arange(12_000) / 9), 8_000, **how)
    return out.getvalue()


FILES = [
    wav(format="WAV"),
    wav(format="FLAC"),
    wav(format="OGG"),
    wav(format="MP3"),
    b"\0\0\0 ftypM4A \0",
    b"\x1aE\xdf\xa3",
    b"\xff\xf1P",
]


@st.composite
def changed(draw: st.DrawFn, files: Sequence[bytes]) -> bytes:
    """A file in which some bytes are others."""
    data = bytearray(draw(st.sampled_from(files)))
    for at, value in draw(
        st.lists(st.tuples(st.integers(0, 2000), st.integers(0, 255)), max_size=6)
    ):
        data[min(at, len(data) - 1)] = value
    cut = draw(st.sampled_from([None, None, 0, 3, 44, 100, -1]))
    return bytes(data if cut is None else data[:cut])


SOURCES = st.one_of(
    st.sampled_from([base64.b64encode(data).decode() for data in FILES[:4]]),
    changed(FILES).map(lambda data: base64.b64encode(data).decode()),
    changed(FILES).map(
        lambda data: "data:audio/wav;base64," + base64.urlsafe_b64encode(data).decode().rstrip("=")
    ),
    st.sampled_from(
        [
            "http://127.0.0.1:1/",
            "http://[::1]/a",
            "https://0x7f.1/",
            "file:///etc/passwd",
            "/dev/zero",
            "data:,",
            "http://",
        ]
    ),
    ANY_TEXT,
)
GOOD = base64.b64encode(FILES[0]).decode()
RIGHT: dict[str, st.SearchStrategy[Any]] = {
    "input": SPOKEN,
    "model": st.sampled_from(["tts-1", "dummy:toy", "", None]),
    "voice": st.sampled_from(["low", "default", "alloy", {"id": "low"}, ""]),
    "ref_audio": st.one_of(SOURCES, st.lists(SOURCES, max_size=2)),
    "ref_text": SPOKEN,
    "references": st.lists(
        st.fixed_dictionaries({"audio": SOURCES}, optional={"text": SPOKEN}), max_size=1
    ),
    "prompt_audio": SOURCES,
    "response_format": st.sampled_from(FORMATS),
    "speed": st.floats(0.25, 4.0),
    "sample_rate": st.sampled_from([8000, 16000, 24000, 44100, 48000]),
    "stream": st.booleans(),
    "stream_format": st.sampled_from(["audio", "sse"]),
    "timestamps": st.sampled_from(["none", "json", "srt", "vtt"]),
    "split_granularity": st.sampled_from(["auto", "none", "sentence", "clause"]),
    "seed": st.integers(-1, 2**63 - 1),
    "cleanup": st.sampled_from(["all", "none", "pages,chat"]),
    "extra_params": st.dictionaries(st.sampled_from([*OPTIONS, "x"]), SCALARS, max_size=3),
}
FIELDS = sorted({*SpeechBody.model_fields, *BatchBody.model_fields, *ALIASES, *OPTIONS})


@st.composite
def bodies(draw: st.DrawFn) -> dict[str, Any]:
    """Mostly right, so that it gets somewhere, with some fields of any kind."""
    text = draw(st.one_of(SPOKEN, SPOKEN.map("Hello. ".__add__)))
    body: dict[str, Any] = {"input": text, "max_frames": draw(st.integers(1, 30))}
    for name in draw(st.lists(st.sampled_from(sorted(RIGHT)), max_size=5, unique=True)):
        body[name] = draw(RIGHT[name])
    if draw(st.integers(0, 3)) == 3:
        body[draw(st.sampled_from(FIELDS))] = draw(ANY)
    if "ref_text" in body and draw(st.booleans()):
        body["ref_audio"], body["ref_text"] = GOOD, "la la la"
    if body.get("cleanup") == "none" and isinstance(body["input"], str):
        body["input"] = body["input"].replace(
            "\0", "-"
        )  # the toy's prompts refuse it, also of a piece amid a stream
    return body


BATCHES = st.fixed_dictionaries(
    {"items": st.lists(st.one_of(bodies(), SPOKEN, ANY), max_size=4)},
    optional={"speed": NUMBERS, "voice": ANY, "seed": NUMBERS, "max_frames": st.integers(1, 20)},
)
RAW = st.one_of(
    ANY.map(lambda value: json.dumps(value).encode()),
    changed(
        [
            b'{"input": "Hello there.", "max_frames": 5, "speed": 1.0, "voice": {"id": "low"}, "x": ["\\ud83d\\ude00", null]}'
        ]
    ),
    st.binary(max_size=60),
)


# -- what must hold --


def ended(live: Live, errors: Errors, method: str, path: str, **how: Any) -> httpx.Response:
    """The answer to a request, which is read to its end."""
    answer = live.http.request(method, path, timeout=STUCK_S, **how)
    tells = answer.status_code == 503 and "retry-after" in answer.headers
    assert answer.status_code < 500 or tells, (
        method,
        path,
        how,
        answer.status_code,
        answer.text[:500],
    )
    assert not errors.found, (method, path, how)
    if answer.status_code >= 400 and method != "HEAD":
        told = answer.json()["error"]
        assert told["message"]
    return answer


def sent(body: Any) -> dict[str, Any]:
    return {"content": json.dumps(body).encode(), "headers": {"Content-Type": "application/json"}}


@share(0.4)
@given(bodies())
def test_any_body_of_a_speech_request_is_answered(
    fuzzed: tuple[Live, Errors], body: dict[str, Any]
) -> None:
    answer = ended(*fuzzed, "POST", "/v1/audio/speech", **sent(body))
    if answer.headers["content-type"].startswith("text/event-stream"):
        last = answer.text.strip().rpartition("event: ")[2].partition("\n")[0]
        assert last in ("speech.audio.done", "error"), answer.text[-500:]
        assert '"status":500' not in answer.text


@share(0.1)
@given(BATCHES)
def test_any_batch_is_answered_item_by_item(
    fuzzed: tuple[Live, Errors], body: dict[str, Any]
) -> None:
    answer = ended(*fuzzed, "POST", "/v1/audio/speech/batch", **sent(body))
    if answer.status_code == 200:
        results = answer.json()["results"]
        assert len(results) == len(body["items"])
        wrong = [r["error"]["type"] for r in results if r["status"] != "success"]
        assert "server_error" not in wrong, results


@share(0.1)
@given(
    st.sampled_from(["/v1/audio/speech", "/v1/audio/speech/batch", "/v1/load_lora_adapter"]), RAW
)
def test_any_bytes_are_answered(fuzzed: tuple[Live, Errors], path: str, data: bytes) -> None:
    ended(*fuzzed, "POST", path, content=data, headers={"Content-Type": "application/json"})


PATHS = (
    "/", "/health", "/ready", "/metrics", "/docs", "/openapi.json", "/v1/models", "/v1/models/", "/v1/audio/models",
    "/v1/audio/voices", "/v1/audio/voices/", "/v1/audio/speech", "/v1/audio/speech/", "/v1/audio/speech/batch",
    "/v1/audio/speech/stream", "/v1/load_lora_adapter", "/app.js", "/static/", "/v1/",
)  # fmt: skip
HEADER_VALUES = st.text(st.characters(min_codepoint=32, max_codepoint=126), max_size=30).map(
    str.strip
)


@share(0.15)
@given(
    st.sampled_from(["GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS", "PATCH"]),
    st.sampled_from(PATHS),
    st.one_of(
        st.just(""),
        ANY_TEXT.map(lambda t: quote(t.encode("utf-8", "surrogatepass"))),
        st.sampled_from(["%FF", "%00", "..", "../.."]),
    ),
    st.dictionaries(
        st.sampled_from(["format", "details", "model", "limit", "x"]), HEADER_VALUES, max_size=2
    ),
    st.dictionaries(
        st.sampled_from(
            [
                "Accept",
                "Content-Type",
                "Origin",
                "Range",
                "X-Request-Id",
                "Authorization",
                "Accept-Encoding",
            ]
        ),
        HEADER_VALUES,
        max_size=2,
    ),
    st.one_of(st.none(), st.binary(max_size=40)),
)
def test_any_path_is_answered(
    fuzzed: tuple[Live, Errors],
    method: str,
    path: str,
    more: str,
    query: dict[str, str],
    headers: dict[str, str],
    data: bytes | None,
) -> None:
    live, errors = fuzzed
    answer = live.http.request(
        method, path + more, params=query, headers=headers, content=data, timeout=STUCK_S
    )
    assert answer.status_code < 500, (method, path, more, answer.text[:500])
    assert not errors.found


@share(0.1)
@given(
    st.one_of(st.sampled_from(["fuzz", "Fuzz 1", "low", "default"]), ANY_TEXT),
    st.one_of(changed(FILES), st.binary(max_size=50), st.none()),
    st.one_of(
        st.none(), ANY.map(json.dumps), st.lists(st.floats(width=32), max_size=5).map(json.dumps)
    ),
    st.dictionaries(st.sampled_from(["ref_text", "speaker_description", "x"]), SPOKEN, max_size=2),
    st.sampled_from(["yes", "", "x" * 3000]),
)
def test_any_voice_is_taken_or_refused(
    fuzzed: tuple[Live, Errors],
    name: str,
    audio: bytes | None,
    embedding: str | None,
    more: dict[str, str],
    consent: str,
) -> None:
    clean = {k: v.encode("utf-8", "replace").decode() for k, v in {"name": name, **more}.items()}
    data = {
        **clean,
        "consent": consent,
        **({} if embedding is None else {"speaker_embedding": embedding}),
    }
    files = None if audio is None else {"audio_sample": ("a.wav", audio, "audio/wav")}
    stored = ended(*fuzzed, "POST", "/v1/audio/voices", data=data, files=files)
    if stored.status_code == 200:
        assert stored.json()["name"] in fuzzed[0].voice_names()
        ended(
            *fuzzed,
            "POST",
            "/v1/audio/speech",
            **sent({"input": "Hello.", "voice": stored.json()["name"], "max_frames": 3}),
        )
    path = "/v1/audio/voices/" + quote(clean["name"].strip() or "x", safe="")
    assert ended(*fuzzed, "DELETE", path).status_code in (
        200,
        307,
        400,
        404,
    )  # 307: a slash at the end is left out


FRAMES = st.one_of(
    SPOKEN.map(lambda text: {"type": "input.text", "text": text}),
    st.sampled_from([{"type": kind} for kind in KINDS]),
    st.builds(
        lambda kind, more: {**more, "type": kind},
        st.sampled_from(sorted(KINDS)),
        st.dictionaries(ANY_TEXT, ANY, max_size=2),
    ),
    st.builds(lambda played: {"type": "response.cancel", "played_ms": played}, NUMBERS),
    bodies().map(lambda body: {"type": "session.config", **body}),
    ANY,
)


@share(0.15)
@given(
    st.one_of(st.none(), bodies()), st.lists(st.one_of(FRAMES, st.binary(max_size=20)), max_size=8)
)
def test_any_session_ends(
    fuzzed: tuple[Live, Errors], config: dict[str, Any] | None, frames: list[Any]
) -> None:
    live, errors = fuzzed
    with talk(live, configure=False) as session:
        first = {
            "type": "session.config",
            "response_format": "pcm",
            "max_frames": 5,
            **(config or {}),
        }
        try:
            for frame in (first, *frames, {"type": "input.done"}, {"type": "session.close"}):
                session.socket.send(frame if isinstance(frame, bytes) else json.dumps(frame))
        except ConnectionClosed:
            pass  # it was refused meanwhile
        code, events = session.close_code()
    assert code in (1000, 1008, 1009), (first, frames, code, events)
    assert not [e for e in events if e["type"] == "error" and e["status"] in (500, 504)], (
        first,
        frames,
        events,
    )
    assert not errors.found


def test_nothing_is_left_behind(fuzzed: tuple[Live, Errors]) -> None:
    live, _ = fuzzed
    assert live.idle()
    assert live.speech(input="Hello.", seed=1).status_code == 200
