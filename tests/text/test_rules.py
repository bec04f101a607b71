"""Rules of the English front end that look at a text, and how much all of it looks at."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stentor.text import front_end
from stentor.text.english.notations import RULES, spoken_window, windows
from stentor.text.english.notations.rule import features
from stentor.text.segments import Reading
from stentor.text.trace import Trace

HERE = Path(__file__).parent
TEXTS = [
    line.split(" => ")[0].replace("⏎", "\n")
    for name in ("readings.txt", "pasted.txt")
    for line in (HERE / name).read_text(encoding="utf-8").splitlines()
    if " => " in line
]
PIECES = (
    "1 22 305 2024 0.5 1,234 1.5 $ £ € % ° # @ & / - – — : ; . , ! ? ( ) ' \" ^ = < > + * _ x × A B I V XII p pp. Ch. "
    "ch. Eq. Dr. St. No. no. etc. vs e.g. a.k.a. Ph.D Jan Feb. Mon Tue, am p.m. EST UTC km/h mph kg per IT US AWS WWII "
    "C++ Node.js file.py www x.com http self. page chapter Part Henry Hwy NE Apt IPv4 a.m. ET E T don't dont 's ISBN Z T"
)


@pytest.mark.parametrize("number", range(len(RULES)))
def test_a_rule_needs_only_what_all_that_it_matches_has(number: int) -> None:
    rule = RULES[number]
    for text in TEXTS:
        for window in windows(Trace.of(text)):
            assert rule.may_match(features(window.text)) or not rule.pattern.search(window.text), (
                window.text
            )


@settings(max_examples=500, deadline=None)
@given(st.lists(st.sampled_from(PIECES.split()), max_size=8), st.booleans())
def test_a_text_without_what_a_rule_needs_has_no_match(pieces: list[str], apart: bool) -> None:
    text = (" " if apart else "").join(pieces)
    present = features(text)
    for rule in RULES:
        assert rule.may_match(present) or not rule.pattern.search(text), rule.pattern.pattern


def test_prose_is_looked_at_by_few_rules() -> None:
    present = features("The birch canoe slid on the smooth planks, and nobody saw it go.")
    assert sum(rule.may_match(present) for rule in RULES) < 0.15 * len(RULES)


@pytest.mark.parametrize(
    "text",
    ["The old house stood, at 5:30 p.m., on a hill. ", "- **Ann** paid $5 for 3 km. \n", "a-b/"],
)
def test_steps_of_the_front_end_grow_with_the_text(
    text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Characters that patterns look at, of the front end and of the clean-up: four times a text takes four times as many."""
    looked = []
    real = Trace.sub

    def counted(trace: Trace, pattern: re.Pattern[str], action) -> Trace:
        looked.append(len(trace.text))
        return real(trace, pattern, action)

    monkeypatch.setattr(Trace, "sub", counted)
    read = front_end("english-phonemes")

    def steps(size: int) -> int:
        looked.clear()
        for segment in Reading(phonemes=True, dashes=True).segments(
            (text * size)[:size], 400, "auto"
        ):
            read(segment.spoken)
        return sum(looked)

    assert steps(20_000) <= 4.2 * steps(5_000)


def test_a_window_is_read_by_every_rule_once(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    real = Trace.sub
    monkeypatch.setattr(Trace, "sub", lambda t, p, a: (calls.append(p), real(t, p, a))[1])
    spoken_window(
        Trace.of("At 5:30 p.m. on Jan. 3, 2024, Dr. Smith paid $5 for 3/4 lb of tea & 10% off.")
    )
    patterns = [rule.pattern for rule in RULES]
    assert max(calls.count(p) for p in patterns) == 1
