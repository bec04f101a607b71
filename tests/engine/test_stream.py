"""A stream that waits for text without a slot always ends."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import numpy as np
import pytest

from stentor import TTS, EngineError, Speech
from stentor.engine.stream import AudioStream, Chunk
from tests.engine.test_engine import _checked, assert_all_free, assert_equal, toy, wait_for  # noqa: F401
from tests.helpers.random_callers import cut_text

SPOKEN = {"seed": 3, "min_frames": 90, "max_frames": 90}


@pytest.fixture(scope="module")
def alone() -> Speech:
    with toy(max_num_seqs=1) as tts:
        return tts.generate("hello", retries=1, **SPOKEN)


def begin(tts: TTS, streaming: bool = True) -> AudioStream:
    return tts.submit(tts.request("hello", **SPOKEN), streaming)


def begin_live(tts: TTS) -> AudioStream:
    """A stream that has run out of text."""
    prompt = tts.prompt(tts.request("hello", **SPOKEN))
    cut_text(prompt, 1)
    stream = tts.engine.submit(prompt, SPOKEN["seed"], streaming=True)
    wait_for(lambda: any(seq.idle for seq in tts.engine.scheduler.live))
    return stream


def whole(tts: TTS, stream: AudioStream) -> Speech:
    return tts.speech(list(stream), stream.seed)


def test_streams_that_are_read_one_after_another_all_finish(alone: Speech):
    with toy(max_num_seqs=2, overlap_steps=1) as tts:
        streams = [begin(tts) for _ in range(6)]
        for stream in streams:
            assert_equal(alone, whole(tts, stream))
        assert_all_free(tts)


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
    with toy(max_num_seqs=1) as tts:
        stream = begin_live(tts)
        assert len(whole(tts, begin(tts, streaming=False)).frames) == 90
        assert tts.engine.scheduler.parked
        end(stream)
        del stream
        wait_for(lambda: tts.engine.stats.cancelled == 1)
        wait_for(lambda: tts.engine.scheduler.idle)
        assert_all_free(tts)


def test_a_parked_stream_fails_when_the_engine_is_closed(alone: Speech):
    with toy(max_num_seqs=1) as tts:
        stream = begin_live(tts)
        whole(tts, begin(tts, streaming=False))
        assert tts.engine.scheduler.parked
    got: list[np.ndarray] = []
    with pytest.raises(EngineError, match="stopped"):
        got.extend(chunk.frames for chunk in stream)
    frames = np.concatenate(got)
    assert len(frames)
    np.testing.assert_allclose(frames, alone.frames[: len(frames)], atol=1e-6)


def test_a_stream_that_is_dropped_is_cancelled_though_it_was_submitted_by_hand():
    with toy(max_num_seqs=1) as tts:
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
