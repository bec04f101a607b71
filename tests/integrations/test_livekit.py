"""integrations/livekit-plugins-stentor, driven by LiveKit Agents in a process of its own."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.other_pythons import run_python
from tests.helpers.patience import until
from tests.helpers.server_live import Live

DRIVE = Path(__file__).parent / "drive_livekit.py"


@pytest.fixture(scope="module")
def found(words: Live, deaf: Live) -> dict[str, Any]:
    """Output of the program. It is run once for all tests."""
    cancelled = words.tts.engine.stats.cancelled
    said: dict[str, Any] = json.loads(
        run_python("livekit", DRIVE, words.url, deaf.url).splitlines()[-1]
    )
    return {**said, "cancelled": words.tts.engine.stats.cancelled - cancelled}


def test_text_is_spoken_as_it_comes_and_its_words_have_their_times(found: dict[str, Any]) -> None:
    streamed = found["streamed"]
    assert streamed["words"] == ["One", " is", " here.", " Two,", " is", " here!"]
    assert streamed["ordered"]
    assert streamed["final"] == 1
    assert found["the same"]
    assert found["whole"] - streamed["samples"] in (
        0,
        240,
    )  # LiveKit may end a whole with 10 ms of silence
    assert streamed["samples"] > 24000 * 0.4


def test_options_change_between_streams(found: dict[str, Any]) -> None:
    assert 0.4 < found["fast"] / found["whole"] < 0.6


def test_a_model_that_does_not_know_its_words_gives_sentences(found: dict[str, Any]) -> None:
    assert "".join(found["sentences"]) == "One is here. Two, is here!"


def test_a_refusal_is_an_error_that_is_not_tried_again(found: dict[str, Any]) -> None:
    assert found["unknown voice"]["status"] == 400
    assert "nobody" in found["unknown voice"]["message"]
    assert not found["unknown voice"]["retryable"]


def test_an_interruption_cancels_the_work_on_the_server(found: dict[str, Any], words: Live) -> None:
    assert found["interrupted"] > 0
    assert until(words.idle)
    assert found["cancelled"] >= 1


def test_the_history_of_a_session_holds_what_was_heard(found: dict[str, Any]) -> None:
    session = found["session"]
    assert session["heard"] == "One is here. Two, is here!"
    assert session["prefix"]
    assert 15 <= session["cut"] < session["whole"] / 2
