"""Families without steps: pieces of similar lengths share a call, and what is urgent goes between two calls."""

import threading
import time

import numpy as np
import pytest

from stentor.config import EngineConfig
from stentor.engine.on_host import Workers
from stentor.engine.running_pieces.model_runner import similar
from stentor.engine.running_pieces.side import PieceSide
from stentor.errors import EngineError, InvalidRequest
from stentor.models.codec_timing import PieceTiming
from stentor.speech.words import word_spans
from tests.helpers.pieces import FRAMES, HOP, Letters, letters, prompt, samples

ONE = PieceTiming()
SIX = PieceTiming(rows=6, frames=200)


def audio(stream):
    return np.concatenate([chunk.samples for chunk in stream])


def until(condition):
    """Wait for the engine's thread."""
    for _ in range(10_000):
        if condition():
            return
        time.sleep(0.001)
    raise AssertionError("it does not happen")


@pytest.mark.parametrize("timing", [ONE, SIX])
@pytest.mark.parametrize("streaming", [False, True])
@pytest.mark.parametrize(
    "config", [{}, {"max_num_seqs": 2}, {"overlap_steps": 1}, {"page_size": 3}]
)
def test_every_text_is_spoken_whole_and_every_slot_is_free_then(timing, streaming, config):
    _model, engine, submit = letters(timing, **config)
    texts = ["a", "a few words", "some more words than that", "b", "a few others", "abc def"]
    try:
        streams = [submit(text, streaming) for text in texts]
        chunks = [list(stream) for stream in streams]
        for text, parts in zip(texts, chunks, strict=True):
            assert [part.finish for part in parts] == ["stop"]
            np.testing.assert_array_equal(parts[0].samples, samples(text, 1))
            np.testing.assert_array_equal(parts[0].frames, np.repeat(np.arange(len(text)), FRAMES))
        until(lambda: engine.scheduler.idle)
        assert engine.health().free_slots == engine.scheduler.slots
        assert engine.health().free_pages == engine.health().pages
    finally:
        engine.close()


def test_pieces_of_similar_lengths_share_a_call():
    model, engine, submit = letters(SIX)
    model.goes_on.clear()
    try:
        streams = [submit("first", False)]
        assert model.begun.wait(60)
        texts = ["a" * 8, "b" * 30, "c" * 9, "d" * 10, "e" * 31]
        streams += [submit(text, False) for text in texts]
        until(lambda: len(engine.scheduler.live) == 6)
        model.goes_on.set()
        for stream in streams:
            audio(stream)
        assert model.spoken[0] == ["first"]
        assert sorted(map(sorted, model.spoken[1:])) == [
            ["a" * 8, "c" * 9, "d" * 10],
            ["b" * 30, "e" * 31],
        ]
    finally:
        engine.close()


def test_calls_are_bounded_by_rows_and_by_padded_frames():
    lengths = [10, 10, 10, 10, 10, 12, 40]
    three = PieceTiming(rows=3)
    nine = PieceTiming(rows=9)
    assert similar(lengths, int, three, 0) == [[10, 10, 10], [10, 10, 12], [40]]
    assert similar(lengths, int, nine, 30) == [[10, 10, 10], [10, 10], [12], [40]]
    assert similar(lengths, int, PieceTiming(rows=9, similar=4.0), 0) == [lengths]
    assert similar([], int, three, 0) == []


def test_a_call_takes_padding_that_costs_less_than_another_call():
    lengths = [10, 15, 20, 100, 300]
    timing = PieceTiming(rows=9, padding=15)
    assert similar(lengths, int, timing, 0) == [[10, 15, 20], [100], [300]]
    assert similar(lengths, int, PieceTiming(rows=9, padding=255), 0) == [[10, 15, 20, 100], [300]]
    assert similar(lengths, int, PieceTiming(rows=2, padding=255), 0) == [
        [10, 15],
        [20, 100],
        [300],
    ]
    assert similar(lengths, int, timing, 45) == [[10, 15], [20], [100], [300]]


def test_the_first_piece_of_a_stream_goes_before_those_that_nobody_hears_yet():
    model, engine, submit = letters(ONE)
    model.goes_on.clear()
    try:
        streams = [submit(text, False) for text in ("one", "two", "six")]
        assert model.begun.wait(60)
        streams.append(submit("now", True))
        until(lambda: len(engine.scheduler.live) == 4)
        assert len(model.spoken) == 1
        model.goes_on.set()
        for stream in streams:
            audio(stream)
        assert model.spoken == [["one"], ["now"], ["two"], ["six"]]
    finally:
        engine.close()


def test_the_engine_sleeps_until_a_call_announces_its_end():
    """With hours between two looks at its audio, only that wakes it."""
    model, engine, submit = letters(ONE)
    model.goes_on.clear()
    engine._audio_patience = 3600.0
    timeouts = []
    get = engine.inbox.get

    def recorded(wait, timeout):
        if wait and model.begun.is_set():
            timeouts.append(timeout)
        return get(wait, timeout)

    engine.inbox.get = recorded
    try:
        stream = submit("some words", False)
        assert model.begun.wait(60)
        until(lambda: timeouts)
        model.goes_on.set()
        until(lambda: engine.scheduler.idle)
        np.testing.assert_array_equal(audio(stream), samples("some words", 1))
        assert timeouts[0] == 3600.0
    finally:
        model.goes_on.set()
        engine.close()


def test_a_call_that_fails_ends_its_own_requests_only():
    _model, engine, submit = letters(ONE)
    try:
        streams = [submit(text, False) for text in ("one", "two!", "six")]
        np.testing.assert_array_equal(audio(streams[0]), samples("one", 1))
        with pytest.raises(EngineError, match="it breaks"):
            audio(streams[1])
        np.testing.assert_array_equal(audio(streams[2]), samples("six", 1))
        assert engine.health().ready
    finally:
        engine.close()


def test_a_request_that_is_cancelled_is_not_spoken():
    model, engine, submit = letters(ONE)
    model.goes_on.clear()
    try:
        streams = [submit(text, False) for text in ("one", "two", "six")]
        assert model.begun.wait(60)
        streams[1].cancel()
        until(
            lambda: (
                any(seq.cancelled for seq in engine.scheduler.live)
                or len(engine.scheduler.live) == 2
            )
        )
        model.goes_on.set()
        audio(streams[0])
        audio(streams[2])
        assert model.spoken == [["one"], ["six"]]
        assert [chunk.finish for chunk in streams[1]] == ["cancelled"]
    finally:
        engine.close()


def test_words_have_the_times_of_their_frames_exactly():
    _model, engine, submit = letters(ONE)
    try:
        (chunk,) = submit("a few words here", False)
    finally:
        engine.close()
    words = prompt("a few words here").words
    spans = word_spans(chunk.attended, words, HOP / 100, 0.0)
    letter = FRAMES * HOP / 100
    for word, span in zip(words, spans, strict=True):
        assert span.end == pytest.approx(word.stop * letter, abs=1e-4)
        if word.start:
            assert span.start == pytest.approx(word.start * letter, abs=1e-4)


def test_determinism_is_refused_as_it_is_the_rule():
    with pytest.raises(InvalidRequest, match="deterministic: is not needed"):
        PieceSide(Letters(ONE), ONE, EngineConfig(deterministic=True))


def test_each_thread_that_speaks_is_set_up_once_and_warmed_up_in_turns():
    names = []

    def note():
        names.append(threading.current_thread().name)

    workers = Workers(2, note)
    try:
        for _ in range(2):
            workers.in_each(note)
        assert sorted(names) == ["stentor-row_0"] * 3 + ["stentor-row_1"] * 3
        with pytest.raises(ZeroDivisionError):
            workers.in_each(lambda: 1 // 0)
    finally:
        workers.close()
