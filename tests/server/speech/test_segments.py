"""Long text as segments: where it is cut, how segments are joined, and their times."""

from __future__ import annotations

import base64
from itertools import pairwise

import numpy as np
import pytest

from tests.helpers.server_live import Live, pcm

LONG_TEXT = (
    "Dr. Smith paid 3.50 for it. That was on Monday, the 1. of May! Was it? "
    "第一句话。第二句话！ A new paragraph follows.\n\nAnd here it is, with J. R. R. Tolkien in it. The end."
)


def test_long_input_is_spoken_in_pieces_joined_without_clicks_and_timed(live: Live) -> None:
    ask = {
        "input": LONG_TEXT,
        "seed": 5,
        "split_granularity": "sentence",
        "guard": False,
        "voice": "low",
    }
    told = live.speech(**ask, timestamps="json", response_format="pcm").json()
    samples = pcm(base64.b64decode(told["audio"]))
    texts = [s["text"] for s in told["segments"]]
    assert texts == [
        "Dr. Smith paid 3.50 for it.", "That was on Monday, the 1. of May!", "Was it?", "第一句话。", "第二句话！",
        "A new paragraph follows.", "And here it is, with J. R. R. Tolkien in it.", "The end.",
    ]  # fmt: skip
    for s in told["segments"]:
        assert LONG_TEXT[s["start_char"] : s["end_char"]] == s["text"]
    gaps = [b["start"] - a["end"] for a, b in pairwise(told["segments"])]
    assert gaps == pytest.approx([0.15] * 5 + [0.4, 0.15], abs=0.005)
    for before, after in pairwise(told["segments"]):
        silence = samples[round(before["end"] * 600) : round(after["start"] * 600)]
        assert np.abs(silence).max() == 0
        for edge in (samples[round(before["end"] * 600) - 1], samples[round(after["start"] * 600)]):
            assert abs(edge) < 0.02  # faded, not cut
    assert told["segments"][-1]["end"] * 600 == pytest.approx(len(samples), abs=2)
    streamed = pcm(live.speech(**ask, stream_format="audio", response_format="pcm").content)
    assert len(streamed) == len(samples)
    assert np.abs(streamed - samples).max() < 2.1 / 32768


def test_pieces_continue_the_voice_of_the_one_before(live: Live) -> None:
    ask = {"seed": 5, "response_format": "pcm", "guard": False, "min_frames": 40}
    both = pcm(
        live.speech(**ask, input="One is here. Two is here.", split_granularity="sentence").content
    )
    alone = pcm(live.speech(**ask, input="Two is here.").content)
    second = both[-len(alone) :]
    assert np.abs(second[3:] - alone[3:]).max() > 0.01  # it has taken up the first one's sound


def test_subtitles_come_in_the_answer_and_afterwards(live: Live) -> None:
    ask = {"input": "One is here. Two is &here.", "seed": 5, "response_format": "pcm"}
    answer = live.speech(**ask, timestamps="srt")
    assert answer.json()["subtitles"].startswith("1\n00:00:00,000 --> 00:00:")
    id = answer.headers["x-request-id"]
    vtt = live.http.get(f"/v1/audio/speech/{id}/timestamps", params={"format": "vtt"})
    assert vtt.text.startswith("WEBVTT\n\n00:00:00.000 --> ")
    assert "&amp;here" in vtt.text
    assert live.http.get(f"/v1/audio/speech/{id}/timestamps").text == answer.json()["subtitles"]
    sse = live.speech(**ask, stream=True, timestamps="json").text
    assert sse.count("event: speech.audio.segment") >= 1
    assert '"segments"' in sse.split("event: speech.audio.done")[1]
