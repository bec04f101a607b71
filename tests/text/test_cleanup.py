"""The clean-up of pasted text: its steps are options, hostile text is bounded, and files that are no text are named."""

from __future__ import annotations

import re
import sys
import time
import unicodedata
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stentor.errors import InvalidRequest
from stentor.text.cleanup import ALL, NONE, STEPS, cleaned, steps
from stentor.text.files import decoded
from stentor.text.segments import Reading

MARKS = [
    "<p>",
    "</p>",
    "<b>",
    "&amp;",
    "**",
    "*",
    "_",
    "`",
    "~~",
    "==",
    "[a](b)",
    "|",
    "-",
    "#",
    ">",
    "$x^2$",
    "\\(",
    "²",
    "[^1]",
    "-",
    "\n",
    "\xad",
    "ﬁ",
    "´",
    "a",
    "Word",
    "word.",
    "1.",
    "[pause]",
]


@settings(max_examples=200, deadline=None)
@given(st.lists(st.sampled_from(MARKS), max_size=40), st.sampled_from(["", " "]))
def test_any_text_keeps_the_places_of_its_characters(parts: list[str], between: str) -> None:
    text = between.join(parts)
    draft = cleaned(text)
    assert len(draft.text) == len(draft.starts) == len(draft.ends)
    assert draft.starts == sorted(draft.starts)
    assert draft.ends == sorted(draft.ends)
    assert all(0 <= a <= b <= len(text) for a, b in zip(draft.starts, draft.ends, strict=True))
    ends = [
        0,
        *(
            e
            for s in Reading().segments(text + " word", 40, "sentence")
            for w in s.words
            for e in (w.start, w.end)
        ),
    ]
    assert all(0 <= e <= len(text) + 5 for e in ends)


@pytest.mark.parametrize("name", STEPS)
def test_a_step_that_is_not_asked_for_is_not_taken(name: str) -> None:
    given_text = {
        "characters": "ﬁne",
        "formulas": "$n^2$ is it",
        "html": "red<br>blue",
        "layout": "[00:01.00]One is.\n[00:02.00]Two is.",
        "notes": "word.[1] Next",
        "markdown": "a **b**",
        "lines": "Red\nBlue",
    }[name]
    others = tuple(step for step in STEPS if step != name)
    assert cleaned(given_text, others).text == given_text
    assert cleaned(given_text, (name,)).text != given_text


def test_steps_are_named_and_run_in_their_own_order() -> None:
    assert steps(ALL) == tuple(STEPS)
    assert steps(NONE) == ()
    assert steps("lines, html") == ("html", "lines")
    with pytest.raises(InvalidRequest, match="must be all, none or some of") as e:
        steps("html,magic")
    assert e.value.param == "cleanup"


def test_a_text_of_signs_only_stays_as_it_is() -> None:
    assert cleaned("** <br> **").text == "** <br> **"


def test_no_invisible_character_of_unicode_is_left() -> None:
    known = [chr(i) for i in range(sys.maxunicode + 1) if unicodedata.category(chr(i)) == "Cf"]
    joiners = "\u200c\u200d"
    assert cleaned("a" + "b".join(known) + "c").text == "a" + "b" * (len(known) - 1) + "c"
    for scripts in ("می\u200cخواهم", "क\u094d\u200dष", "👩\u200d🚀"):
        assert any(c in cleaned(scripts + " ok").text for c in joiners)


@pytest.mark.parametrize("hyphen", ["\ufffe", "\x02"])
def test_words_that_pdfium_cut_at_the_ends_of_lines_are_joined(hyphen: str) -> None:
    text = f"The ferry cros{hyphen}sed the long{hyphen}lost bay, past forty{hyphen}two gulls."
    assert cleaned(text).text == "The ferry crossed the long-lost bay, past forty-two gulls."


def test_control_characters_are_dropped_and_spaces_are_not() -> None:
    controls = [chr(i) for i in range(sys.maxunicode + 1) if unicodedata.category(chr(i)) == "Cc"]
    silent = [c for c in controls if not c.isspace() and c != "\x02"]
    assert len(silent) == 54
    assert cleaned("a" + "b".join(silent) + "c").text == "a" + "b" * (len(silent) - 1) + "c"
    assert cleaned("one\x1ftwo\x0bthree").text.split() == ["one", "two", "three"]
    assert cleaned("left\uffff right\ufdd0").text == "left right"


def test_colours_of_a_terminal_are_not_read() -> None:
    text = "\x1b[1;31mFailed\x1b[0m in \x1b[38;5;12mtwo\x1b[m places.\x1b[K"
    assert cleaned(text).text == "Failed in two places."


HOSTILE = [
    "\x1b[",
    "\x02",
    "<",
    "<a_",
    '<a_b="',
    "<!--",
    "&",
    "&#",
    "[",
    "[a](",
    "![",
    "*",
    "**a",
    "*a_",
    "`",
    "`a",
    "~~",
    "==",
    "==a",
    "$",
    "$a",
    "\\(",
    "\\[",
    "\\frac{",
    ">_",
    "-_",
    "#_",
    "⏎",
    "Ab⏎",
    "a-⏎",
    "ab-⏎cd_",
    "qz-⏎qx_",
    "[^1]",
    "²",
    "[1]",
    "</",
    "<script>",
    "<sup>",
    "<br>",
    "***⏎",
    "*_*_*⏎⏎",
    "1._",
    "\xad",
    "a´",
    "```⏎",
    "__-_a⏎",
    "<li>",
    "|",
    "|_a_",
    "|_a_|⏎|-|⏎",
    "[a]:_/x⏎",
    "{",
    "Ab⏎⏎",
    "#_a⏎⏎",
    "II.⏎",
    "&amp;",
]


def cpu_seconds(work: Callable[[], object]) -> float:
    """CPU time, the best of five."""
    took = []
    for _ in range(5):
        start = time.process_time()
        work()
        took.append(time.process_time() - start)
    return min(took)


@pytest.mark.parametrize("unit", HOSTILE)
def test_hostile_text_is_cleaned_in_linear_time(unit: str) -> None:
    """20,000 characters took 0.15 s at most when this was written. What is quadratic takes seconds."""
    text = (unit.replace("_", " ").replace("⏎", "\n") * 20_000)[:20_000]
    assert len(cleaned(text).text) <= 2 * len(text)
    assert cpu_seconds(lambda: cleaned(text)) < 1.0


@pytest.mark.parametrize(
    "unit",
    [
        "The old house stood on a hill above the river, and nobody had lived in it for years.\n",
        "<p>One <b>bold</b> word &amp; more of the same paragraph, which goes on.</p>\n",
        "This is **bold** and `code`, with [a link](https://example.com/a).\n\n",
    ],
)
def test_usual_text_costs_no_more_than_thirty_looks_at_each_of_its_characters(unit: str) -> None:
    """Twenty of them take a tenth of a second for 20,000 characters where this was written. The text with links costs 13,
    and 20 beside four processes that fill both cores and the memory's bus. The others cost 4."""
    text = (unit * 20_000)[:20_000]
    look = cpu_seconds(lambda: [found.group().casefold() for found in re.finditer(r"\w|\W", text)])
    assert cpu_seconds(lambda: cleaned(text)) <= 30 * look


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-16-le", "utf-16-be"])
def test_a_file_of_text_is_read_however_it_is_encoded(encoding: str) -> None:
    assert decoded("Grüße aus Köln.\n".encode(encoding), "'x.txt'", "file") == "Grüße aus Köln.\n"


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"caf\xe9", "'x' is not UTF-8 text: byte 3 is 0xe9"),
        (b"\xff\xfea", "'x' is not text"),
        (b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR\0\0", "'x' is not text"),
        (b"PK\x03\x04\0\0\0\0\x01\x02" * 20, "'x' is not text"),
    ],
)
def test_a_file_that_is_no_text_is_named_in_one_line(data: bytes, why: str) -> None:
    with pytest.raises(InvalidRequest) as e:
        decoded(data, "'x'", "file")
    assert e.value.message == why
    assert e.value.param == "file"


def test_nothing_of_the_room_needs_a_model(tmp_path: Path) -> None:
    import subprocess

    code = "import stentor.text.segments, sys; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
