"""Pauses that a text asks for are silence in their place, and a lexicon holds for every call."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator

import numpy as np
import pytest

from stentor import TTS, InvalidRequest
from stentor.text.pauses import PAUSES

ASK = {"seed": 5, "voice": "low", "max_frames": 4, "min_frames": 4}


@pytest.fixture(scope="module")
def tts() -> Iterator[TTS]:
    with TTS(
        "dummy:toy", dtype="float64", max_num_seqs=2, memory_gb=0.002, lexicon={"SQL": "sequel"}
    ) as running:
        yield running


def gaps(speech) -> list[float]:
    edges = [0.0, *(t for s in speech.segments for t in (s.start, s.end)), speech.duration]
    return [round(b - a, 2) for a, b in zip(edges[::2], edges[1::2], strict=True)]


def test_a_pause_is_silence_in_its_place(tts: TTS) -> None:
    text = "[pause 300ms] One. [pause 600ms] Two. Three.<break time='1s'/>"
    speech = tts.generate(text, split_granularity="sentence", **ASK)
    assert gaps(speech) == [0.3, 0.6, PAUSES["stop"], 1.0]
    assert [s.text for s in speech.segments] == ["One.", "Two.", "Three."]
    assert [text[s.start_char : s.end_char] for s in speech.segments] == ["One.", "Two.", "Three."]
    end, begin = (
        round(t * speech.sample_rate) for t in (speech.segments[0].end, speech.segments[1].start)
    )
    assert not speech.samples[end:begin].any()
    streamed = np.concatenate(
        [c.samples for c in tts.stream(text, split_granularity="sentence", **ASK)]
    )
    assert len(streamed) == len(speech.samples)
    assert not streamed[end:begin].any()


ENDS = [
    ("One. Two.", "stop"),
    ("One... Two.", "ellipsis"),
    ("One… Two.", "ellipsis"),
    ("One.\n\nTwo.", "paragraph"),
    ("“One.”\n\n“Two.”", "turn"),
    ("— One.\n\n— Two.", "turn"),
    ("Chapter One\n\nTwo is here.", "heading"),
    ("# One\nTwo.", "heading"),
    ("<h1>One</h1>Two.", "heading"),
    ("One.\n\n\n\nTwo.", "scene"),
    ("One.\n\n* * *\n\nTwo.", "scene"),
    ("One.<hr>Two.", "scene"),
]
"""Texts of two pieces, and what the first one ends."""


@pytest.mark.parametrize(("text", "silence"), ENDS)
def test_the_end_of_a_piece_says_how_long_it_waits(tts: TTS, text: str, silence: str) -> None:
    speech = tts.generate(text, split_granularity="sentence", **ASK)
    assert gaps(speech) == [0.0, PAUSES[silence], 0.0]
    if silence not in ("stop", "ellipsis"):  # "auto" cuts there too, also short text
        assert gaps(tts.generate(text, **ASK)) == [0.0, PAUSES[silence], 0.0]


def test_a_clause_waits_by_its_mark(tts: TTS) -> None:
    text = "The first of the clauses, the second of the clauses; the third of the clauses — and the last of them."
    speech = tts.generate(text, split_granularity="clause", **ASK)
    assert gaps(speech) == [0.0, *(PAUSES[mark] for mark in ("comma", "semicolon", "dash")), 0.0]


def test_pauses_grow_with_what_they_end() -> None:
    order = ["comma", "semicolon", "stop", "turn", "paragraph", "heading", "scene"]
    assert [PAUSES[mark] for mark in order] == sorted({PAUSES[mark] for mark in order})
    assert PAUSES["dash"] > PAUSES["comma"]
    assert PAUSES["ellipsis"] > PAUSES["stop"]


def test_the_model_gets_words_without_marks(tts: TTS, monkeypatch: pytest.MonkeyPatch) -> None:
    plain, seen = tts._model.prompt, []
    monkeypatch.setattr(tts._model, "prompt", lambda r, e: (seen.append(r.text), plain(r, e))[1])
    tts.generate(
        '<speak>Use <prosody rate="slow">SQL</prosody> in [Worcester](/wˈʊstəɹ/).</speak>', **ASK
    )
    assert seen == ["Use sequel in Worcester."]


def test_what_cannot_be_spoken_is_named(tts: TTS, caplog: pytest.LogCaptureFixture) -> None:
    text = "One. 🙂 [pause 100ms] 🙂 Two."
    assert tts.generate(text, **ASK).ignored == ()
    ask = {**ASK, "split_granularity": "sentence"}
    speech = tts.generate("[pause 100ms]🙂[pause 100ms] Two.", **ask)
    assert speech.ignored == ("🙂",)
    assert "cannot speak '🙂'" in caplog.text
    assert [
        p for c in tts.stream("🙂[pause 100ms] Two. [pause 100ms]🙂", **ask) for p in c.ignored
    ] == ["🙂"] * 2


GROWING = (
    "[pause 300ms] One. [pause 600ms] Two. Three. [pause 1s]",
    "One. [pause 250ms] [pause 250ms]",
    "One.<break time='1s'/>",
    "Really? - No, three. # Four > five.",  # marks only where a line begins
    "- One two\n- Three four\n\nFive six. - Seven.",
    *(text for text, _ in ENDS),
)


@pytest.mark.parametrize("text", GROWING)
@pytest.mark.parametrize("size", [1, 3, 100])
def test_text_that_grows_has_the_pauses_and_the_last_samples_of_the_whole(
    tts: TTS, text: str, size: int
) -> None:
    async def written() -> AsyncIterator[str]:
        for at in range(0, len(text), size):
            yield text[at : at + size]

    async def streamed() -> np.ndarray:
        stream = tts.astream(written(), split_granularity="sentence", **ASK)
        return np.concatenate([chunk.samples async for chunk in stream])

    whole = tts.generate(text, split_granularity="sentence", retries=1, **ASK).samples
    np.testing.assert_allclose(asyncio.run(streamed()), whole, atol=1e-6)


@pytest.mark.parametrize("speed", [0.5, 2.0])
def test_a_speed_changes_no_pause_that_the_text_asks_for(tts: TTS, speed: float) -> None:
    text = "One. [pause 600ms] Two. [pause 1s]"
    speech = tts.generate(text, split_granularity="sentence", speed=speed, **ASK)
    assert gaps(speech)[1:] == [0.6, 1.0]


def test_pauses_alone_are_refused(tts: TTS) -> None:
    with pytest.raises(InvalidRequest, match="no words besides"):
        tts.generate("[pause 1s]", **ASK)


def test_a_wrong_lexicon_is_found_before_the_model_is_loaded() -> None:
    with pytest.raises(InvalidRequest, match="one word"):
        TTS("no such model", lexicon={"two words": "x"})
