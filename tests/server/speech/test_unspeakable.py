"""Text that cannot be spoken: a short silence in its place, and the answer names it."""

from __future__ import annotations

import asyncio
import base64
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stentor.speech.live_text import TextFeed
from stentor.speech.speaking import UNSPOKEN_SECONDS
from stentor.text.pauses import PAUSES
from tests.helpers.server_live import Live, decoded, pcm, serving
from tests.helpers.ws_talk import talk

RATE = 600  # Hz of the toy
SILENT = round(UNSPOKEN_SECONDS * RATE)
INVISIBLE = "\u200b"  # left out where anything else is spoken, as in a whole text
SIGNS = ["😀", "...", "—", INVISIBLE]
SENTENCES = {
    "split_granularity": "sentence",
    "response_format": "pcm",
    "seed": 3,
    "max_new_tokens": 4,
}


def named(answer: Any) -> list[dict[str, str]]:
    return [{"param": "input", "text": t} for t in answer]


@pytest.mark.parametrize("text", SIGNS)
def test_alone_it_is_a_short_silence(live: Live, text: str) -> None:
    for how in ({}, {"stream_format": "audio"}):
        answer = live.speech(input=text, response_format="pcm", **how)
        assert answer.status_code == 200
        assert "input=" in answer.headers["x-ignored"]
        assert pcm(answer.content).tolist() == [0.0] * SILENT
    assert live.speech(input=f" {text}\n", response_format="mp3").status_code == 200
    assert live.idle()


def test_only_wholly_empty_input_is_a_400(live: Live) -> None:
    for text in ("", " ", "\n\t\r\n", "\u3000"):
        assert live.speech(input=text).status_code == 400


@pytest.mark.parametrize("how", [{}, {"stream_format": "audio"}])
def test_a_paragraph_of_signs_between_others_ends_nothing(live: Live, how: dict) -> None:
    """The front end, the toy's, cannot read it. In a stream, the header that goes first names what comes last."""
    pieces = ["One.", "你", "Two.", "好"]
    model = live.tts._model
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(model, "speakable", lambda text, check: text.isascii())
        answer = live.speech(input="One. 你。 Two. 好。", **SENTENCES, **how)
    assert answer.status_code == 200
    assert answer.headers["x-ignored"] == 'input="%E4%BD%A0%E3%80%82", input="%E5%A5%BD%E3%80%82"'
    spoken = [live.speech(input=p, **SENTENCES).content for p in pieces[::2]]
    pauses = round(PAUSES["stop"] * RATE) * 3
    assert len(pcm(answer.content)) == sum(len(pcm(s)) for s in spoken) + 2 * SILENT + pauses


def test_events_tell_it_in_its_place(live: Live) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(live.tts._model, "speakable", lambda text, check: text.isascii())
        answer = live.speech(input="你。 One. 好。", stream_format="sse", **SENTENCES)
    events = [
        json.loads(line[6:]) for line in answer.text.splitlines() if line.startswith("data: ")
    ]
    told = [
        (e["text"], e["start_char"], e["end_char"])
        for e in events
        if e["type"] == "speech.audio.ignored"
    ]
    assert told == [("你。", 0, 2), ("好。", 8, 10)]
    assert events[-1]["ignored"] == named(["你。", "好。"])
    kinds = [e["type"].rsplit(".", 1)[1] for e in events]
    assert (
        kinds.index("ignored") < len(kinds) - kinds[::-1].index("delta") - 1 < kinds.index("done")
    )


def test_a_batch_speaks_the_other_texts(live: Live) -> None:
    body = {"items": ["😀", "One."], "response_format": "pcm"}
    silent, spoken = live.http.post("/v1/audio/speech/batch", json=body).json()["results"]
    assert (silent["status"], spoken["status"]) == ("success", "success")
    assert silent["ignored"] == named(["😀"])
    assert len(base64.b64decode(silent["audio"])) == 2 * SILENT
    assert "ignored" not in spoken


@pytest.mark.parametrize("text", SIGNS)
@pytest.mark.parametrize("granularity", ["auto", "none", "sentence"])
def test_over_a_websocket_it_is_a_piece_too(live: Live, text: str, granularity: str) -> None:
    with talk(live, split_granularity=granularity) as t:
        events, audio = t.say(text)
        assert [e["type"] for e in events] == [
            "audio.start",
            "input.ignored",
            "audio.done",
            "session.done",
        ]
        assert (events[1]["text"], events[-1]["ignored"]) == (text, named([text]))
        assert pcm(audio).tolist() == [0.0] * SILENT
        events, _ = t.say("Hello. ", text)
        assert events[-1]["type"] == "session.done"
        # a dash goes on with the sentence before it, as in a whole text
        joins = granularity == "none" or text in (INVISIBLE, "—")
        assert ("ignored" in events[-1]) != joins
        events, audio = t.say("Hello there.")
        assert "ignored" not in events[-1]
        assert np.abs(pcm(audio)).max() > 0
        events, audio = t.say(" \n ")
        assert (events[-1]["total_sentences"], audio) == (0, b"")


def test_live_text_of_signs_is_a_piece_too() -> None:
    feed = TextFeed("auto", 400, live=True)
    asyncio.run(feed.write("Hello there. "))
    asyncio.run(feed.flush())
    asyncio.run(feed.write(" 😀"))
    asyncio.run(feed.end())
    assert [(s.start, s.text) for s, _ in feed._segments] == [(0, "Hello"), (14, "😀")]


def test_the_first_spoken_piece_keeps_what_a_first_piece_has(tmp_path: Path) -> None:
    """Instructions are for the piece that sets the voice. A silence sets none."""
    seen: list[str | None] = []
    with serving(tmp_path) as live:
        model = live.tts._model
        prompt = model.prompt
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(model, "speakable", lambda text, check: text.isascii())
            patch.setattr(
                model, "prompt", lambda r, e: (seen.append(r.instructions), prompt(r, e))[1]
            )
            answer = live.speech(
                input="你。 One. Two.", instructions="Calm.", stream_format="audio", **SENTENCES
            )
    assert answer.status_code == 200
    assert seen == ["Calm.", None]


def test_every_container_holds_the_silence(live: Live) -> None:
    for format in ("wav", "mp3", "flac", "opus", "aac"):
        for how in ({"stream": False}, {"stream_format": "audio"}):
            samples, _ = decoded(live.speech(input="…", response_format=format, **how).content)
            assert len(samples)
            assert np.abs(samples).max() < 1e-3
