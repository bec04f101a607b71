"""A dash and an ellipsis inside a sentence pause for a family that makes no pause there itself."""

from __future__ import annotations

import pytest

from stentor.text.pauses import PAUSES
from stentor.text.segments import Reading
from stentor.text.sentences import split


@pytest.mark.parametrize(
    ("text", "pieces"),
    [
        (
            "They knocked — but no one came.",
            [("They knocked —", "aside"), ("but no one came.", None)],
        ),
        ("They knocked—but no one came.", [("They knocked—", "aside"), ("but no one came.", None)]),
        ("They knocked -- no one came.", [("They knocked --", "aside"), ("no one came.", None)]),
        ("They knocked - no one came.", [("They knocked -", "aside"), ("no one came.", None)]),
        ("They knocked... and waited.", [("They knocked...", "hesitation"), ("and waited.", None)]),
        ("They knocked… and waited.", [("They knocked…", "hesitation"), ("and waited.", None)]),
        ("Open from Monday – Friday.", [("Open from Monday – Friday.", None)]),
        ("From 1 – 5, A-B and 3—4.", [("From 1 – 5, A-B and 3—4.", None)]),
        ("I — I do not know.", [("I — I do not know.", None)]),
        ("It is well-known, no?", [("It is well-known, no?", None)]),
    ],
)
def test_a_piece_of_the_built_in_voice_ends_behind_a_dash(
    text: str, pieces: list[tuple[str, str | None]]
) -> None:
    got = Reading(phonemes=True, dashes=True).segments(text, 400, "sentence")
    wanted = [(part, None if pause is None else PAUSES[pause]) for part, pause in pieces]
    assert [(p.text, p.after) for p in got] == wanted


def test_other_families_make_their_own_pauses_at_dashes() -> None:
    assert len(split("They knocked — but no one came... or did they?", 400, "sentence")) == 1


def test_a_text_that_is_to_stay_whole_is_not_cut_at_dashes() -> None:
    text = "They knocked — but no one came."
    assert len(Reading(phonemes=True, dashes=True).segments(text, 400, "none")) == 1
