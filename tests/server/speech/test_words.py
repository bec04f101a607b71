"""The times of words over HTTP and WebSocket: in JSON, events and subtitles, and the same in each."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.helpers.server_live import Live, held, serving, toy
from tests.helpers.ws_talk import talk

TEXT = "One is here. Two, is here!"
LONG = {"max_frames": 24, "min_frames": 24}
ASK = {
    "input": TEXT,
    "seed": 8,
    "word_timestamps": True,
    "split_granularity": "sentence",
    "response_format": "pcm",
    **LONG,
}


@pytest.fixture(scope="module")
def words(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    with serving(tmp_path_factory.mktemp("voices"), toy(kind="dummy:toy-words")) as live:
        yield live


@pytest.fixture(scope="module")
def german(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    with serving(tmp_path_factory.mktemp("voices"), toy(languages=("german",))) as live:
        yield live


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    """A server of the same model, with an aligner that knows its language."""
    load = toy(languages=("german",))
    with serving(
        tmp_path_factory.mktemp("voices"), load, aligner="tests.helpers.aligners:even"
    ) as live:
        yield live


def events(body: str) -> list[dict]:
    lines = [line.removeprefix("data: ") for line in body.splitlines() if line.startswith("data: ")]
    return [json.loads(line) for line in lines]


def told(live: Live, **more: object) -> dict:
    return live.speech(**{**ASK, **more}).json()


def test_an_answer_with_words_is_json_and_names_each_of_the_input(words: Live) -> None:
    answer = told(words)
    assert [w["word"] for w in answer["words"]] == TEXT.split()
    assert [TEXT[w["start_char"] : w["end_char"]] for w in answer["words"]] == TEXT.split()
    assert [s["text"] for s in answer["segments"]] == ["One is here.", "Two, is here!"]
    first, second = answer["segments"]
    for word in answer["words"]:
        segment = first if word["start_char"] < second["start_char"] else second
        assert segment["start"] <= word["start"] <= word["end"] <= segment["end"]
    assert "ignored" not in answer


def test_the_list_of_models_says_whose_words_can_be_timed(
    words: Live, live: Live, german: Live, own: Live
) -> None:
    can_be_timed = [
        at.http.get("/v1/models").json()["data"][0]["word_timestamps"]
        for at in (words, live, german, own)
    ]
    assert can_be_timed == [True, True, False, True]


def test_times_follow_the_speed_at_which_the_audio_is_played(words: Live) -> None:
    usual, fast = told(words)["words"], told(words, speed=2.0)["words"]
    assert fast[1]["end"] == pytest.approx(usual[1]["end"] / 2, abs=2e-4)


@pytest.mark.parametrize("how", [{"stream": True}, {"stream_format": "sse"}])
def test_a_stream_has_an_event_for_each_word_behind_that_of_its_sentence(
    words: Live, how: dict
) -> None:
    stream_events = events(words.speech(**ASK, **how).text)
    kinds = [
        e["type"].removeprefix("speech.audio.")
        for e in stream_events
        if not e["type"].endswith("delta")
    ]
    assert kinds == ["segment", *["word"] * 3, "segment", *["word"] * 3, "done"]
    all_words = told(words)["words"]
    assert stream_events[-1]["words"] == [
        {k: e[k] for k in all_words[0]} for e in stream_events if e["type"] == "speech.audio.word"
    ]
    assert [w["word"] for w in stream_events[-1]["words"]] == [w["word"] for w in all_words]


@pytest.mark.parametrize(("kind", "mark"), [("srt", "-->"), ("vtt", "<00:"), ("ass", "{\\kf")])
def test_subtitles_mark_each_word_where_it_is_asked_for(words: Live, kind: str, mark: str) -> None:
    answer = words.speech(**ASK, timestamps=kind)
    subtitles = answer.json()["subtitles"]
    expected = len(TEXT.split()) - subtitles.count("-->") * (kind == "vtt")
    assert subtitles.count(mark) == expected
    url = f"/v1/audio/speech/{answer.headers['x-request-id']}/timestamps"
    marked = words.http.get(url, params={"format": kind, "words": True})
    assert marked.text == subtitles
    assert words.http.get(url, params={"format": "json"}).json()["words"] == answer.json()["words"]
    unmarked = words.speech(**{**ASK, "word_timestamps": False}, timestamps=kind)
    assert unmarked.json()["subtitles"] == words.http.get(url, params={"format": kind}).text
    assert unmarked.json()["words"] == answer.json()["words"]


def test_a_stream_of_bytes_has_none_but_they_can_be_asked_for_later(words: Live) -> None:
    answer = words.speech(**ASK, stream_format="audio")
    assert answer.headers["content-type"].startswith("audio/")
    outcome = words.http.get(f"/v1/audio/speech/{answer.headers['x-request-id']}").json()
    assert [w["word"] for w in outcome["words"]] == TEXT.split()


@pytest.mark.parametrize("granularity", ["auto", "sentence", "none"])
def test_the_times_of_words_change_no_audio(words: Live, granularity: str) -> None:
    ask = {**ASK, "split_granularity": granularity, "stream": False, "response_format": "wav"}
    plain = words.speech(**{**ask, "word_timestamps": False})
    assert told(words, **ask)["duration"] == float(plain.headers["x-audio-duration"])


def test_who_does_not_ask_for_words_gets_none(words: Live) -> None:
    answer = words.speech(**{**ASK, "word_timestamps": False}, timestamps="json").json()
    assert len(answer["segments"]) == 2
    assert "words" not in answer


def test_an_utterance_that_ran_on_has_the_words_of_the_try_that_is_heard(words: Live) -> None:
    """Every try does, and the last is kept. Without a seed the guard tries again."""
    ask = {
        "input": "ab cd.",
        "max_frames": 60,
        "min_frames": 60,
        "split_granularity": "none",
        "word_timestamps": True,
    }
    answer = words.speech(**ask).json()
    assert answer["finish_reason"] == "guard_length"
    again = words.speech(**ask, seed=answer["seed"]).json()
    assert [w["word"] for w in answer["words"]] == ["ab", "cd."]
    assert answer["words"] == again["words"]
    assert answer["words"][-1]["end"] <= answer["duration"]


def test_a_session_has_the_words_of_each_sentence_where_its_audio_ends(words: Live) -> None:
    options = {"seed": 8, **LONG}
    with talk(words, word_timestamps=True, split_granularity="sentence", **options) as t:
        messages, _ = t.say(TEXT)
    sentence_ends = [e for e in messages if e["type"] == "audio.done"]
    assert [[w["word"] for w in e["words"]] for e in sentence_ends] == [
        ["One", "is", "here."],
        ["Two,", "is", "here!"],
    ]
    assert sentence_ends[1]["words"][0]["start"] >= sentence_ends[1]["start"]
    assert [
        TEXT[w["start_char"] : w["end_char"]] for e in sentence_ends for w in e["words"]
    ] == TEXT.split()
    assert messages[-1]["words"] == [w for e in sentence_ends for w in e["words"]]
    assert "ignored" not in messages[-1]


def test_an_aligner_of_another_package_times_the_words_of_a_language_that_ours_does_not_know(
    own: Live,
) -> None:
    answer = told(own)
    assert [w["word"] for w in answer["words"]] == TEXT.split()
    first, second = answer["segments"]
    third = (first["end"] - first["start"]) / 3
    assert [w["start"] for w in answer["words"][:3]] == pytest.approx(
        [i * third for i in range(3)], abs=2e-3
    )
    assert answer["words"][3]["start"] == pytest.approx(second["start"], abs=1e-4)
    assert [
        w for e in events(own.speech(**ASK, stream=True).text) if (w := e.get("word"))
    ] == TEXT.split()


def test_a_language_that_no_aligner_knows_is_named(german: Live) -> None:
    answer = german.speech(**ASK)
    assert answer.status_code == 200
    assert "word_timestamps" in answer.headers["X-Ignored"]
    with talk(german, word_timestamps=True, **LONG) as t:
        messages, _ = t.say(TEXT)
    assert messages[-1]["ignored"] == [{"param": "word_timestamps"}]
    assert all("words" not in e for e in messages)


def test_what_was_heard_ends_with_a_word_while_it_is_spoken(own: Live) -> None:
    """By the times of the words so far, of a segment that has not ended."""
    with talk(
        own, word_timestamps=True, split_granularity="none", max_frames=300, min_frames=300
    ) as t:
        with held(own, frames=[20]):
            t.send("input.text", text=(text := "One is here, two is there"))
            t.send("input.done")
            t.until("audio.chunk")
            t.send("response.cancel", played_ms=1.0)
            assert t.until("response.cancelled")[0][-1]["heard_text"] == "One"
        t.send(
            "response.cancel", played_ms=1e9
        )  # all that was sent, which is how far the sender has come
        played_words = t.until("response.cancelled")[0][-1]["heard_text"].split()
        assert len(played_words) > 1
        assert played_words == text.split()[: len(played_words)]


def test_an_aligner_that_fails_ends_its_request_with_an_error(tmp_path: Path) -> None:
    with serving(tmp_path, aligner="tests.helpers.aligners:broken") as live:
        assert live.speech(**ASK).status_code == 500
        assert live.speech(**{**ASK, "word_timestamps": False}).status_code == 200
        with talk(live, word_timestamps=True, **LONG) as t:
            messages, _ = t.say(TEXT)
        assert "error" in [e["type"] for e in messages]
        assert live.idle()
