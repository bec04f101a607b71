"""Dialogues: marks in a text, and lists of turns."""

from __future__ import annotations

from typing import Any

import pytest

from stentor.errors import InvalidRequest
from stentor.speech.script import MAX_TURNS, MAX_VOICES, Turn, marked, scripted


def test_a_text_without_marks_is_one_turn_as_it_is() -> None:
    for text in (
        "Hello. ",
        "",
        "[voice] [voice:] [voice : x] [pause 1s] [a](/b/)",
        "[voice: a\nb]",
        "[voice: [x]]",
    ):
        assert marked(text) == [Turn(text)]


def test_marks_say_who_speaks_and_where_their_text_stands() -> None:
    text = "First. [voice: anna] Did you? [VOICE:Ben the 2nd ]No.[voice: anna][voice: ben]\n [voice:x]Bye."
    found = marked(text)
    assert [(t.voice, t.text) for t in found] == [
        (None, "First. "), ("anna", " Did you? "), ("Ben the 2nd", "No."), ("x", "Bye.")
    ]  # fmt: skip
    for turn in found:
        assert text[turn.start :].startswith(turn.text)


def test_marks_alone_are_no_text() -> None:
    with pytest.raises(InvalidRequest, match="text: has no words besides its marks"):
        marked(" [voice: a] [voice: b]\n")


def test_ten_thousand_marks_take_no_time_that_grows_with_their_square() -> None:
    assert len(marked("[voice: a] x " * 10_000)) == 10_000
    assert len(marked("[voice: " * 100_000)) == 1


def test_a_script_has_its_voices_and_pauses() -> None:
    assert scripted([{"text": "Hi."}, {"voice": " a ", "text": "Ho.", "pause": 2}, {"voice": "", "text": "x", "pause": None}]) == [
        Turn("Hi.", field="script[0]"), Turn("Ho.", "a", 2.0, field="script[1]"), Turn("x", field="script[2]")
    ]  # fmt: skip


WRONG: list[tuple[Any, str]] = [
    ("Hi.", "script: must be a list of turns, got str"),
    ({"text": "Hi."}, "script: must be a list of turns, got dict"),
    (7, "script: must be a list of turns, got int"),
    ([], "script: must not be empty"),
    (["Hi."], "script[0]: must be an object of voice, text, pause, got str"),
    ([None], "script[0]: must be an object of voice, text, pause, got NoneType"),
    ([{"text": "x"}, {}], "script[1].text: must be a string, got NoneType"),
    ([{"text": ["x"]}], "script[0].text: must be a string, got list"),
    ([{"text": " \n"}], "script[0].text: must not be empty"),
    ([{"text": "\ud800"}], "script[0].text: is not valid Unicode"),
    ([{"text": "x", "voice": 3}], "script[0].voice: must be a string, got int"),
    ([{"text": "x", "voice": "\udfff"}], "script[0].voice: is not valid Unicode"),
    ([{"text": "x", "pause": -1}], "script[0].pause: must be seconds from 0 to 10, got -1"),
    ([{"text": "x", "pause": 10.5}], "script[0].pause: must be seconds from 0 to 10"),
    ([{"text": "x", "pause": float("nan")}], "script[0].pause: must be seconds from 0 to 10"),
    ([{"text": "x", "pause": True}], "script[0].pause: must be seconds from 0 to 10"),
    ([{"text": "x", "pause": "1s"}], "script[0].pause: must be seconds from 0 to 10"),
    (
        [{"text": "x", "speaker": "a"}],
        "script[0].speaker: is not known; a turn has voice, text, pause",
    ),
    ([{"text": "x"}] * (MAX_TURNS + 1), f"script: has {MAX_TURNS + 1} turns"),
    (
        [{"text": "x", "voice": str(i)} for i in range(MAX_VOICES + 1)],
        f"script: has {MAX_VOICES + 1} voices",
    ),
    ([{"text": "x", "pause": 10}] * 13, "script: has pauses of 130 s together"),
]


@pytest.mark.parametrize(("given", "says"), WRONG, ids=[says[:60] for _, says in WRONG])
def test_what_is_wrong_with_a_script_is_named(given: Any, says: str) -> None:
    with pytest.raises(InvalidRequest) as e:
        scripted(given)
    assert str(e.value).startswith(says)
