"""Pauses, phonemes, SSML and a lexicon in a text: what is spoken, and nothing of the marks."""

from pathlib import Path

import pytest

from stentor.errors import InvalidRequest
from stentor.text.draft import Draft
from stentor.text.english.phonemes import from_ipa
from stentor.text.lexicon import MAX_ENTRIES, MAX_READING, Lexicon
from stentor.text.pauses import LONGEST_PAUSE
from stentor.text.segments import Reading, parts, shown
from tests.helpers.english import PHONEMES

LEXICON = Lexicon(
    {"SQL": "sequel", "siobhan": "/ʃəvˈɔn/", "Rex": "/ɹˈɛks/", "C++": "see plus plus"}
)


def read(text: str, phonemes: bool = True, lexicon: Lexicon | None = None) -> str:
    """Spoken text, with pauses in milliseconds."""
    found = parts(Draft.of(text), phonemes, lexicon)
    return "".join(
        p.text + ("" if p.pause is None else f"|{round(p.pause * 1000)}|") for p in found
    )


@pytest.mark.parametrize(
    ("written", "spoken"),
    [
        ("Wait. [pause 600ms] Done.", "Wait. |600| Done."),
        ("Tom &amp; Ann &lt;b&gt;", "Tom & Ann <b>"),
        ("a [pause] b [pause:1.5] c [PAUSE 1.0]", "a |350| b |1500| c |1000|"),
        ("a [pause 1.5s] b [pause: 20 ms]", "a |1500| b |20|"),
        ('One.<break time="500ms"/>Two.', "One.|500|Two."),
        ("One. <break strength='strong'/> Two.<break/>", "One. |700| Two.|350|"),
        ('<break time="soon"/>a', "|350|a"),
        ("<speak>Tom &amp; Ann &#33;</speak>", "Tom & Ann !"),
        ('<speak version="1.1"><p>One.</p><p>Two.</p></speak>', "One.\n\n\n\nTwo.\n\n"),
        ("<p><s>One</s><s>Two.</s></p>", " One.  Two. \n\n"),
        ('<sub alias="World Wide Web">WWW</sub> 3', "World Wide Web 3"),
        ('<say-as interpret-as="characters">aB1</say-as>', "A B 1"),
        ('<say-as interpret-as="spell-out">ab</say-as>', "A B"),
        ('<say-as interpret-as="digits">123</say-as>', "1 2 3"),
        ('<say-as interpret-as="telephone">555-12</say-as>', "5 5 5, 1 2"),
        ('<say-as interpret-as="ordinal">22</say-as>', "22nd"),
        ('<say-as interpret-as="ordinal">113</say-as>', "113th"),
        ('<say-as interpret-as="cardinal">1999</say-as>', "1,999"),
        ('<say-as interpret-as="date" format="dmy">4/3/2021</say-as>', "2021-03-04"),
        ('<say-as interpret-as="riddle">as it is</say-as>', "as it is"),
        ('<phoneme alphabet="ipa" ph="təˈmeɪtoʊ">tomato</phoneme>', "[tomato](/təˈmeɪtoʊ/)"),
        ('<phoneme alphabet="x-sampa" ph="t@">tomato</phoneme>', "tomato"),
        ("[New York](/nˌu jˈɔɹk/) city", "[New_York](/nˌu_jˈɔɹk/) city"),
        ('<prosody rate="slow">Slow.</prosody> <my:tag a="1"/>Yes.', "Slow. Yes."),
        ("<b>bold</b> <!-- not --> said", "bold  said"),
        ("<?xml version='1.0'?><!DOCTYPE a><speak>Hi.</speak>", "Hi."),
    ],
)
def test_marks_are_read_and_never_spoken(written: str, spoken: str) -> None:
    assert read(written) == spoken


@pytest.mark.parametrize(
    "text",
    [
        "5 < 10 > 3",
        "I <3 you",
        "List<String> x",
        "a & b &copy; c",
        "[1] and [laugh]",
        "x [y](z)",
        "[pauses] and [pause it]",
        "<|speaker:0|>",
    ],
)
def test_what_is_no_mark_stays(text: str) -> None:
    assert read(text) == text


@pytest.mark.parametrize(
    ("written", "spoken"),
    [
        ('<sub alias="x">not closed', "not closed"),
        ("<speak>one <s>two", "one  two"),
        ('<say-as interpret-as="digits">12</sub> 3', "12 3"),
        ("</sub></speak> tail", " tail"),
        ('<speak>&xxe; &#0; <break time="9', '&xxe; \ufffd <break time="9'),
        ('<sub alias="a"><sub alias="b">c</sub></sub>', "a"),
    ],
)
def test_malformed_markup_loses_no_words(written: str, spoken: str) -> None:
    assert read(written) == spoken


def test_entities_are_not_expanded() -> None:
    bomb = '<!DOCTYPE x [<!ENTITY a "spoken"><!ENTITY b "&a;&a;">]><speak>&b;</speak>'
    assert "spoken" not in read(bomb)


def test_pauses_are_bounded() -> None:
    assert read("a [pause 999s] b") == f"a |{round(LONGEST_PAUSE * 1000)}| b"
    with pytest.raises(InvalidRequest, match="pauses of 130 s"):
        parts(Draft.of("a [pause 10s]" * 13), True)


def test_other_families_get_the_word_for_its_phonemes() -> None:
    assert read("[Worcester](/wˈʊstəɹ/) ok", phonemes=False) == "Worcester ok"
    assert read('<phoneme ph="wˈʊ">W</phoneme> Rex', phonemes=False, lexicon=LEXICON) == "W Rex"
    assert shown("in [New_York](/nˌu_jˈɔɹk/)") == "in New York"


def test_a_lexicon_replaces_whole_words() -> None:
    assert (
        read("SQL, NoSQL and sql. C++!", lexicon=LEXICON) == "sequel, NoSQL and sql. see plus plus!"
    )
    assert read("Siobhan's SIOBHAN rex Rex's", lexicon=LEXICON) == (
        "[Siobhan's](/ʃəvˈɔnz/) [SIOBHAN](/ʃəvˈɔn/) rex [Rex's](/ɹˈɛksᵻz/)"
    )


@pytest.mark.parametrize(
    ("entries", "why"),
    [
        ({"two words": "x"}, "one word"),
        ({"": "x"}, "one word"),
        ({"x" * 81: "y"}, "at most 80"),
        ({"x": ""}, "1 to 200"),
        ({"x": "y" * (MAX_READING + 1)}, "1 to 200"),
        ({"x": 5}, "one line"),
        ({str(i): "x" for i in range(MAX_ENTRIES + 1)}, "10000"),
    ],
)
def test_a_wrong_entry_is_named(entries: dict, why: str) -> None:
    with pytest.raises(InvalidRequest, match=why) as e:
        Lexicon(entries)
    assert e.value.param == "lexicon"


def test_a_lexicon_file_is_yaml_of_strings(tmp_path: Path) -> None:
    path = tmp_path / "words.yaml"
    path.write_text("SQL: sequel\nno: nope\n1e3: a thousand\nSiobhan: /ʃəvˈɔn/\n", encoding="utf-8")
    lexicon = Lexicon.of(path)
    assert lexicon is not None
    assert [lexicon.reading(w) for w in ("SQL", "no", "1e3", "Siobhan", "x")] == [
        "sequel",
        "nope",
        "a thousand",
        "/ʃəvˈɔn/",
        None,
    ]
    for text in ("- a list", "a: [b", "a: {b: c}"):
        path.write_text(text, encoding="utf-8")
        with pytest.raises(InvalidRequest, match="lexicon"):
            Lexicon.of(path)
    with pytest.raises(InvalidRequest, match="does not exist"):
        Lexicon.of(tmp_path / "none.yaml")


def test_segments_keep_their_places_in_the_given_text() -> None:
    text = 'A one. <break time="1s"/> B <sub alias="long words">lw</sub> two. C three. [pause 50ms]'
    found = Reading().segments(text, 400, "sentence")
    assert [(s.text, s.before, s.after) for s in found] == [
        ("A one.", 0.0, 1.0), ("B long words two.", 0.0, None), ("C three.", 0.0, 0.05),
    ]  # fmt: skip
    assert [text[s.start : s.start + 1] for s in found] == ["A", "B", "C"]
    assert [text[: s.end][-1] for s in found] == ["."] * 3
    first = Reading().segments("[pause 1s][pause 1s] Hi. [pause 1s][pause 2s]", 400, "auto")
    assert [(s.text, s.before, s.after) for s in first] == [("Hi.", 2.0, 3.0)]


def test_phonemes_are_not_cut_and_reach_the_voice() -> None:
    long = "word " * 20 + "[New York](/nˌu jˈɔɹk/) " + "word " * 20
    assert "[New_York](/nˌu_jˈɔɹk/)" in " ".join(
        s.text for s in Reading(phonemes=True, dashes=True).segments(long, 110, "auto")
    )
    assert PHONEMES("Go to [New_York](/nˌu_jˈɔɹk/), now.") == "ɡˌO tu nˌu jˈɔɹk, nˈW."
    assert PHONEMES("[tomato](/təˈmeɪtoʊ/)") == "təmˈAtO."
    assert PHONEMES("[hello](/42/)") == PHONEMES("hello")


@pytest.mark.parametrize(
    ("ipa", "own"),
    [
        ("təˈmeɪtoʊ", "təmˈAtO"),
        ("ˈwʊstɚ", "wˈʊstəɹ"),
        ("həlˈO", "həlˈO"),
        ("dʒoʊ", "ʤO"),
        ("!?", ""),
    ],
)
def test_ipa_becomes_the_alphabet_of_the_voice(ipa: str, own: str) -> None:
    assert from_ipa(ipa) == own


@pytest.mark.parametrize(
    "unit", ["<", "<a ", "<sub>", "<!--", "&#", "[a](/", "</sub>", "<sub alias='a'>x</sub>", "[["]
)
def test_hostile_markup_is_read_in_one_pass(unit: str) -> None:
    found = parts(Draft.of((unit * 20_000)[:20_000]), True)
    assert len(found) == 1
    assert len(found[0].text) <= 20_000
