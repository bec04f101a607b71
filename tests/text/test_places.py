"""Where segments and words stand in the given text, whatever marks say instead of what they stand for."""

from __future__ import annotations

import re
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stentor.text.cleanup import cleaned
from stentor.text.lexicon import Lexicon
from stentor.text.segments import Reading
from stentor.text.sentences import GRANULARITIES

LONG = " ".join(["World Wide Web Consortium"] * 20)
MARKED = (
    f'We ask <sub alias="{LONG}">W3C</sub> now. And then <say-as interpret-as="characters">HTML5</say-as> ends.',
    'A <phoneme ph="h ə l oʊ w ɜː l d">x</phoneme>. B <sub alias="abc">xyz</sub>, <sub alias="a b c">HTML5</sub>.',
    'One <sub alias="">W</sub>. <s>Two</s><s>three</s> &amp; four. <p>Five <break time="1s"/>six</p>',
    "Call <say-as interpret-as=\"telephone\">555-1234</say-as> on <say-as interpret-as='date' format='dmy'>1/2/2020</say-as>.",
    f'<sub alias="{LONG}. {LONG}. {LONG}.">W</sub>',
    "SQL and sql's [word](/wɜːd/) with SQL.",
    "**Bold** words, `x^2`, H<sub>2</sub>O and 20 %. <b>More</b> of\n\n- one\n- two\n\n| a | b |\n|---|---|\n| 1 | 2 |",
)
LEXICON = Lexicon({"sql": "structured query language", "w": "/ˈdʌbəljuː/"})


def check(text: str, reading: Reading, granularity: str, most: int = 60) -> None:
    """Segments lie inside the text and follow each other, and words are pieces of it."""
    before, word_before = 0, 0
    for segment in reading.segments(text, most, granularity):
        assert before <= segment.start <= segment.end <= len(text), (text, segment)
        before = segment.end
        for word in segment.words:
            assert word_before <= word.start <= word.end <= len(text), (text, word)
            assert word.text.strip(), (text, word)
            bare = re.sub(r"[^\w]", "", word.text)
            plain = re.sub(r"<[^<>]*>|\(/[^/\n]*/\)|[^\w]", "", text[word.start : word.end])
            assert bare == plain, (text, word)
            word_before = word.start


@pytest.mark.parametrize("granularity", GRANULARITIES)
@pytest.mark.parametrize("phonemes", [False, True])
@pytest.mark.parametrize("text", MARKED)
def test_segments_follow_each_other_inside_the_text(
    text: str, phonemes: bool, granularity: str
) -> None:
    for lexicon in (None, LEXICON):
        check(text, Reading(phonemes=phonemes, lexicon=lexicon), granularity)


def test_a_word_that_stands_for_others_is_itself() -> None:
    words = [w for s in Reading().segments(MARKED[1], 400, "none") for w in s.words]
    assert [w.text for w in words] == ["A", "x.", "B", "xyz,", "HTML5", "HTML5", "HTML5."]


PIECES = st.sampled_from(
    [
        "Hello. ", "a ", "W3C", "5 ", "! ", "\n\n", ", ", "<p>", "</p>", "<s>", "</s>", "&amp;", '<break time="1s"/>',
        "[pause 1s]", "[x](/ks/)", '<sub alias="World Wide Web">', "</sub>", '<sub alias="x">', "x^2 ", "**", "- one\n",
        '<say-as interpret-as="characters">', "</say-as>", '<phoneme ph="a b">', "</phoneme>", "sql ", "—", "<b>", "</b>",
        "$1,000.50 ", "http://a.example/b ", "。", "你好", "<", ">",
    ]
)  # fmt: skip


@given(
    st.lists(PIECES, max_size=25).map("".join),
    st.booleans(),
    st.sampled_from(GRANULARITIES),
    st.sampled_from([8, 60]),
)
def test_segments_of_any_text_follow_each_other_inside_it(
    text: str, phonemes: bool, granularity: str, most: int
) -> None:
    reading = Reading(phonemes=phonemes, lexicon=LEXICON)
    before = 0
    for segment in reading.segments(text, most, granularity):
        assert before <= segment.start <= segment.end <= len(text)
        before = segment.end
        for word in segment.words:
            assert 0 <= word.start <= word.end <= len(text)


def test_a_word_with_pointed_brackets_keeps_them() -> None:
    segments = Reading().segments("A List<String> of names.", 400, "none")
    assert [w.text for s in segments for w in s.words][1] == "List<String>"


def test_segments_of_one_formula_share_its_place_in_order() -> None:
    text = r"So $\alpha + \beta + \gamma + \delta + \epsilon + \zeta$ follows."
    segments = Reading().segments(text, 30, "auto")
    assert len(segments) > 2
    spans = [(s.start, s.end) for s in segments]
    assert spans[0][0] == 0
    assert spans[-1][1] == len(text)
    assert all(before[1] <= after[0] for before, after in pairwise(spans))


@pytest.mark.parametrize("sign", ["İ", "ﬃ", "ß", "ŉ"])
def test_a_sign_that_grows_in_another_case_moves_no_comment(sign: str) -> None:
    text = f"{sign * 3} <!-- hidden --> All of this is spoken."
    draft = cleaned(text)
    assert "hidden" not in draft.text
    assert draft.text.endswith("All of this is spoken.")
    start, end = draft.source(draft.text.index("All"), len(draft.text))
    assert text[start:end] == "All of this is spoken."
