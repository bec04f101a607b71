"""A stream that nobody reads stops after a stated lead, gives way, goes on when it is read, and always ends."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import numpy as np
import pytest

from stentor import TTS, EngineError, Speech
from stentor.config import Policy
from stentor.engine.engine import Engine
from stentor.engine.stream import AudioStream, Chunk
from tests.engine.test_engine import _checked, assert_all_free, assert_equal, toy, wait_for  # noqa: F401
from tests.helpers.stepped_engine import SteppedEngine, stepped_engines

MAX_UNREAD = 10  # frames of 10 ms
POLICY = Policy(max_unread=MAX_UNREAD / 100)
SPOKEN = {"seed": 3, "min_frames": 90, "max_frames": 90}


@pytest.fixture(scope="module")
def alone() -> Speech:
    with toy(max_num_seqs=1) as tts:
        return tts.generate("hello", retries=1, **SPOKEN)


def begin(tts: TTS, streaming: bool = True) -> AudioStream:
    return tts.submit(tts.request("hello", **SPOKEN), streaming)


def whole(tts: TTS, stream: AudioStream) -> Speech:
    return tts.speech(list(stream), stream.seed)


def stepped(tts: TTS) -> SteppedEngine:
    engine: Engine = tts.engine
    assert isinstance(engine, SteppedEngine)
    return engine


def test_a_stream_that_nobody_reads_stops_after_its_lead_and_a_whole_answer_does_not():
    with stepped_engines(), toy(policy=POLICY) as tts:
        stream, collected = begin(tts), begin(tts, streaming=False)
        stepped(tts).step(110)
        assert tts.engine.stats.finished == 1
        stopped = stream.outbox.unread
        # a chunk, and what was generated meanwhile
        assert MAX_UNREAD < stopped <= MAX_UNREAD + 2 * 25
        assert collected.outbox.unread == 90
        stepped(tts).step(20)
        assert stream.outbox.unread == stopped
        assert tts.engine.scheduler.inert
        stepped(tts).gate.open()
        assert len(whole(tts, stream).frames) == 90


def test_an_unread_stream_gives_way_and_goes_on_as_if_nothing_had_been(alone: Speech):
    with stepped_engines(), toy(policy=POLICY, max_num_seqs=1) as tts:
        stream = begin(tts)
        stepped(tts).step(60)
        other = begin(tts, streaming=False)
        stepped(tts).step(5)
        assert len(tts.engine.scheduler.parked) == 1
        stepped(tts).gate.open()
        assert_equal(alone, whole(tts, other))
        assert_equal(alone, whole(tts, stream))
        assert_all_free(tts)


def test_streams_that_are_read_one_after_another_all_finish(alone: Speech):
    with toy(policy=POLICY, max_num_seqs=2, overlap_steps=1) as tts:
        streams = [begin(tts) for _ in range(6)]
        for stream in streams:
            assert_equal(alone, whole(tts, stream))
        assert_all_free(tts)


def test_an_idle_engine_goes_on_when_its_only_stream_is_read(alone: Speech):
    with toy(policy=POLICY) as tts:
        stream = begin(tts)
        wait_for(lambda: stream.outbox.held)
        assert_equal(alone, whole(tts, stream))


async def _passed(stream: AudioStream) -> None:
    """A reader whose deadline passes after the first chunk."""
    try:
        async with asyncio.timeout(0):
            async for _ in stream:
                await asyncio.Event().wait()
    except TimeoutError:
        pass


def _cancelled(stream: AudioStream) -> None:
    stream.cancel()
    assert list(stream)[-1].finish == "cancelled"


ENDS: dict[str, Callable[[AudioStream], None]] = {
    "cancelled": _cancelled,
    "dropped": lambda stream: None,
    "its deadline passes": lambda stream: asyncio.run(_passed(stream)),
}


@pytest.mark.parametrize("end", ENDS.values(), ids=ENDS.keys())
def test_a_parked_stream_ends_and_everything_is_free(end: Callable[[AudioStream], None]):
    with toy(policy=POLICY, max_num_seqs=1) as tts:
        stream = begin(tts)
        outbox = stream.outbox
        wait_for(lambda: outbox.held)
        assert len(whole(tts, begin(tts, streaming=False)).frames) == 90
        assert tts.engine.scheduler.parked
        end(stream)
        del stream
        wait_for(lambda: tts.engine.stats.cancelled == 1)
        wait_for(lambda: tts.engine.scheduler.idle)
        assert_all_free(tts)


def test_a_parked_stream_fails_when_the_engine_is_closed(alone: Speech):
    with toy(policy=POLICY, max_num_seqs=1) as tts:
        stream = begin(tts)
        wait_for(lambda: stream.outbox.held)
        whole(tts, begin(tts, streaming=False))
        assert tts.engine.scheduler.parked
    got: list[np.ndarray] = []
    with pytest.raises(EngineError, match="stopped"):
        got.extend(chunk.frames for chunk in stream)
    frames = np.concatenate(got)
    assert len(frames) > MAX_UNREAD
    np.testing.assert_allclose(frames, alone.frames[: len(frames)], atol=1e-6)


def test_a_stream_that_is_dropped_is_cancelled_though_it_was_submitted_by_hand():
    with toy(policy=POLICY, max_num_seqs=1) as tts:
        begin(tts)
        wait_for(lambda: tts.engine.stats.cancelled == 1)
        assert_all_free(tts)


def test_a_stream_that_has_ended_gives_nothing_more():
    async def rest(stream: AudioStream) -> list[Chunk]:
        return [chunk async for chunk in stream]

    with toy() as tts:
        stream = begin(tts)
        assert len(list(stream)) > 0
        assert list(stream) == []
        assert asyncio.run(rest(stream)) == []
        failed = begin(tts)
        tts.close()
        with pytest.raises(EngineError, match="closed"):
            list(failed)
        assert list(failed) == []
