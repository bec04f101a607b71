"""Cues that can be read, from the times of words."""

from __future__ import annotations

import itertools
import random
import re
from pathlib import Path

import numpy as np
import pytest

from stentor import InvalidRequest, Speech
from stentor.speech import subtitles
from stentor.speech.subtitles import LINE_WIDTH, MAX_SECONDS, Cue, ass, cues, srt, vtt
from stentor.speech.timing import SegmentTiming, WordTiming

SECOND_PER_LETTER = 0.06
NOVEL = (
    "The harbour master, who had never trusted a quiet sea, walked the whole length of the pier "
    "before breakfast, counting ropes, lamps and gulls, because a night without wind had left him "
    "with nothing else to count. Mr. Thorne laughed. He did not. Oh! Why? \u201cBring the lantern,\u201d "
    "said the boy, \u201cor we shall be here until the tide turns and the whole town knows of it.\u201d"
)
CHINESE = "港口的老人从来不相信平静的大海，所以他每天早上都沿着码头走一遍，数一数绳子、灯和海鸥。昨夜没有风。"
ADDRESS = "https://example.org/" + "a-very-long-path/" * 9 + "end"


def spoken(text: str, start: float = 0.0, pause: float = 0.0, **more: object) -> SegmentTiming:
    """A segment whose words are spoken at an even pace, with a pause behind each."""
    words = []
    at = start
    for m in re.finditer(r"\S+", text):
        end = at + len(m[0]) * SECOND_PER_LETTER
        words.append(WordTiming(m[0], at, end, m.start(), m.end()))
        at = end + pause
    return SegmentTiming(0, text, start, at, 0, len(text), tuple(words), **more)  # type: ignore[arg-type]


def width(line: str) -> int:
    return subtitles._width(line)


def texts(shown: list[Cue]) -> list[str]:
    return [cue.text for cue in shown]


def check(shown: list[Cue]) -> None:
    for cue in shown:
        assert 1 <= len(cue.lines) <= 2
        assert all(0 < width(line) <= LINE_WIDTH for line in cue.text.split("\n"))
        assert 0 < cue.end - cue.start <= MAX_SECONDS
    for cue, following in itertools.pairwise(shown):
        assert cue.end <= following.start


def test_cues_end_where_phrases_do():
    assert texts(cues([spoken(NOVEL)])) == [
        "The harbour master, who had\nnever trusted a quiet sea,",
        "walked the whole length\nof the pier before breakfast,",
        "counting ropes, lamps and gulls,",
        "because a night without wind had\nleft him with nothing else to count.",
        "Mr. Thorne laughed. He did not.",
        "Oh! Why? \u201cBring the lantern,\u201d\nsaid the boy,",
        "\u201cor we shall be here until the tide\nturns and the whole town knows of it.\u201d",
    ]


@pytest.mark.parametrize("timed", [True, False])
@pytest.mark.parametrize("text", [NOVEL, CHINESE, ADDRESS, "x" * 300, "a", "e\u0301" * 90])
def test_every_character_is_shown_once_in_lines_that_fit(text: str, timed: bool):
    segment = spoken(text)
    if not timed:
        segment = SegmentTiming(0, text, 0.0, segment.end, 0, len(text))
    shown = cues([segment])
    check(shown)
    assert "".join("".join(texts(shown)).split()) == "".join(text.split())


@pytest.mark.parametrize("seed", range(30))
def test_any_times_of_words_make_cues_in_order(seed: int):
    """Also words that overlap, take no time, or last longer than a cue."""
    rng = random.Random(seed)
    words = []
    at = 0.0
    for i in range(120):
        text = "".join(rng.choices("abcdef", k=rng.choice([1, 3, 8, 60]))) + rng.choice(
            ["", ",", "."]
        )
        end = at + rng.choice([0.0, 0.05, 0.3, 9.0])
        words.append(WordTiming(text, at, end, i, i + 1))
        at = max(0.0, end + rng.choice([-0.1, 0.0, 0.5, 3.0]))
    shown = cues([SegmentTiming(0, "", 0.0, at, 0, 0, tuple(words))])
    for cue in shown:
        assert cue.start <= cue.end <= cue.start + MAX_SECONDS
        assert max(map(width, cue.text.split("\n"))) <= LINE_WIDTH
    for cue, following in itertools.pairwise(shown):
        assert cue.end <= following.start
    assert "".join("".join(texts(shown)).split()) == "".join(w.text for w in words)


def test_a_short_gap_separates_cues_and_a_cue_leaves_the_screen_in_a_silence():
    first = spoken("The first sentence fills a line.", 0.0)
    second = spoken("The second one follows at once, and it is long enough.", first.end)
    third = spoken("The third comes after a silence.", second.end + 3.0)
    shown = cues([first, second, third])
    assert shown[1].start - shown[0].end == pytest.approx(0.08)
    assert shown[-2].end == pytest.approx(second.end + 0.5)
    assert shown[-1].start == third.start


def test_short_sentences_share_a_cue_and_a_heading_does_not():
    assert texts(cues([spoken("Oh. Why? No.")])) == ["Oh. Why? No."]
    heading = spoken("Chapter One")
    shown = cues([heading, spoken("Rain fell on the roof all night long.", heading.end + 1.0)])
    assert texts(shown) == ["Chapter One", "Rain fell on the roof all night long."]


def test_chinese_lines_have_twenty_one_characters_and_begin_with_no_comma():
    lines = [line for cue in cues([spoken(CHINESE)]) for line in cue.text.split("\n")]
    assert max(map(len, lines)) <= 21
    assert not [line for line in lines if line[0] in "，。、"]


def dialogue() -> list[SegmentTiming]:
    first = spoken("Did you hear that?", voice="low", turn=0)
    second = spoken("Hear what? The wind, I think.", first.end, voice="<i>a&b", turn=1)
    third = spoken("The wind does not knock.", second.end, voice="low", turn=2)
    return [first, second, third]


def test_speakers_never_share_a_cue_and_are_named_where_they_begin():
    blocks = srt(dialogue()).strip().split("\n\n")
    assert ["\n".join(block.split("\n")[2:]) for block in blocks] == [
        "low: Did you hear that?",
        "<i>a&b: Hear what? The wind, I think.",
        "low: The wind does not knock.",
    ]
    assert "\n<v &lt;i&gt;a&amp;b>Hear what? The wind, I think.\n" in vtt(dialogue())
    assert ",Default,low,0,0,0,,low: Did you hear that?\n" in ass(dialogue())


def test_a_speaker_is_named_once_in_a_turn_of_many_cues():
    turn = spoken(NOVEL, voice="low", turn=0)
    assert len(cues([turn])) > 5
    assert srt([turn]).count("low: ") == 1


def test_marked_words_add_up_to_their_cue():
    segments = [spoken(NOVEL, 3.0)]
    for event, cue in zip(
        re.findall(r"Dialogue: .*", ass(segments, words=True)), cues(segments), strict=True
    ):
        hundredths = sum(map(int, re.findall(r"\\kf(\d+)", event)))
        assert hundredths == pytest.approx(100 * (cue.lines[-1][-1].end - cue.start), abs=9)
    stamped = vtt(segments, words=True)
    assert stamped.startswith("WEBVTT\n\n00:00:03.000 --> ")
    assert (
        "The <00:00:03.180>harbour <00:00:03.600>master, <00:00:04.020>who <00:00:04.200>had\n"
        in stamped
    )


def test_subrip_with_words_has_a_cue_for_each():
    lines = srt([spoken("One two three.", pause=0.1)], words=True).split("\n")
    assert lines[1:3] == ["00:00:00,000 --> 00:00:00,180", "One"]
    assert lines[9:11] == ["00:00:00,560 --> 00:00:00,920", "three."]


def test_braces_of_a_text_are_no_commands_in_ass():
    event = ass([spoken(r"A {\b1}bold\N word")]).splitlines()[-1]
    assert event.endswith(",,A \uff5b\uff3cb1\uff5dbold\uff3cN word")


@pytest.mark.parametrize("words", [False, True])
@pytest.mark.parametrize("kind", ["srt", "vtt", "ass"])
def test_ffmpeg_reads_every_cue(tmp_path: Path, kind: str, words: bool):
    av = pytest.importorskip("av")
    segments = [*dialogue(), spoken(NOVEL, dialogue()[-1].end + 1.0)]
    file = tmp_path / f"a.{kind}"
    file.write_text(subtitles.FORMATS[kind](segments, words), encoding="utf-8")
    with av.open(str(file)) as container:
        packets = [packet for packet in container.demux(subtitles=0) if packet.size]
    expected = cues(segments, labels=kind != "vtt")
    if kind == "srt" and words:
        assert len(packets) == len(re.findall(r"\S+", " ".join(s.text for s in segments)))
    else:
        assert len(packets) == len(expected)
        assert float(packets[1].pts * packets[1].time_base) == pytest.approx(
            expected[1].start, abs=0.011
        )


def test_a_speech_writes_its_subtitles(tmp_path: Path):
    empty = np.zeros(0, np.float32)
    speech = Speech(empty, 24000, empty, "stop", 0, segments=(spoken("One two."),))
    assert speech.subtitles() == srt([spoken("One two.")])
    assert speech.subtitles("ass", words=True).endswith("{\\kf18}One {\\kf24}two.\n")
    with pytest.raises(InvalidRequest, match="format: must be one of srt, vtt, ass, got 'sub'"):
        speech.subtitles("sub")
