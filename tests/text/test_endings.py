"""Where sentences end in many languages, and each family's own marks: whole text and text that arrives are the same."""

from __future__ import annotations

import asyncio
import itertools
import random
import unicodedata
from pathlib import Path

import pytest

from stentor.models.cosyvoice3.tokenizer import MARKS as COSYVOICE
from stentor.models.dots_tts.prompt import MARKS as DOTS
from stentor.models.fish_s2.prompt import PHONEMES, SPEAKER, TAG, UNFINISHED
from stentor.models.voxcpm2.prompt import MARKS as VOXCPM
from stentor.speech.live_text import TextFeed
from stentor.text.cleanup import cleaned
from stentor.text.lexicon import Lexicon
from stentor.text.marks import TextMarks
from stentor.text.segments import Reading
from stentor.text.sentences import Segment, sentences

FISH = TextMarks(SPEAKER.pattern, f"{TAG.pattern}|{PHONEMES.pattern}", UNFINISHED)
FAMILIES = {"fish_s2": FISH, "cosyvoice3": COSYVOICE, "dots_tts": DOTS, "voxcpm2": VOXCPM}


def lines(name: str) -> list[str]:
    text = Path(__file__).with_name(name).read_text(encoding="utf-8")
    return [line for line in text.splitlines() if line and not line.startswith("# ")]


def fed(text: str, granularity: str = "sentence", reading: Reading | None = None) -> list[Segment]:
    """The segments of a text that arrives a character at a time."""
    feed = TextFeed(granularity, 400, live=False, reading=reading or Reading())

    async def write() -> None:
        for sign in text:
            await feed.write(sign)
        await feed.end()

    asyncio.run(write())
    return [segment for segment, _ in feed._segments]


@pytest.mark.parametrize("line", lines("endings.txt"))
def test_sentences_end_where_a_native_reader_ends_them(line: str) -> None:
    pieces = [piece.strip() for piece in line.split("‖")]
    text = line.replace("‖", "")
    assert [s.text for s in sentences(text)] == pieces
    assert [s.text for s in fed(text)] == pieces


@pytest.mark.parametrize("seed", range(8))
def test_text_that_arrives_is_cut_as_the_whole_text_is(seed: int) -> None:
    draw = random.Random(seed)
    for _ in range(12):
        texts = draw.choices(lines("endings.txt"), k=draw.randint(2, 4))
        text = draw.choice([" ", "\n", "\n\n"]).join(texts).replace("‖", "")
        arrived = fed(text, reading=Reading(cleanup=()))
        assert [s.text for s in arrived] == [s.text for s in sentences(text)]


@pytest.mark.parametrize("line", lines("family_marks.txt"))
@pytest.mark.parametrize("cleanup", [(), None])
def test_a_familys_marks_arrive_as_they_are(line: str, cleanup: tuple[str, ...] | None) -> None:
    family, _, text = line.partition(" | ")
    text = text.replace("⏎", "\n").replace("**", "")
    lexicon = Lexicon({"SQL": "sequel", "laughter": "loud", "pause": "stop"})
    reading = Reading(FAMILIES[family], lexicon=lexicon)
    if cleanup is not None:
        reading = Reading(FAMILIES[family], lexicon=lexicon, cleanup=cleanup)
    assert [s.spoken for s in reading.segments(text, 400, "none")] == [text]


@pytest.mark.parametrize("family", FAMILIES)
def test_pauses_with_a_length_are_ours_in_every_family(family: str) -> None:
    text = 'One. <break time="1s"/> Two. [pause 600ms] Three.'
    segments = Reading(FAMILIES[family]).segments(text, 400, "auto")
    assert [(s.text, s.after) for s in segments] == [
        ("One.", 1.0),
        ("Two.", 0.6),
        ("Three.", None),
    ]


@pytest.mark.parametrize(
    ("family", "lead"),
    [
        ("voxcpm2", "(A calm man. Slow pace.) "),
        ("voxcpm2", "(一位沉稳的中年男性，语速缓慢)"),
        ("dots_tts", "[EN]"),
        ("dots_tts", "[口音:四川话]"),
        ("cosyvoice3", "You are a helpful assistant. Speak softly.<|endofprompt|>"),
    ],
)
def test_what_leads_a_text_is_given_to_every_piece(family: str, lead: str) -> None:
    reading = Reading(FAMILIES[family])
    text = f"{lead}One is here. Two is here."
    whole = reading.segments(text, 400, "sentence")
    assert [(s.lead, s.text) for s in whole] == [(lead, "One is here."), (lead, "Two is here.")]
    assert [text[s.start : s.end] for s in whole] == ["One is here.", "Two is here."]
    assert [s.spoken for s in fed(text, reading=reading)] == [s.spoken for s in whole]
    apart = reading.segments(f"{lead.strip()}\n\nOne is here.\n\nTwo.", 400, "auto")
    assert [s.lead for s in apart] == [lead.strip()] * 2


@pytest.mark.parametrize(("family", "text"), [("voxcpm2", "(Hello)"), ("dots_tts", "[OK] Go.")])
def test_what_only_looks_like_a_lead_is_spoken(family: str, text: str) -> None:
    segments = Reading(FAMILIES[family], cleanup=()).segments(text, 400, "auto")
    assert [(s.lead, s.text) for s in segments] == [("", text)]


def test_a_mark_in_a_paragraph_without_words_goes_with_the_next_piece() -> None:
    pieces = Reading(FISH).segments("Hello.\n\n[whispering]\n\nCome here.", 400, "auto")
    assert [s.text for s in pieces] == ["Hello.", "[whispering]\n\nCome here."]


@pytest.mark.parametrize(
    "text",
    [
        "Ich sah gestern einen\nFuchs, der schlief.",
        "Le vieux chat et la\nSeine sont là.",
        "Она любит\nПарижъ и Рим.",
        "La casa de\nMadrid es grande.",
        "这本书的价格是\n45元，很便宜。",
        "私は昨日\nAmazonで買いました。",
        "나는 오늘\n5시에 간다.",
    ],
)
def test_a_wrapped_sentence_gets_no_mark_at_the_end_of_its_line(text: str) -> None:
    assert cleaned(text).text == text


@pytest.mark.parametrize(
    "text",
    ["我们用Python写了程序，价格是3999元"[:11] * 60, "नमस्ते" * 90, "ภาษาไทยเขียนติดกัน" * 40],
)
def test_the_last_resort_cuts_no_number_word_or_sign_in_two(text: str) -> None:
    pieces = [s.text for s in Reading().segments(text, 100, "auto")]
    assert len(pieces) > 3
    assert "".join(pieces) == text
    for before, after in itertools.pairwise(pieces):
        assert unicodedata.category(after[0])[0] != "M"
        assert not (before[-1].isascii() and after[0].isascii())
        assert before[-1] not in "เแโใไ"


@pytest.mark.parametrize(
    "text",
    [
        "[Tom]: ...anybody?",
        "wenn a<n和b>m则停止。",
        "5 км²",
        "١٠ كم²",
        "30公里²",
        "4 µm²",
        "E = mc²",
        "πr²",
    ],
)
def test_no_word_and_no_power_vanishes(text: str) -> None:
    segments = Reading().segments(text, 400, "none")
    assert [s.text for s in segments] == [text]


def test_thai_that_arrives_is_cut_at_its_spaces() -> None:
    text = "วันนี้อากาศดีมากเราไปเดินเล่นที่สวนสาธารณะกับเพื่อนบ้าน " * 4
    pieces = [s.text for s in fed(text)]
    assert len(pieces) > 1
    assert pieces == [s.text for s in sentences(text)]
