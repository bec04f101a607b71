"""integrations/pipecat-stentor, driven by Pipecat's test tool in a process of its own."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.other_pythons import run_python
from tests.helpers.patience import until
from tests.helpers.server_live import Live

DRIVE = Path(__file__).parent / "drive_pipecat.py"
WORDS = ["One", "is", "here.", "Two,", "is", "here!"]


@pytest.fixture(scope="module")
def found(words: Live, deaf: Live) -> dict[str, Any]:
    """Output of the program. It is run once for all tests."""
    cancelled = words.tts.engine.stats.cancelled
    said: dict[str, Any] = json.loads(
        run_python("pipecat", DRIVE, words.url, deaf.url).splitlines()[-1]
    )
    return {**said, "cancelled": words.tts.engine.stats.cancelled - cancelled}


def test_text_is_spoken_as_it_comes_and_its_words_have_their_times(found: dict[str, Any]) -> None:
    spoken = found["spoken"]
    assert spoken["words"] == WORDS
    assert spoken["seconds"] == sorted(spoken["seconds"])
    assert 0.3 < spoken["seconds"][3] < spoken["samples"] / 24000
    assert spoken["order"] == ["started", "stopped"]
    assert found["streamed"] == spoken


def test_turns_follow_one_another(found: dict[str, Any]) -> None:
    twice = found["twice"]
    assert (twice["words"], twice["contexts"], twice["errors"]) == (WORDS, 2, [])
    assert twice["order"] == ["started", "stopped"] * 2


def test_settings_change_between_turns(found: dict[str, Any]) -> None:
    assert found["fast"]["words"] == WORDS * 2
    assert 1.4 < found["fast"]["samples"] / found["spoken"]["samples"] < 1.6


def test_what_is_said_inside_a_turn_leaves_the_times_of_the_turn_right(
    found: dict[str, Any],
) -> None:
    aside = found["aside"]
    assert (sorted(aside["words"]), aside["contexts"], aside["errors"]) == (
        sorted([*WORDS[:3] * 2, "Two!"]),
        2,
        [],
    )
    assert aside["seconds"] == sorted(aside["seconds"])


def test_a_model_that_does_not_know_its_words_gives_sentences(found: dict[str, Any]) -> None:
    assert found["sentences"]["words"] == ["One is here.", "Two, is here!"]


def test_an_interruption_cancels_the_work_and_the_next_turn_is_spoken(
    found: dict[str, Any], words: Live
) -> None:
    cut = found["interrupted"]
    assert 6 < len(cut["words"]) < 1000
    assert cut["words"][-1] == "Two!"
    assert cut["order"] == ["started", "started", "stopped"]
    assert cut["errors"] == []
    assert found["cancelled"] >= 1
    assert until(words.idle)


@pytest.mark.parametrize(
    ("case", "error"), [("refused", "nobody"), ("nobody", "nobody"), ("unreachable", "connect")]
)
def test_every_turn_ends_also_where_the_server_refuses_or_is_not_there(
    found: dict[str, Any], case: str, error: str
) -> None:
    turn = found[case]
    assert error in turn["errors"][0]
    assert turn["order"].count("started") == turn["order"].count("stopped")
