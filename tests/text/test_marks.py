"""Long text of a family whose text has marks: nothing is lost, and every part keeps its speaker."""

from __future__ import annotations

import asyncio
import random
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from stentor import TTS
from stentor.models.fish_s2.prompt import SPEAKER, TAG, UNFINISHED, batches, spoken_words
from stentor.speech.live_text import TextFeed
from stentor.text.marks import TextMarks
from stentor.text.segments import Reading
from stentor.text.sentences import ready, split
from tests.helpers.server_live import serving
from tests.models.fish_s2.oracle import CHECKPOINT

MARKS = TextMarks(SPEAKER.pattern, TAG.pattern, UNFINISHED)
LINES = [
    (
        i % 3,
        f"[tone {i}, quiet. and low] Sentence number {i} of the play is here. Its second half, number {i}, ends.",
    )
    for i in range(6)
]
DIALOGUE = "\n".join(f"<|speaker:{s}|>{line}" for s, line in LINES)
WANTED = [(s, part) for s, line in LINES for part in re.split(r"(?<=here\.) ", line)]


def heard(texts: list[str]) -> list[tuple[int, str]]:
    """(speaker, sentence) as the family is prompted with them, after its own batches."""
    found = []
    for text in texts:
        for turn in "\n".join(batches(text, 200)).split("\n"):
            mark = SPEAKER.match(turn)
            assert mark is not None, turn
            speaker = int(re.sub(r"\D", "", mark[0]))
            found += [
                (speaker, part)
                for part in re.split(r"(?<=here\.) ", turn[mark.end() :].strip())
                if part
            ]
    return found


@pytest.mark.parametrize("granularity", ["auto", "sentence", "none"])
def test_every_sentence_of_a_long_dialogue_is_spoken_by_its_speaker(granularity: str) -> None:
    assert len(DIALOGUE) > 600
    segments = split(DIALOGUE, 400, granularity, MARKS)
    assert granularity == "none" or len(segments) > 1
    assert heard([s.spoken for s in segments]) == WANTED
    for s in segments:
        assert DIALOGUE[s.start : s.end] == s.text


@pytest.mark.parametrize("granularity", ["auto", "sentence", "clause"])
@pytest.mark.parametrize("step", [1, 7, 10_000])
def test_a_dialogue_that_is_still_being_written_keeps_its_speakers(
    granularity: str, step: int
) -> None:
    feed = TextFeed(granularity, 120, live=False, reading=Reading(MARKS))
    for i in range(0, len(DIALOGUE), step):
        asyncio.run(feed.write(DIALOGUE[i : i + step]))
    asyncio.run(feed.end())
    texts = [segment.spoken for segment, _ in feed._segments]
    assert all(SPEAKER.match(text) for text in texts)
    joined = " ".join(re.sub(r"<\|speaker:\d\|>", "", text) for text in texts)
    assert joined.split() == re.sub(r"<\|speaker:\d\|>", " ", DIALOGUE).split()


def test_no_cut_falls_into_a_mark_or_between_a_mark_and_its_words() -> None:
    text = f"[{'a very long stage direction. ' * 4}] " + "word " * 30 + "[softly] last words of all"
    for most in (20, 40, 60, 100):
        parts = split(text, most, "auto", MARKS)
        assert " ".join(p.text for p in parts).split() == text.split()
        for p in parts:
            assert p.text.count("[") == p.text.count("]")
            assert spoken_words(p.text)


def test_random_dialogues_lose_no_word_and_no_speaker() -> None:
    draw = random.Random(0)
    parts = ["<|speaker:0|>", "<|speaker:1|>", "<|speaker:12|>", "[sigh]", "[low. deep]", "Yes. ", "so, it goes on ", "\n\n",
             "... ", "Dr. X! ", "word " * 12, "第一句话。"]  # fmt: skip
    for _ in range(300):
        text = "".join(draw.choices(parts, k=draw.randrange(1, 25)))
        for granularity in ("auto", "sentence", "clause"):
            segments = split(text, 60, granularity, MARKS)
            words = [w for s in segments for w in spoken_by(s.spoken)]
            assert words == spoken_by(text), text


def spoken_by(text: str) -> list[tuple[str, str]]:
    """(speaker mark, character) for every character that is a word's or a tag's."""
    found, speaker = [], ""
    for token in re.findall(r"<\|speaker:\d+\|>|\S", text):
        if token.startswith("<|"):
            speaker = token
        else:
            found.append((speaker, token))
    return found


@pytest.mark.parametrize(
    "text", ["Hello. <", "Hello. <|spea", "Hello. [low. and", "Hello. <|speaker:1|> ..."]
)
def test_a_mark_that_is_still_being_written_is_not_cut(text: str) -> None:
    assert ready(text, False, MARKS) in (6, 7) or text.endswith("...")
    assert ready(text + "|", True, MARKS) <= len(text)


def test_text_without_marks_is_cut_as_before() -> None:
    text = "One [is here. Two is] here. <|speaker:1|> Three."
    assert [s.text for s in split(text, 400, "sentence")] == [
        "One [is here.",
        "Two is] here.",
        "<|speaker:1|> Three.",
    ]


def test_a_long_dialogue_over_http_loses_nothing_and_speakers_keep_their_voices(
    tmp_path: Path,
) -> None:
    def load(name: str, model: str | None) -> Callable[[], TTS]:
        return lambda: TTS(CHECKPOINT, device="cpu", max_num_seqs=2, threads=1)

    with serving(tmp_path, load) as live:
        prepare, asked = live.tts.prepare, []
        live.tts.prepare = lambda request: asked.append(request) or prepare(request)
        answer = live.speech(input=DIALOGUE, seed=3, max_frames=40, min_frames=20, guard=False)
        assert answer.status_code == 200
    assert heard([request.text for request in asked]) == WANTED
    assert len(asked) > 1
    tails = [r.text for r in (asked[-1].reference, *asked[-1].more_references) if r is not None]
    assert tails == [request.text for request in asked[:-1]][-len(tails) :]
    assert tails


def test_a_turn_without_words_is_a_segment_of_its_own():
    text = "<|speaker:0|>Hi. <|speaker:1|>… <|speaker:0|>Bye. <|speaker:1|>[laugh] <|speaker:0|>Oh."
    segments = split(text, 400, "auto", MARKS)
    assert [p.text for p in segments] == [
        "<|speaker:0|>Hi.",
        "<|speaker:1|>…",
        "<|speaker:0|>Bye. <|speaker:1|>[laugh] <|speaker:0|>Oh.",
    ]
    assert all(text[p.start : p.end] == p.text for p in segments)
    assert len(split("<|speaker:0|> <|speaker:1|>Hi.", 400, "auto", MARKS)) == 1
