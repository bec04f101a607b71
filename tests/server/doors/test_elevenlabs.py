"""ElevenLabs' API over HTTP: what its SDK does is in tests/server/clients."""

from __future__ import annotations

import base64
import io
import json
from pathlib import Path

import av
import numpy as np
import pytest

from stentor.server.doors.elevenlabs.fields import NAMES, Aligner, output_format
from stentor.speech.timing import SegmentTiming, WordTiming
from tests.helpers.patience import until
from tests.helpers.server_live import Live, decoded, held, pcm, raw, serving

PATH = "/v1/text-to-speech/default"
KEY = "of-a-client"


def speak(
    live: Live,
    path: str = PATH,
    query: str = "",
    headers: dict[str, str] | None = None,
    **body: object,
):
    return live.http.post(path + query, json={"text": "Hello there.", **body}, headers=headers)


def test_speech_is_that_of_our_own_api(live: Live) -> None:
    ask = {"response_format": "pcm", "sample_rate": 16000, "speed": 1.5, "stream": False}
    ours = live.speech(input="Hello there.", seed=5, **ask)
    theirs = speak(live, query="?output_format=pcm_16000", seed=5, voice_settings={"speed": 1.5})
    assert theirs.content == ours.content
    assert len(theirs.content) == int(theirs.headers["content-length"])
    streamed = speak(
        live, PATH + "/stream", "?output_format=pcm_16000", seed=5, voice_settings={"speed": 1.5}
    )
    assert "content-length" not in streamed.headers
    assert np.abs(pcm(streamed.content) - pcm(theirs.content)).max() < 0.01


@pytest.mark.parametrize("name", NAMES)
def test_every_format_is_what_its_name_says(live: Live, name: str) -> None:
    format, rate, bits = output_format(name)
    answer = speak(live, query=f"?output_format={name}", seed=5)
    assert answer.headers["content-type"].startswith("audio/")
    assert answer.headers["x-sample-rate"] == str(rate)
    if format in ("pcm", "ulaw", "alaw"):
        seconds = len(answer.content) / rate / (2 if format == "pcm" else 1)
    else:
        samples, found = decoded(answer.content)
        assert found == rate
        seconds = len(samples) / rate
    assert seconds == pytest.approx(float(answer.headers["x-audio-duration"]), abs=0.15)
    if format == "mp3":
        with av.open(io.BytesIO(answer.content)) as file:
            assert file.streams.audio[0].bit_rate == bits


def test_what_has_no_counterpart_is_named(live: Live) -> None:
    body = {
        "voice_settings": {"stability": 0.5, "speed": 1.1},
        "previous_text": "x",
        "language_code": "de",
    }
    answer = speak(live, query="?optimize_streaming_latency=3&enable_logging=false", **body)
    named = answer.headers["x-ignored"].split(", ")
    assert sorted(named) == [
        "language_code",
        "optimize_streaming_latency",
        "previous_text",
        "voice_settings.stability",
    ]


def test_a_voice_of_elevenlabs_is_the_default_voice_and_named(live: Live) -> None:
    answer = speak(
        live, "/v1/text-to-speech/21m00Tcm4TlvDq8ikWAM", "?output_format=pcm_16000", seed=5
    )
    assert answer.headers["x-ignored"] == "voice_id"
    assert answer.content == speak(live, query="?output_format=pcm_16000", seed=5).content


def test_the_models_own_options_are_taken(live: Live) -> None:
    short = speak(live, query="?output_format=pcm_8000", max_frames=2)
    assert len(short.content) < len(speak(live, query="?output_format=pcm_8000").content)
    assert "x-ignored" not in short.headers


BAD = [
    ({"text": ""}, "", 400, "text"),
    ({"text": None}, "", 400, "text"),
    ({"text": 5}, "", 400, "text"),
    ({"text": "x" * 20_001}, "", 400, "text"),
    ({"model_id": "another"}, "", 404, "model_id"),
    ({"voice_settings": {"speed": 9}}, "", 400, "voice_settings"),
    ({"voice_settings": []}, "", 400, "voice_settings"),
    ({"seed": -2}, "", 400, "seed"),
    ({"apply_text_normalization": "maybe"}, "", 400, "apply_text_normalization"),
    ({"input": "x"}, "", 400, "text"),
    ({"voice": "low"}, "", 400, "voice_id"),
    ({}, "?output_format=mp3_44100_127", 400, "output_format"),
    ({}, "?output_format=", 200, ""),
]


@pytest.mark.parametrize(
    "path", [PATH, PATH + "/stream", PATH + "/with-timestamps", PATH + "/stream/with-timestamps"]
)
@pytest.mark.parametrize(("body", "query", "status", "param"), BAD)
def test_what_is_wrong_is_named_as_clients_know_it(
    live: Live, path: str, body: dict, query: str, status: int, param: str
) -> None:
    answer = speak(live, path, query, **body)
    assert answer.status_code == status
    if status == 200:
        return
    told = answer.json()
    assert told["error"]["param"] == told["detail"]["param"] == param
    assert param in told["detail"]["message"]
    assert live.idle()


@pytest.mark.parametrize(
    "data",
    [
        b"{",
        b"[]",
        b"null",
        b"[" * 90_000,
        b'{"text": ' + b"[" * 5000 + b"]" * 5000 + b"}",
        b"\x00\xff",
    ],
)
def test_a_hostile_body_is_a_400(live: Live, data: bytes) -> None:
    answer = live.http.post(PATH, content=data, headers={"content-type": "application/json"})
    assert answer.status_code == 400
    assert answer.json()["error"]["message"]


def test_times_of_characters_cover_the_text_and_the_audio(live: Live) -> None:
    text = "Hello there. And how are you?"  # not so short that the toy runs on
    whole = speak(
        live, PATH + "/with-timestamps", "?output_format=pcm_8000", text=text, seed=5
    ).json()
    alignment = whole["alignment"]
    assert "".join(alignment["characters"]) == text
    starts, ends = (
        alignment["character_start_times_seconds"],
        alignment["character_end_times_seconds"],
    )
    assert starts[0] == 0
    assert starts[1:] == ends[:-1]
    assert starts == sorted(starts)
    seconds = len(base64.b64decode(whole["audio_base64"])) / 2 / 8000
    assert ends[-1] == pytest.approx(seconds, abs=0.02)
    streamed = speak(
        live, PATH + "/stream/with-timestamps", "?output_format=pcm_8000", text=text, seed=5
    )
    lines = [json.loads(line) for line in streamed.text.splitlines()]
    assert (
        "".join(c for line in lines if line["alignment"] for c in line["alignment"]["characters"])
        == text
    )
    assert [
        e
        for line in lines
        if line["alignment"]
        for e in line["alignment"]["character_end_times_seconds"]
    ] == ends
    audio = b"".join(base64.b64decode(line["audio_base64"]) for line in lines)
    assert np.abs(pcm(audio) - pcm(base64.b64decode(whole["audio_base64"]))).max() < 0.01


def test_audio_comes_before_the_speech_is_complete(live: Live) -> None:
    body = {"text": "A long text. " * 200, "min_frames": 60, "max_frames": 60, "guard": False}
    with (
        held(live, frames=[400]) as engine,
        live.http.stream("POST", PATH + "/stream?output_format=pcm_24000", json=body) as answer,
    ):
        engine.wait()
        parts = answer.iter_bytes()
        assert next(parts)
        engine.go()
        assert b"".join(parts)


def test_a_client_that_leaves_frees_its_slot(live: Live) -> None:
    cancelled = live.tts.engine.stats.cancelled
    body = {"text": "A long text. " * 200, "min_frames": 60, "max_frames": 60, "guard": False}
    with (
        held(
            live, frames=[405]
        ),  # amid a piece of 16: between two nothing runs that could be cancelled
        live.http.stream("POST", PATH + "/stream?output_format=pcm_24000", json=body) as answer,
    ):
        parts = answer.iter_bytes()  # kept: httpx closes the connection when this is collected
        assert next(parts)
        answer.close()
        assert until(lambda: not live.server.metrics.live)  # the server has noticed
    assert live.idle()
    assert live.tts.engine.stats.cancelled > cancelled


def test_lists_have_voices_and_models(live: Live) -> None:
    voices = live.http.get("/v1/voices").json()["voices"]
    assert [v["voice_id"] for v in voices] == ["default", "low", "high"]
    assert live.http.get("/v1/voices/low").json() == voices[1]
    assert live.http.get("/v1/voices/nobody").json()["detail"]["status"] == "voice_not_found"
    found, token = [], None
    while True:
        page = live.http.get(
            "/v2/voices", params={"page_size": 2, **({"next_page_token": token} if token else {})}
        )
        found += page.json()["voices"]
        token = page.json()["next_page_token"]
        if not page.json()["has_more"]:
            break
    assert found == voices
    assert [v["name"] for v in live.http.get("/v2/voices?search=IG").json()["voices"]] == ["high"]
    for query in ("page_size=0", "page_size=x", "next_page_token=x", "page_size=99999"):
        assert live.http.get(f"/v2/voices?{query}").status_code == 400
    (model,) = live.http.get("/v1/models", headers={"xi-api-key": "any"}).json()
    assert model["can_do_text_to_speech"]
    assert model["languages"] == [{"language_id": "en", "name": "English"}]
    assert "data" in live.http.get("/v1/models").json()  # the others' list


def test_a_key_is_asked_for(tmp_path: Path) -> None:
    with serving(tmp_path / "voices", api_key=(KEY,)) as live:
        del live.http.headers["authorization"]
        for headers in ({}, {"xi-api-key": "wrong"}):
            for path in ("/v1/voices", "/v2/voices", "/v1/models", "/v1/voices/default"):
                assert live.http.get(path, headers=headers).status_code == 401
            assert speak(live, headers=headers).status_code == 401
        assert speak(live, headers={"xi-api-key": KEY}).status_code == 200
        assert live.http.get("/v2/voices", headers={"xi-api-key": KEY}).status_code == 200


def test_a_strict_server_refuses_what_it_does_not_use(tmp_path: Path) -> None:
    with serving(tmp_path / "voices", strict=True) as live:
        answer = speak(live, voice_settings={"stability": 0.5})
        assert answer.status_code == 400
        assert answer.json()["detail"]["param"] == "voice_settings.stability"
        assert speak(live).status_code == 200


def test_requests_are_limited_and_counted(tmp_path: Path) -> None:
    with serving(tmp_path / "voices", max_active_requests=1, max_body_mb=0.01) as live:
        assert speak(live, text="x" * 20_000).status_code == 413
        with (
            held(live, frames=[1]) as engine,
            raw(live, {"input": "Hello.", "min_frames": 50, "max_frames": 50}),
        ):
            engine.wait()
            assert speak(live).status_code == 429
            engine.go()
        assert until(lambda: speak(live).status_code == 200)

        def mine() -> bool:
            answer = speak(live, headers={"X-Request-Id": "mine"})
            assert answer.headers["x-request-id"] == "mine"
            return answer.status_code == 200

        assert until(mine)  # a place is free a moment after its client has read the answer
        assert until(
            lambda: live.http.get("/v1/audio/speech/mine").json().get("status") == "completed"
        )
        assert live.sum_of("http_requests_total", 'path="/v1/text-to-speech/{voice_id}"') >= 2


# -- times of characters --


def segment(
    index: int, start: float, end: float, at: int, to: int, *words: WordTiming
) -> SegmentTiming:
    return SegmentTiming(index, "", start, end, at, to, words)


def test_characters_share_the_time_of_their_word() -> None:
    words = WordTiming("Hi", 0.1, 0.3, 0, 2), WordTiming("you.", 0.5, 0.9, 3, 7)
    found = Aligner().take("Hi you.", [segment(0, 0.0, 1.0, 0, 7, *words)])
    assert found.text == "Hi you."
    assert found.bounds.round(3).tolist() == [0.1, 0.2, 0.3, 0.5, 0.6, 0.7, 0.8, 1.0]


def test_characters_between_segments_belong_to_the_second_and_count_from_the_first() -> None:
    aligner, text = Aligner(), "One. Two.\n"
    first = aligner.take(text, [segment(0, 0.0, 1.0, 0, 4)])
    second = aligner.take(text, [segment(1, 1.5, 2.0, 5, 9)])
    assert (first.text, second.text, aligner.take(text, [], rest=True).text) == (
        "One.",
        " Two.",
        "\n",
    )
    ms = second.as_ms()
    assert ms["charStartTimesMs"][:2] == [0, 500]
    assert ms["charStartTimesMs"][-1] + ms["charDurationsMs"][-1] == 1000


def test_times_never_go_back_whatever_a_text_front_end_says() -> None:
    aligner, text = Aligner(), "One. Two."
    words = WordTiming("x", 0.9, 0.2, 90, 3), WordTiming("y", 0.1, 5.0, 2, 200)
    found = aligner.take(text, [segment(0, 0.5, 0.4, 3, 1, *words), segment(1, 0.1, 1.0, 0, 400)])
    assert found.text == text
    assert np.all(np.diff(found.bounds) >= 0)
    assert aligner.take(text, [segment(2, 0.0, 0.1, 0, 2)]).text == ""
