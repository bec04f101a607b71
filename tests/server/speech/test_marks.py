"""Marks of a machine on what a server sends: the same line over every protocol, and a watermark in all audio."""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import av
import httpx
import numpy as np
import pytest

from stentor.errors import InvalidRequest
from stentor.output.encode import CONTAINERS
from stentor.output.marks import comment
from stentor.server.config import ServerConfig
from tests.helpers.door_talk import WyomingTalk, audio_of, json_talk
from tests.helpers.patience import STUCK_S
from tests.helpers.server_live import Live, pcm, serving
from tests.helpers.watermarks import QUIET, tone
from tests.helpers.ws_talk import talk

LINE = comment("dummy:toy")
TEXT = "Good morning. How are you?"
ASK: dict[str, Any] = {"input": TEXT, "response_format": "pcm", "seed": 5, "guard": False}
LONG = {**ASK, "min_frames": 60, "max_frames": 60}
PACKAGE = "tests.helpers.watermarks:"


@pytest.fixture(scope="module")
def unmarked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    """A server without the flags, and otherwise as those with them."""
    with serving(
        tmp_path_factory.mktemp("unmarked") / "voices", request_timeout=STUCK_S
    ) as running:
        yield running


@pytest.fixture(scope="module")
def marked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    folder = tmp_path_factory.mktemp("marked") / "voices"
    how = {
        "provenance": True,
        "watermark": PACKAGE + "Tone",
        "wyoming_port": 0,
        "request_timeout": STUCK_S,
    }
    with serving(folder, **how) as running:
        yield running


@pytest.fixture(scope="module")
def failing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    folder = tmp_path_factory.mktemp("failing") / "voices"
    with serving(folder, watermark=PACKAGE + "FailsLater", request_timeout=STUCK_S) as running:
        yield running


def assert_marked(data: bytes, plain: bytes, starts: tuple[int, ...] = (0,)) -> None:
    """Audio in PCM is that without a watermark, and one tone from each start on."""
    one, other = pcm(data), pcm(plain)
    ends = (*starts[1:], len(other))
    tones = [tone(end - start) for start, end in zip(starts, ends, strict=True)]
    assert len(one) == len(other) > 0
    known = np.abs(other) < 1  # not clipped
    assert np.abs(one - other * QUIET - np.concatenate(tones))[known].max() < 1 / 32767


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("format", CONTAINERS)
def test_every_format_has_the_line_in_a_header_and_in_its_metadata(
    format: str, stream: bool, marked: Live
) -> None:
    answer = marked.speech(**{**ASK, "response_format": format, "stream": stream})
    assert answer.headers["x-provenance"] == LINE
    if CONTAINERS[format].plain:
        assert b"AI-generated" not in answer.content
        return
    with av.open(io.BytesIO(answer.content)) as f:
        assert LINE in (f.metadata.get("comment"), f.streams[0].metadata.get("comment"))


def test_without_the_flags_nothing_is_marked(unmarked: Live) -> None:
    answer = unmarked.speech(**{**ASK, "response_format": "wav"})
    assert "x-provenance" not in answer.headers
    assert answer.content[36:40] == b"data"


@pytest.mark.parametrize(
    "more", [{"stream": True}, {"stream": False}, {"speed": 1.5}, {"sample_rate": 24000}]
)
def test_a_watermark_is_in_all_audio_once_streamed_or_not(
    more: dict[str, Any], marked: Live, unmarked: Live
) -> None:
    assert_marked(
        marked.speech(**{**ASK, **more}).content, unmarked.speech(**{**ASK, **more}).content
    )


def test_events_and_json_have_both(marked: Live, unmarked: Live) -> None:
    plain = unmarked.speech(**ASK, stream=False).content
    answer = marked.speech(**ASK, stream_format="sse")
    assert answer.headers["x-provenance"] == LINE
    events = [
        json.loads(line[6:]) for line in answer.text.splitlines() if line.startswith("data: {")
    ]
    assert events[-1]["provenance"] == LINE
    assert_marked(audio_of(events, "audio"), plain)
    whole = marked.speech(**ASK, timestamps="json").json()
    assert whole["provenance"] == LINE
    one = marked.http.post(
        "/v1/audio/speech/batch", json={"items": [TEXT], **ASK, "input": None}
    ).json()
    assert one["results"][0]["provenance"] == LINE
    assert_marked(base64.b64decode(one["results"][0]["audio"]), plain)


def test_a_websocket_says_it_before_the_audio(marked: Live, unmarked: Live) -> None:
    with talk(unmarked) as t:
        _, plain = t.say(TEXT)
    with talk(marked) as t:
        events, data = t.say(TEXT)
    start = next(e for e in events if e["type"] == "audio.start")
    assert start["provenance"] == events[-1]["provenance"] == LINE
    assert_marked(data, plain)


def test_each_file_of_a_websocket_has_a_watermark_of_its_own(marked: Live, unmarked: Live) -> None:
    how = {"stream_audio": False, "split_granularity": "sentence"}
    with talk(unmarked, **how) as t:
        events, plain = t.say(TEXT)
    with talk(marked, **how) as t:
        _, data = t.say(TEXT)
    first = next(e for e in events if e["type"] == "audio.done")["total_bytes"] // 2
    assert_marked(data, plain, (0, first))


def test_realtime_says_it_when_a_response_is_created(marked: Live) -> None:
    with json_talk(marked, "/v1/realtime?model=gpt-realtime") as t:
        t.get()
        item = {
            "type": "message",
            "role": "user",
            "content": [{"type": "input_text", "text": TEXT}],
        }
        t.send(type="response.create", response={"conversation": "none", "input": [item]})
        messages = t.until(lambda m: m["type"] in ("response.done", "error"))
    assert messages[0]["type"] == "response.created"
    assert messages[0]["response"]["provenance"] == messages[-1]["response"]["provenance"] == LINE
    sent = pcm(audio_of([m for m in messages if m["type"].endswith("audio.delta")], "delta"))
    assert _strength(sent) > 0.9


def test_wyoming_and_elevenlabs_say_it_too(marked: Live) -> None:
    strengths = []
    for _ in range(8):  # short speech of any seed, at 600 Hz, has some of the tone by chance
        with WyomingTalk(marked) as t:
            t.send("synthesize", text=TEXT)
            events = t.until("audio-stop")
        assert events[0]["provenance"] == LINE
        strengths.append(
            _strength(pcm(b"".join(e["payload"] for e in events if e["type"] == "audio-chunk")))
        )
    assert np.mean(strengths) > 0.9
    voice = "/v1/text-to-speech/default"
    answer = marked.http.post(f"{voice}?output_format=pcm_24000&seed=5", json={"text": TEXT})
    assert answer.headers["x-provenance"] == LINE
    assert _strength(pcm(answer.content)) > 0.9
    with json_talk(marked, f"{voice}/stream-input?output_format=pcm_24000&seed=5") as t:
        t.send(text=TEXT + " ")
        t.send(text="")
        _, messages = t.close_code()
    assert messages[-1]["provenance"] == LINE
    assert _strength(pcm(audio_of(messages, "audio"))) > 0.9


def _strength(samples: np.ndarray) -> float:
    """How much of one tone audio has, from its first sample on."""
    mark = tone(len(samples))
    return float(samples @ mark / (mark @ mark))


# -- failures --


def test_a_whole_answer_is_an_error_where_the_watermark_fails(failing: Live) -> None:
    answer = failing.speech(**LONG, stream=False)
    assert answer.status_code == 500
    assert answer.json()["error"]["code"] == "watermark_error"


def test_a_stream_ends_early_and_all_that_was_sent_is_marked(failing: Live, unmarked: Live) -> None:
    plain = unmarked.speech(**LONG).content
    parts: list[bytes] = []
    with (
        failing.http.stream("POST", "/v1/audio/speech", json=LONG) as answer,
        pytest.raises(httpx.RemoteProtocolError),
    ):
        parts.extend(answer.iter_raw())
    sent = b"".join(parts)
    assert 0 < len(sent) < len(plain)
    assert_marked(sent, plain[: len(sent)])


def test_events_and_sockets_end_with_the_error_and_a_short_text_is_spoken(failing: Live) -> None:
    parts: list[str] = []
    asked = {**LONG, "stream_format": "sse"}
    with (
        failing.http.stream("POST", "/v1/audio/speech", json=asked) as answer,
        pytest.raises(httpx.RemoteProtocolError),
    ):
        parts.extend(answer.iter_text())
    assert '"code":"watermark_error"' in "".join(parts)
    with talk(failing, min_frames=60, max_frames=60) as t:
        events, _ = t.say(TEXT)
        assert [e["code"] for e in events if e["type"] == "error"] == ["watermark_error"]
        assert t.until("session.done")[0][-1]["finish_reason"] == "error"
    with talk(failing, min_frames=9, max_frames=9) as t:
        told, data = t.say("Hi.")
    assert (told[-1]["type"], len(pcm(data))) == ("session.done", 54)


def test_one_that_does_not_work_is_refused_at_the_start() -> None:
    with pytest.raises(InvalidRequest, match="needs 16 kHz"):
        ServerConfig(watermark=PACKAGE + "HighOnly")


def test_it_is_known_by_the_name_of_its_folder_only(tmp_path: Path) -> None:
    assert str(tmp_path) not in comment(str(tmp_path))
