"""Text that is still being written: where it is cut, and how much of it has been played."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

import pytest

from stentor.speech.live_text import CONTEXT, TextFeed, TextTail, extended, played_characters
from stentor.speech.timing import SegmentTiming
from stentor.text.endings import NOTHING, Around
from stentor.text.segments import Reading
from stentor.text.sentences import Segment


def test_text_is_cut_the_same_however_it_arrives() -> None:
    text = 'He said: "Stop! Now." Then J. R. Smith paid 3.50 to Dr. Who. 你好。再见！ Bye'

    def segments(step: int) -> list[Segment]:
        feed = TextFeed("sentence", 400, live=False)
        for i in range(0, len(text), step):
            asyncio.run(feed.write(text[i : i + step]))
        asyncio.run(feed.end())
        return [segment for segment, _ in feed._segments]

    assert segments(1) == segments(3) == segments(len(text))
    for p in segments(1):
        assert text[p.start : p.end] == p.text
    assert [p.text for p in segments(1)][-3:] == ["你好。", "再见！", "Bye"]


SPACED = (
    "One two. Three four [pause 200ms] five.",
    "One two.\n\nThree four.\nFive six.",
    "One two. **Three four.** - five.",
    "你好。再见！ Bye now.",
)


@pytest.mark.parametrize("text", SPACED)
@pytest.mark.parametrize("step", [1, 7, 100])
def test_a_segment_knows_the_white_space_before_it_however_its_text_arrives(
    text: str, step: int
) -> None:
    """A model that continues the audio before it continues the text as well."""
    feed = TextFeed("sentence", 400, live=False)

    async def write() -> None:
        for at in range(0, len(text), step):
            await feed.write(text[at : at + step])
        await feed.end()

    asyncio.run(write())
    whole = Reading().segments(text, 400, "sentence")
    spaced = [segment.spaced for segment, _ in feed._segments]
    assert spaced == [segment.spaced for segment in whole]
    assert any(spaced[1:])


def test_text_without_marks_is_cut_before_it_grows_beyond_bounds() -> None:
    feed = TextFeed("auto", 40, live=False)
    for _ in range(300):
        asyncio.run(feed.write("word "))
    assert all(len(p.text) <= 40 for p, _ in feed._segments)
    assert len(feed.text) - feed._cut <= 80
    asyncio.run(feed.end())
    assert " ".join(p.text for p, _ in feed._segments).split() == ["word"] * 300


def test_the_place_that_was_heard_is_exact_at_ends_and_in_proportion_between() -> None:
    segments = [SegmentTiming(0, "", 0.0, 2.0, 0, 20), SegmentTiming(1, "", 2.5, 4.5, 21, 61)]
    assert [played_characters(segments, None, s) for s in (0.0, 1.0, 2.0, 2.2, 3.5, 4.5, 9.0)] == [
        0,
        10,
        20,
        20,
        41,
        61,
        61,
    ]
    assert played_characters(segments, (Segment("x" * 30, 62, 92), 5.0), 6.0) == 62 + 15
    assert played_characters([], (Segment("x" * 30, 0, 30), 0.0), 100.0) == 30
    assert played_characters([], None, 1.0) == 0


def spoken(feed: TextFeed) -> list[Segment]:
    return [
        segment if tail is None else extended(segment, tail.take())
        for segment, tail in feed._segments
    ]


def written(text: str, step: int, most: int) -> list[Segment]:
    feed = TextFeed("auto", most, live=True)
    for i in range(0, len(text), step):
        asyncio.run(feed.write(text[i : i + step]))
    asyncio.run(feed.end())
    return spoken(feed)


def test_long_live_text_is_cut_at_sentences_however_it_arrives() -> None:
    text = " One is here, my friend. Two. Three is 3.14 or so! 你好。再见！ And four? Five it is, at last"
    segments = written(text, 1, 30)
    assert segments == written(text, 3, 30) == written(text, len(text), 30)
    assert [p.text for p in segments] == [
        "One is here, my friend. Two. Three is 3.14 or so!", "你好。再见！ And four? Five it is, at last",
    ]  # fmt: skip
    for p in segments:
        assert text[p.start : p.end] == p.text
    endless = written("word " * 300, 7, 40)
    assert all(len(p.text) <= 81 for p in endless)
    assert " ".join(p.text for p in endless).split() == ["word"] * 300
    assert written("42", 1, 40) == [Segment("42", 0, 2)]
    assert [(p.text.strip(), p.start) for p in written(" ... ", 1, 40)] == [("...", 1)]
    assert written(" \n ", 1, 40) == []


def test_what_a_model_that_stops_early_has_not_taken_is_spoken_next() -> None:
    feed = TextFeed("auto", 400, live=True)
    asyncio.run(feed.write("Hello there, you "))
    segment, tail = feed._segments.popleft()
    assert (segment.text, feed.needs_text) == ("Hello", True)
    assert isinstance(tail, TextTail)
    assert tail.take() == " there, you "
    asyncio.run(feed.write("and I "))
    tail.close()  # the model has stopped
    asyncio.run(feed.write("speak."))
    asyncio.run(feed.end())
    assert [p.text for p in spoken(feed)] == ["and I speak."]
    assert feed.text[spoken(feed)[0].start :] == "and I speak."


@dataclass(frozen=True)
class CountedReading(Reading):
    """Notes the length of each text that is cut into segments, with the text around it."""

    lengths: list[int] = field(default_factory=list)

    def segments(
        self,
        text: str,
        max_chars: int,
        granularity: str,
        speaker: str = "",
        lead: str | None = None,
        around: Around = NOTHING,
    ) -> list[Segment]:
        self.lengths.append(len(around.before + text + around.behind))
        return super().segments(text, max_chars, granularity, speaker, lead, around)


@pytest.mark.parametrize("unit", ["[", "(", "—", "*", "a", "a.", "a ", "<", "\n"])
def test_text_that_arrives_by_the_character_is_cut_where_it_is_new(unit: str) -> None:
    reading = CountedReading()
    feed = TextFeed("auto", 400, live=False, reading=reading)
    text = unit * (6000 // len(unit))

    async def write() -> None:
        await feed.write(text)
        for _ in range(200):
            await feed.write(unit)
        await feed.end()

    asyncio.run(write())
    assert sum(reading.lengths) < 4 * len(feed.text) + 2 * CONTEXT * len(reading.lengths)
    assert feed.text == text + 200 * unit


def test_a_border_behind_a_long_text_without_any_is_found_once_it_has_doubled() -> None:
    feed = TextFeed("auto", 400, live=False)

    async def write() -> None:
        await feed.write("[" * 2000)
        for _ in range(400):
            await feed.write("Well. ")

    asyncio.run(write())
    assert not feed.needs_text
