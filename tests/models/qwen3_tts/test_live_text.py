"""Live text: what is appended while it is spoken is spoken as if it had been there from the start."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stentor import TTS, EngineError, InvalidRequest, Reference, Speech
from stentor.engine.stream import AudioStream
from stentor.models.base import Prompt
from stentor.models.byte_bpe import settled
from stentor.models.frame_prompt import LiveColumn
from stentor.models.frame_talker import TEXT_CAPACITY
from stentor.models.qwen3_tts.tokenizer import QwenTokenizer
from stentor.speech.opening import OpeningStream
from tests.fixtures.qwen3_tts import tiny_qwen3_tts as tiny
from tests.helpers.patience import STUCK_S
from tests.helpers.stepped_engine import hold

TEXT = "Hello there, this is the voice; it's 3.14."
FRAMES = 24
ASK = {
    "voice": "ryan",
    "max_frames": FRAMES,
    "ignore_eos": True,
    "temperature": 0.0,
    "non_streaming_mode": False,
}
END = 9


@pytest.fixture(scope="module")
def tts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TTS]:
    with TTS(
        tiny.write("custom_voice", tmp_path_factory.mktemp("live")),
        device="cpu",
        max_num_seqs=3,
        memory_gb=0.05,
    ) as made:
        yield made


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> QwenTokenizer:
    folder = tmp_path_factory.mktemp("tokenizer")
    tiny.write_tokenizer(folder, full=True)
    return QwenTokenizer(folder)


def begin(tts: TTS, text: str, **more: object) -> AudioStream:
    return tts.submit(tts.request(text, live=True, **{**ASK, **more}))


def frames(tts: TTS, stream: AudioStream) -> np.ndarray:
    return tts.speech(list(stream), 0).frames


@pytest.mark.parametrize("text", ["There they are, the three.", "The end", "A", "3 there"])
def test_the_codes_do_not_depend_on_where_the_first_piece_ends(tts: TTS, text: str) -> None:
    whole = frames(tts, tts.submit(tts.request(text, **ASK)))
    for cut in range(1, min(8, len(text)) + 1):
        stream = begin(tts, text[:cut])
        for letter in text[cut:]:
            stream.append(letter)
        stream.append("", last=True)
        assert np.array_equal(frames(tts, stream), whole), text[:cut]


def test_a_request_that_is_not_queued_yet_ends(tts: TTS) -> None:
    """Its text ends inside its first word."""
    stream = begin(tts, "Th")
    stream.cancel()
    assert [chunk.finish for chunk in stream] == ["cancelled"]
    with pytest.raises(InvalidRequest, match="has ended"):
        stream.append("ere ")
    with TTS("dummy:toy", max_num_seqs=1, memory_gb=0.002) as other:
        waiting = OpeningStream(other.engine, other.request("Th"), other.prompt, True)
        waiting.stop()
        with pytest.raises(EngineError, match="stopped"):
            list(waiting)


def waits(tts: TTS, beyond: int = 0) -> int:
    """Frames of the one live request, once there are more than `beyond`, all are delivered, and it waits for text."""
    end = time.monotonic() + STUCK_S
    while True:
        rows = [s for s in tts.engine.scheduler.live if s.max_schedulable < 1000]
        if rows and rows[0].audio_delivered >= rows[0].max_schedulable > beyond:
            return rows[0].num_generated
        assert time.monotonic() < end, rows
        time.sleep(0.02)


@pytest.fixture(scope="module")
def whole(tts: TTS) -> Speech:
    """TEXT as it is spoken when all of it is there."""
    return tts.generate(TEXT, **ASK)


def test_text_that_comes_in_parts_is_spoken_as_if_it_had_come_at_once(
    tts: TTS, whole: Speech
) -> None:
    start, sizes = TEXT.index(","), (1, 5, 17)
    streams = [begin(tts, TEXT[:start]) for _ in sizes]
    for stream, size in zip(streams, sizes, strict=True):
        for at in range(start, len(TEXT), size):
            stream.append(TEXT[at : at + size])
        stream.append("", last=True)
    for stream in streams:
        spoken = tts.speech(list(stream), 0)
        np.testing.assert_array_equal(spoken.frames, whole.frames)
        np.testing.assert_allclose(spoken.samples, whole.samples, atol=1e-5)


def test_rows_that_wait_for_text_block_nobody_and_go_on_as_if_they_had_not_waited(
    tts: TTS, whole: Speech
) -> None:
    start = TEXT.index(",")
    streams = [
        begin(tts, TEXT[:start]) for _ in range(2 * tts.engine.sizes.slots)
    ]  # more than there are slots
    for half in (TEXT[start : start + 20], TEXT[start + 20 :]):
        other = tts.generate(TEXT, **ASK)  # is served although every slot is taken
        np.testing.assert_array_equal(other.frames, whole.frames)
        for stream in streams:
            stream.append(half)
    for stream in streams:
        stream.append("", last=True)
    for stream in streams:
        spoken = tts.speech(list(stream), 0)
        np.testing.assert_array_equal(spoken.frames, whole.frames)
        np.testing.assert_allclose(spoken.samples, whole.samples, atol=1e-5)
    assert not tts.engine.scheduler.parked


def test_a_row_waits_for_its_text_and_is_heard_as_far_as_that_goes(tts: TTS, whole: Speech) -> None:
    stream = begin(tts, "Hello there, ")
    first = waits(tts)
    assert 1 <= first < FRAMES
    chunks, heard = iter(stream), 0
    while heard < first:
        heard += len(next(chunks).frames)
    other = tts.generate(TEXT, **ASK)  # nobody else has to wait
    np.testing.assert_array_equal(other.frames, whole.frames)
    assert waits(tts) == first
    stream.append("this is ")
    assert first < waits(tts, first) < FRAMES
    stream.append(TEXT.partition("this is ")[2], last=True)
    assert heard + sum(len(c.frames) for c in chunks) == FRAMES


def test_a_live_row_that_loses_its_pages_is_replayed_with_its_text(tmp_path: Path) -> None:
    path = tiny.write("custom_voice", tmp_path / "m")
    texts = [f"number {i} " * (i + 2) for i in range(4)]
    with TTS(path, device="cpu", max_num_seqs=4, dtype="float64") as rich:
        want = [speech.frames.tolist() for speech in rich.generate(texts, **ASK)]
    with TTS(path, device="cpu", max_num_seqs=4, dtype="float64", memory_gb=0.00012) as starved:
        all_there = threading.Event()
        hold(starved)(all_there)
        streams = [begin(starved, t[:9]) for t in texts]
        for at in range(9, max(map(len, texts)), 6):
            for t, s in zip(texts, streams, strict=True):
                if at < len(t):
                    s.append(t[at : at + 6], last=at + 6 >= len(t))
        all_there.set()
        assert [frames(starved, s).tolist() for s in streams] == want
        assert starved.engine.health().preemptions > 0


def test_text_may_come_while_the_request_still_waits_for_a_slot(tts: TTS, whole: Speech) -> None:
    waiting = [begin(tts, "Hello there, ") for _ in range(3)]  # every slot
    last = begin(tts, TEXT[:20])
    last.append(TEXT[20:], last=True)
    for stream in waiting:
        stream.cancel()
    np.testing.assert_array_equal(frames(tts, last), whole.frames)


def test_cancelling_a_row_that_waits_for_text_frees_it(tts: TTS) -> None:
    stream = begin(tts, "Hello there, ")
    waits(tts)
    stream.cancel()
    assert list(stream)[-1].finish == "cancelled"
    stream.append("more", last=True)  # too late; nobody is harmed
    assert tts.generate("Hello.", **{**ASK, "max_frames": 4}).finish_reason == "length"
    end = time.monotonic() + STUCK_S
    while (health := tts.engine.health()).running or health.free_pages < health.pages:
        assert time.monotonic() < end, health
        time.sleep(0.02)


def test_what_cannot_be_live_is_refused(tts: TTS, tmp_path: Path) -> None:
    for call in (tts.generate, tts.stream):
        with pytest.raises(InvalidRequest, match="live"):
            call("Hello.", live=True)
    with pytest.raises(InvalidRequest, match="live"):
        begin(tts, "Hello.", non_streaming_mode=True)
    whole = tts.submit(tts.request("Hello.", **ASK))
    with pytest.raises(InvalidRequest, match="live"):
        whole.append("more")
    stream = begin(tts, "Hello there, ")
    with pytest.raises(InvalidRequest, match="text: is too long for one request"):
        stream.append("a " * (TEXT_CAPACITY + 1))
    stream.append("you", last=True)
    with pytest.raises(InvalidRequest, match="nothing may follow"):
        stream.append("more")
    with TTS(
        tiny.write("base", tmp_path / "base"), device="cpu", max_num_seqs=1, memory_gb=0.05
    ) as base:
        heard = Reference((tiny.reference_audio(1.0), 24000), "words")
        ask = {"live": True, "reference": heard, "max_frames": 4}
        with pytest.raises(InvalidRequest, match="live"):
            base.prompt(base.request("Hello there", **ask))
        assert base.prompt(base.request("Hello there", **ask, x_vector_only=True)).live is not None
    with (
        TTS("dummy:toy", memory_gb=0.01) as toy,
        pytest.raises(InvalidRequest, match="complete text"),
    ):
        toy.request("Hello.", live=True)


@pytest.mark.parametrize(
    ("text", "last", "says"),
    [
        (5, False, "text: must be a string, got int"),
        ("words \ud800", False, "text: is not valid Unicode"),  # kept, it would spoil what follows
        ("words", None, "last: must be true or false, got None"),
    ],
)
def test_text_that_is_none_is_refused_and_the_request_goes_on(
    tts: TTS, text: object, last: object, says: str
) -> None:
    stream = begin(tts, "Hello there, ")
    with pytest.raises(InvalidRequest, match=says):
        stream.append(text, last)  # type: ignore[arg-type]
    stream.append("you.", last=True)
    assert list(stream)[-1].finish == "length"


def prompt(suspect: int | None) -> Prompt:
    none = np.zeros(0, np.int32)
    return Prompt({"text": none}, none, none, {"text": none}, 1, 0, none, runaway_frames=suspect)


PARTS = st.lists(
    st.one_of(
        st.text(max_size=6),
        st.sampled_from(
            ["<|im_end|>", "<|im", "_start|>", "<tts_", "pad>", "don", "'t", "é", "e", "\u0301", "\n", "  ", ". ", "3.", "14",
             "你好", "，", "한", "\u1112\u1161", "\u11ab", "word ", "Word", " \n x", "...", " '", "ll", "\r\n"]
        ),
    ),
    max_size=12,
)  # fmt: skip


@settings(deadline=None, max_examples=200)
@given(PARTS)
def test_the_ids_of_parts_are_those_of_the_whole(
    tokenizer: QwenTokenizer, parts: list[str]
) -> None:
    text = "".join(parts)
    try:
        want = tokenizer.encode(text)
    except UnicodeEncodeError:
        return
    more = LiveColumn(tokenizer.encode, END, prompt(None), "")
    ids = [i for part in parts for i in more(part, False).tolist()]
    assert ids == want[: len(ids)]
    assert [*ids, *more("", True).tolist()] == [*want, END]


def test_words_are_not_held_back_longer_than_they_must(tokenizer: QwenTokenizer) -> None:
    assert [settled(t) for t in ("", "Hello", "Hello ", "Hello the", "don't", "好的，", "3.14", "Hello<|im")] == [
        0, 0, 5, 5, 3, 2, 0, 0,
    ]  # fmt: skip


def test_the_guards_patience_grows_with_the_text(tokenizer: QwenTokenizer) -> None:
    kept = prompt(200)
    LiveColumn(tokenizer.encode, END, kept, "")("one two ", False)
    assert kept.runaway_frames == 200 + 2 * 12
