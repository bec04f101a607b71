"""POST /v1/audio/speech: formats, streaming, parameters, headers, errors."""

from __future__ import annotations

import base64
import json

import numpy as np
import pytest

from stentor.models.toy.model import BROKEN
from stentor.output.encode import CONTAINERS
from tests.helpers.server_live import LAWS, Live, decoded, either_engine, held, pcm, samples_of

TEXT = "Hello there, you."
LONG = {
    "input": "A long text. " * 20,
    "max_frames": 60,
    "min_frames": 60,
    "flow_steps": 1,
    "guard": False,
}


def events(body: bytes) -> list[dict]:
    """The data of server-sent events; their names must agree with their types."""
    found = []
    for block in body.decode().strip().split("\n\n"):
        name, data = block.split("\n")
        value = json.loads(data.removeprefix("data: "))
        assert name == f"event: {value['type']}"
        found.append(value)
    return found


def test_the_answer_is_the_audio_that_the_engine_makes(live: Live) -> None:
    made = live.tts.generate(TEXT, seed=5, voice="low", retries=1)
    answer = live.speech(input=TEXT, seed=5, voice="low", response_format="pcm", guard=False)
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "audio/pcm"
    assert np.abs(pcm(answer.content) - np.clip(made.samples, -1, 1)).max() < 1e-4


@either_engine
def test_mp3_is_the_default_and_one_whole_file_where_no_stream_is_wanted(live: Live) -> None:
    answer = live.speech(input=TEXT, seed=5, stream=False)
    assert answer.headers["content-type"] == "audio/mpeg"
    assert int(answer.headers["content-length"]) == len(answer.content)
    assert b"Info" in answer.content[:200]  # the header with the length of the file


# A field decides over the header, and stream_format over stream. An SDK or a browser sends the first two headers.
DELIVERIES = [
    ({}, "application/octet-stream", "stream"),
    ({}, "audio/*, */*", "stream"),
    ({"response_format": "WAV"}, "*/*", "whole"),
    ({"response_format": "flac"}, "*/*", "whole"),
    ({"response_format": "wav", "stream": True}, "*/*", "stream"),
    ({"response_format": "flac", "stream_format": "audio"}, "*/*", "stream"),
    ({"response_format": "wav"}, "text/event-stream", "events"),
    ({"response_format": "pcm"}, "*/*", "stream"),
    ({"response_format": "pcm", "stream": False}, "*/*", "whole"),
    ({"response_format": "ulaw"}, "*/*", "stream"),
    ({"response_format": "alaw", "stream": False}, "*/*", "whole"),
    ({}, "Text/Event-Stream", "events"),
    ({}, "application/json, text/event-stream; q=0.9", "events"),
    ({"stream": True}, "*/*", "stream"),
    ({"stream": True}, "text/event-stream", "events"),
    ({"stream": False}, "text/event-stream", "whole"),
    ({"stream": None, "stream_format": None}, "*/*", "stream"),
    ({"stream_format": "audio"}, "text/event-stream", "stream"),
    ({"stream": False, "stream_format": "audio"}, "*/*", "whole"),
    ({"stream": True, "stream_format": "audio"}, "*/*", "stream"),
    ({"stream": False, "stream_format": "sse"}, "*/*", "events"),
    ({"stream": True, "stream_format": "sse"}, "*/*", "events"),
    (
        {"stream": True, "timestamps": "json"},
        "*/*",
        "events",
    ),  # a stream of bytes cannot hold times
]


@either_engine
@pytest.mark.parametrize(("how", "accept", "delivery"), DELIVERIES)
def test_the_fields_and_the_accept_header_say_how_the_answer_is_sent(
    live: Live, how: dict, accept: str, delivery: str
) -> None:
    answer = live.http.post(
        "/v1/audio/speech", json={"input": "Hi.", **how}, headers={"Accept": accept}
    )
    assert answer.status_code == 200
    media = CONTAINERS[how.get("response_format", "mp3").lower()].media_type
    assert answer.headers["content-type"] == (
        "text/event-stream" if delivery == "events" else media
    )
    assert ("content-length" in answer.headers) == (delivery == "whole")


@pytest.mark.parametrize("format", CONTAINERS)
@pytest.mark.parametrize("shape", [{}, {"speed": 1.5, "sample_rate": 24000}, {"speed": 0.5}])
def test_a_streamed_answer_decodes_to_the_audio_of_the_whole_one(
    live: Live, format: str, shape: dict
) -> None:
    ask = {"input": TEXT, "seed": 5, "response_format": format, "guard": False, **shape}
    if format in LAWS:
        ask.pop("sample_rate", None)
    whole = live.speech(**ask, stream=False).content
    streamed = live.speech(**ask, stream_format="audio").content
    sse = live.speech(**ask, stream_format="sse").content
    joined = b"".join(
        base64.b64decode(e["audio"]) for e in events(sse) if e["type"] == "speech.audio.delta"
    )
    a, b, c = (samples_of(format, x) for x in (whole, streamed, joined))
    # a whole mp3 has a header that lets the decoder drop the encoder's delay; a stream has none
    if format == "mp3":
        b, c = b[1105 : 1105 + len(a)], c[1105 : 1105 + len(a)]
    assert len(a) == len(b) == len(c)
    for other in (b, c):
        # the engine's audio differs by rounding between chunk sizes; how codecs take it is in test_encode.py
        if format in ("wav", "pcm", "flac"):
            assert np.abs(a - other).max() < 2.1 / 32768
        else:
            assert np.corrcoef(a, other)[0, 1] > 0.99


@either_engine
@pytest.mark.parametrize("format", CONTAINERS)
def test_speed_and_rate_give_the_duration_they_promise(live: Live, format: str) -> None:
    plain = float(
        live.speech(input=TEXT, seed=5, guard=False, stream=False).headers["x-audio-duration"]
    )
    rate = 8000 if format in LAWS else 16000
    answer = live.speech(
        input=TEXT, seed=5, guard=False, speed=2.0, sample_rate=rate, response_format=format
    )
    assert answer.headers["x-sample-rate"] == str(rate)
    if format == "pcm":
        seconds = len(answer.content) / 2 / rate
    else:
        samples, rate = decoded(answer.content, format)
        seconds = len(samples) / rate
    slack = 0.15 if format in ("aac", "opus", "mp3") else 0.01
    assert abs(seconds - plain / 2) < slack


def test_first_bytes_arrive_before_the_speech_is_finished(live: Live) -> None:
    ask = {**LONG, "response_format": "pcm"}
    with (
        held(live, frames=[20]) as engine,
        live.http.stream("POST", "/v1/audio/speech", json=ask) as answer,
    ):
        parts = answer.iter_raw()
        first = next(parts)
        # it is still at work when the first bytes are here
        assert live.tts.engine.health().running == 1
        engine.go()
        rest = b"".join(parts)
    assert 0 < len(first) < len(rest)


@pytest.mark.parametrize("format", CONTAINERS)
def test_every_format_comes_in_more_than_one_part_while_it_is_made(live: Live, format: str) -> None:
    slowly = {
        "speed": 0.25,
        "min_frames": 130,
        "max_frames": 130,
    }  # a page of Ogg is as long as 25 frames then
    rate = 8000 if format in LAWS else 24000
    ask = {
        **LONG,
        **slowly,
        "stream_format": "audio",
        "response_format": format,
        "sample_rate": rate,
    }
    stops = (50, 100)
    with (
        held(live, frames=stops) as engine,
        live.http.stream("POST", "/v1/audio/speech", json=ask) as answer,
    ):
        parts = answer.iter_raw()
        for _ in stops:
            assert next(parts)
            assert live.tts.engine.health().running == 1
            engine.go()
        assert b"".join(parts)


@either_engine
def test_headers_say_what_was_made(live: Live) -> None:
    answer = live.speech(input=TEXT, seed=7, response_format="wav", guard=False)
    head = answer.headers
    assert live.speech(input=TEXT, response_format="ulaw").headers["x-bit-depth"] == "8"
    assert head["x-seed"] == "7"
    assert (head["x-sample-rate"], head["x-channels"], head["x-bit-depth"]) == ("600", "1", "16")
    assert head["x-finish-reason"] in ("stop", "length")
    assert "first-audio;dur=" in head["server-timing"]
    assert int(head["x-usage-input-tokens"]) == len(TEXT)
    assert int(head["x-usage-total-tokens"]) == len(TEXT) + int(head["x-usage-output-tokens"])


@either_engine
def test_a_request_without_a_seed_can_be_made_again_from_the_seed_it_reports(live: Live) -> None:
    first = live.speech(input=TEXT, response_format="pcm")
    again = live.speech(input=TEXT, response_format="pcm", seed=int(first.headers["x-seed"]))
    assert again.content == first.content
    assert live.speech(input=TEXT, response_format="pcm").content != first.content


@either_engine
def test_sse_ends_with_usage_and_finish_reason(live: Live) -> None:
    answer = live.speech(
        input=TEXT, seed=7, stream_format="sse", response_format="pcm", guard=False
    )
    assert answer.headers["content-type"] == "text/event-stream"
    *deltas, done = events(answer.content)
    assert {e["type"] for e in deltas} == {"speech.audio.delta"}
    assert done["type"] == "speech.audio.done"
    usage = done["usage"]
    assert usage["input_tokens"] == len(TEXT) == usage["input_token_details"]["text_tokens"]
    assert usage["total_tokens"] == usage["input_tokens"] + usage["output_tokens"]
    assert done["finish_reason"] in ("stop", "length")
    assert done["seed"] == 7
    audio = b"".join(base64.b64decode(e["audio"]) for e in deltas)
    assert done["duration"] == pytest.approx(len(audio) / 2 / 600)


@either_engine
def test_the_outcome_of_a_stream_can_be_looked_up(live: Live) -> None:
    answer = live.speech(input=TEXT, stream_format="audio", seed=3, guard=False)
    found = live.http.get(f"/v1/audio/speech/{answer.headers['x-request-id']}").json()
    assert found["status"] == "completed"
    assert found["finish_reason"] in ("stop", "length")
    assert found["seed"] == 3
    assert found["usage"]["input_tokens"] == len(TEXT)
    assert live.http.get("/v1/audio/speech/nothing").status_code == 404


def test_a_request_id_is_kept_if_it_is_harmless(live: Live) -> None:
    ask = {"input": TEXT}
    good = live.http.post("/v1/audio/speech", json=ask, headers={"X-Request-Id": "my-id.7"})
    assert good.headers["x-request-id"] == "my-id.7"
    for bad in ("a b", "x" * 200, 'a"b', "<script>"):
        answer = live.http.post("/v1/audio/speech", json=ask, headers={"X-Request-Id": bad})
        assert answer.headers["x-request-id"].startswith("req-")


@either_engine
def test_audio_is_held_back_until_the_first_chunk_is_as_long_as_asked(live: Live) -> None:
    ask = {**LONG, "stream_format": "sse", "response_format": "pcm"}
    first = events(live.speech(**ask, initial_codec_chunk_frames=30).content)[0]
    assert len(base64.b64decode(first["audio"])) >= (30 * 6 - 3) * 2


@either_engine
def test_a_stream_that_is_held_back_to_its_end_is_a_file_with_its_length(live: Live) -> None:
    ask = {"input": TEXT, "seed": 5, "response_format": "wav", "guard": False}
    streamed = live.speech(**ask, stream=True, initial_codec_chunk_frames=4096).content
    assert int.from_bytes(streamed[40:44], "little") == len(streamed) - 44


RUN_ON = {
    "input": "Hi!",
    "min_frames": 60,
    "max_frames": 60,
}  # three tokens: more than 18 frames are suspect


@pytest.mark.parametrize("how", [{}, {"stream": False}, {"stream_format": "audio"}])
def test_speech_that_runs_on_is_cut_and_says_so(live: Live, how: dict) -> None:
    answer = live.speech(**RUN_ON, seed=1, response_format="pcm", **how)
    assert len(answer.content) == 18 * 6 * 2
    found = live.http.get(f"/v1/audio/speech/{answer.headers['x-request-id']}").json()
    assert found["finish_reason"] == "guard_length"
    assert live.idle()
    assert (
        len(live.speech(**RUN_ON, seed=1, response_format="pcm", guard=False, **how).content)
        == 60 * 6 * 2
    )


@either_engine
def test_a_whole_answer_that_runs_on_is_tried_again_with_other_seeds(live: Live) -> None:
    def counts() -> list[float]:
        return [
            live.sum_of("runaway_guard_total", f'action="{action}"')
            for action in ("retried", "cut")
        ]

    retried, cut = counts()
    live.speech(**RUN_ON)  # a stream has sent what it would try again
    assert counts() == [retried, cut + 1]
    retried, cut = counts()
    answer = live.speech(**RUN_ON, stream=False)
    assert answer.headers["x-finish-reason"] == "guard_length"  # this text always runs on
    assert counts() == [retried + 2, cut + 1]


BAD = [
    ({}, "input"),
    ({"input": ""}, "input"),
    ({"input": "  "}, "input"),
    ({"input": 5}, "input"),
    ({"input": "x" * 20_001}, "input"),
    ({"input": "a\x00", "cleanup": "none"}, "input"),
    ({"input": "x", "cleanup": "magic"}, "cleanup"),
    ({"input": "x", "cleanup": 5}, "cleanup"),
    ({"input": "x", "voice": "nobody"}, "voice"),
    ({"input": "x", "voice": {"id": "nobody"}}, "voice"),
    ({"input": "x", "voice": 7}, "voice"),
    ({"input": "x", "voice": "../../etc/passwd"}, "voice"),
    ({"input": "x", "response_format": "ogg"}, "response_format"),
    ({"input": "x", "speed": 0.1}, "speed"),
    ({"input": "x", "speed": 4.1}, "speed"),
    ({"input": "x", "speed": "fast"}, "speed"),
    ({"input": "x", "sample_rate": 7999}, "sample_rate"),
    ({"input": "x", "sample_rate": 10_000, "response_format": "opus"}, "sample_rate"),
    ({"input": "x", "sample_rate": 24_000, "response_format": "ulaw"}, "sample_rate"),
    ({"input": "x", "response_format": "mulaw"}, "response_format"),
    ({"input": "x", "stream": "yes"}, "stream"),
    ({"input": "x", "stream": "yes"}, "stream"),
    ({"input": "x", "stream_format": "websocket"}, "stream_format"),
    ({"input": "x", "instructions": "y" * 501}, "instructions"),
    ({"input": "x", "seed": -2}, "seed"),
    ({"input": "x", "seed": 2**63}, "seed"),
    ({"input": "x", "seed": 1.5}, "seed"),
    ({"input": "x", "temperature": 3}, "temperature"),
    ({"input": "x", "temperature": True}, "temperature"),
    ({"input": "x", "top_k": 1.5}, "top_k"),
    ({"input": "x", "max_new_tokens": 0}, "max_new_tokens"),
    ({"input": "x", "max_new_tokens": 10**9}, "max_new_tokens"),
    ({"input": "x", "max_tokens": 10**9}, "max_tokens"),
    ({"input": "x", "max_frames": 10**9}, "max_frames"),
    (
        {"input": "x", "stage_params": {"talker": {"max_new_tokens": 10**9}}},
        "stage_params.talker.max_new_tokens",
    ),
    ({"input": "x", "ref_audio": "!!!"}, "ref_audio"),
    ({"input": "x", "ref_audio": []}, "ref_audio"),
    ({"input": "x", "ref_audio": ["a", "b"]}, "ref_audio"),
    ({"input": "x", "references": [{"text": "t"}]}, "references"),
    ({"input": "x", "task_type": "Sing"}, "task_type"),
    ({"input": "x", "timestamps": "words"}, "timestamps"),
    ({"input": "x", "initial_codec_chunk_frames": -1}, "initial_codec_chunk_frames"),
]


@either_engine
@pytest.mark.parametrize(("body", "param"), BAD, ids=[f"{p}-{i}" for i, (_, p) in enumerate(BAD)])
@pytest.mark.parametrize("how", [{}, {"stream_format": "audio"}])
def test_what_is_wrong_with_a_request_is_said_in_openais_envelope(
    live: Live, body: dict, param: str, how: dict
) -> None:
    answer = live.speech(**{**how, **body})
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["type"] == "invalid_request_error"
    assert error["param"] == param
    assert param in error["message"]


@either_engine
@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"[]", b"null", b'"text"', b'{"input": "x"', b"\xff\xfe", b"[" * 9999],
)
def test_bodies_that_are_not_a_json_object_get_400(live: Live, content: bytes) -> None:
    answer = live.http.post(
        "/v1/audio/speech", content=content, headers={"Content-Type": "application/json"}
    )
    assert answer.status_code == 400
    assert answer.json()["error"]["type"] == "invalid_request_error"


def test_an_unknown_model_is_a_404(live: Live) -> None:
    answer = live.speech(input=TEXT, model="tts-2")
    assert answer.status_code == 404
    assert answer.json()["error"]["code"] == "model_not_found"
    assert live.speech(input=TEXT, model="dummy:toy").status_code == 200


def test_a_request_that_fails_in_the_engine_is_a_500_also_when_it_streams(live: Live) -> None:
    for how in ({}, {"stream_format": "audio"}, {"stream_format": "sse"}):
        answer = live.speech(input=BROKEN, **how)
        assert answer.status_code == 500
        assert answer.json()["error"]["code"] == "engine_error"
    assert live.speech(input=TEXT).status_code == 200
    assert live.idle()


@either_engine
@pytest.mark.parametrize(
    ("field", "value", "told"),
    [
        ("ref_audio", [], "at least 1 item"),
        ("ref_audio", ["UklG"] * 9, "at most 8 items"),
        ("ref_audio", 5, "valid string"),
        ("ref_audio", {}, "must be a string or a list"),
        ("voice", {"name": "low"}, "voice: needs id"),
        ("voice", {"id": 5}, "valid string"),
        ("voice", ["low"], "must be a string or an object"),
        ("references", ["x"], "references.0: must be an object"),
        ("stage_params", {"talker": 3}, "stage_params.talker: must be an object"),
    ],
)
def test_a_list_or_an_object_is_told_what_it_lacks(
    live: Live, field: str, value: object, told: str
) -> None:
    """Not that it is no string, where the field takes either."""
    error = live.speech(input=TEXT, **{field: value}).json()["error"]
    assert error["param"].split(".")[0] == field
    assert told in error["message"]


@either_engine
def test_wrong_paths_and_methods_have_the_envelope_too(live: Live) -> None:
    for answer, status in (
        (live.http.get("/v1/nothing"), 404),
        (live.http.delete("/v1/audio/speech"), 405),
    ):
        assert answer.status_code == status
        assert answer.json()["error"]["message"]


@either_engine
def test_batch_gives_each_item_its_own_status(live: Live) -> None:
    items = [
        "One.",
        {"input": "Two.", "voice": "high", "response_format": "mp3"},
        {"input": "Three.", "voice": "nobody"},
        {"input": ""},
        {"input": BROKEN},
    ]
    answer = live.http.post(
        "/v1/audio/speech/batch", json={"items": items, "seed": 4, "response_format": "wav"}
    )
    assert answer.status_code == 200
    body = answer.json()
    assert (body["total"], body["succeeded"], body["failed"]) == (5, 2, 3)
    one, two, three, four, five = body["results"]
    alone = pcm(
        live.speech(input="One.", seed=4, response_format="pcm", stream=False).content
    )  # a stream that runs on is cut, not tried again
    assert np.abs(pcm(base64.b64decode(one["audio"])[44:]) - alone).max() < 2.1 / 32768
    assert two["media_type"] == "audio/mpeg"
    assert len(decoded(base64.b64decode(two["audio"]))[0])
    assert three["error"]["param"] == "items.2.voice"
    assert four["error"]["param"] == "items.3.input"
    assert five["error"]["code"] == "engine_error"
    assert live.http.post("/v1/audio/speech/batch", json={"items": []}).status_code == 400
    assert live.http.post("/v1/audio/speech/batch", json={"items": ["x"] * 33}).status_code == 400


@either_engine
def test_model_lists_have_the_shapes_that_clients_ask_for(live: Live) -> None:
    models = live.http.get("/v1/models").json()
    assert models["object"] == "list"
    assert models["data"][0]["id"] == "dummy:toy"
    assert models["data"][0]["object"] == "model"
    assert live.http.get("/v1/audio/models").json()["models"][0]["id"] == "dummy:toy"
    assert live.http.get("/v1/models/dummy:toy").json()["voices"] == ["low", "high"]
    assert live.http.get("/v1/models/other").status_code == 404


@either_engine
def test_metrics_count_what_happened(live: Live) -> None:
    live.speech(input=TEXT, stream_format="audio")
    text = live.http.get("/metrics").text
    for name in (
        "num_requests_running", "num_requests_waiting", "e2e_request_latency_s_bucket", "requests_success_total",
        "prompt_tokens_total", "generation_tokens_total", "audio_ttfp_s_bucket", "audio_duration_s_sum", "audio_rtf_count",
        "audio_frames_total", "audio_underrun_s_bucket", "audio_continuity_ok_total", "speech_stream_completed_total",
        "request_queue_wait_s_bucket", "audio_audible_ttfa_s_bucket", "kv_usage_ratio", "batch_size",
        "voice_cache_hits_total", "gpu_memory_bytes", "engine_steps_total", "step_time_s_sum",
    ):  # fmt: skip
        assert f"stentor:{name}" in text, name
