"""JSON of clients: half a surrogate pair is no reason to refuse a request, and everything else is as orjson reads it."""

from __future__ import annotations

import asyncio
import json

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stentor.arguments import mend_unicode
from stentor.server.wire_json import loads
from stentor.speech.live_text import TextFeed
from tests.helpers.server_live import Live
from tests.helpers.ws_talk import talk

SMILE = "\U0001f600"
HIGH, LOW = "\ud83d", "\ude00"


@pytest.mark.parametrize(
    ("text", "want"),
    [
        (HIGH + LOW, SMILE),
        (HIGH, "\ufffd"),
        (LOW + HIGH, "\ufffd\ufffd"),
        (f"a{HIGH}b{LOW}c", "a\ufffdb\ufffdc"),
        (HIGH + HIGH + LOW, "\ufffd" + SMILE),
    ],
)
def test_halves_are_joined_or_replaced(text: str, want: str) -> None:
    assert mend_unicode(text) == want
    assert loads(json.dumps({text: [text]}).encode()) == {want: [want]}
    for at in range(len(text) + 1):  # in two messages
        feed = TextFeed("none", 400, False)
        asyncio.run(feed.write(text[:at]))
        asyncio.run(feed.write(text[at:]))
        asyncio.run(feed.end())
        assert feed.text == want


@pytest.mark.parametrize(
    "body",
    [b'"\\\\ud800"', b'{"a": NaN, "b": "\\ud800"}', b'["\\ud800"', b'"\\ud800\xff"', b"\\ud800"],
)
def test_what_else_is_wrong_stays_wrong(body: bytes) -> None:
    try:
        want = orjson.loads(body)
    except orjson.JSONDecodeError:
        with pytest.raises(json.JSONDecodeError):
            loads(body)
    else:
        assert loads(body) == want


def test_half_a_pair_opens_no_way_around_limits() -> None:
    for body in (b'["\\ud800", ' + b"[" * 900 + b"]" * 901, b'["\\ud800", ' + b"1" * 5000 + b"]"):
        with pytest.raises(json.JSONDecodeError):
            loads(body)


@given(
    st.recursive(
        st.text(st.characters(exclude_categories=())) | st.integers(-(2**40), 2**40) | st.none(),
        st.lists,
    )
)
def test_any_text_of_json_is_read_as_valid_unicode(value: object) -> None:
    found = loads(json.dumps(value).encode())
    assert loads(orjson.dumps(found)) == found
    text = (
        json.dumps(value, ensure_ascii=False)
        .encode("utf-16-le", "surrogatepass")
        .decode("utf-16-le", "replace")
    )
    assert found == json.loads(text)


def test_a_request_with_half_a_pair_is_spoken(live: Live) -> None:
    ask = {"input": f"Hello there {HIGH}.", "seed": 1, "response_format": "pcm", f"x{LOW}": 1}
    answer = live.http.post(
        "/v1/audio/speech", content=json.dumps(ask), headers={"Content-Type": "application/json"}
    )
    assert answer.status_code == 200
    plain = live.speech(input="Hello there \ufffd.", seed=1, response_format="pcm")
    assert answer.content == plain.content


def test_a_pair_in_two_messages_of_a_session_is_one_character(live: Live) -> None:
    with talk(live, seed=1) as session:
        whole_text, _ = session.say(f"Hello {SMILE} there.")
        for parts in ((f"Hello {HIGH}", f"{LOW} there."), (f"Hello {HIGH}{LOW} there.",)):
            for part in parts:
                session.send("input.text", text=part)
            session.send("input.done")
            events, _ = session.until("session.done", "error")
            assert events[-1]["type"] == "session.done"
            texts = [[s["text"] for s in done[-1]["segments"]] for done in (events, whole_text)]
            assert texts[0] == texts[1]
        session.send("input.text", text=f"Alone {HIGH}")
        session.send("input.text", text=" it is.")
        session.send("input.done")
        events, _ = session.until("session.done", "error")
        assert [s["text"] for s in events[-1]["segments"]] == ["Alone \ufffd it is."]


def test_a_path_parameter_is_not_empty(live: Live) -> None:
    answer = live.http.get("/v1/models/")
    assert (answer.status_code, answer.headers.get("location", "")[-10:]) == (307, "/v1/models")
    assert live.http.get("/v1/models/", follow_redirects=True).json()["object"] == "list"
    for path in ("/v1/audio/voices/", "/v1/audio/speech/"):
        assert live.http.get(path).status_code in (307, 405)


@pytest.mark.parametrize(
    "path",
    ["/v1/models", "/v1/audio/models", "/v1/audio/voices", "/health", "/ready", "/metrics", "/"],
)
def test_head_has_the_headers_of_get_and_no_body(path: str, live: Live) -> None:
    got, head = live.http.get(path), live.http.head(path)
    assert (head.status_code, head.content) == (200, b"")
    assert head.headers["content-type"] == got.headers["content-type"]
    assert live.http.head("/v1/models/nobody").status_code == 404
    assert live.http.head("/v1/audio/speech").status_code == 405
    assert live.http.get(path).status_code == 200  # the connection goes on


def test_a_seed_of_minus_one_is_none(live: Live) -> None:
    ask = {"input": "Hello.", "response_format": "pcm"}
    assert len({live.speech(**ask, seed=-1).headers["x-seed"] for _ in range(3)}) == 3
    assert live.speech(**ask, seed=-2).status_code == 400
