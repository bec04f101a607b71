"""`agenerate` and `astream`, with texts that are there and texts that are still being written."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator, Iterator
from typing import Any

import numpy as np
import pytest

from stentor import TTS, BatchError, InvalidRequest, Overloaded, Speech
from stentor.config import Policy
from stentor.errors import EngineError
from stentor.models.toy.model import BROKEN
from tests.fixtures.qwen3_tts import tiny_qwen3_tts

TEXT = "Hello there. How are you today? I am fine."
SHORT = {"max_frames": 6, "min_frames": 6, "seed": 3}
LONG = {"max_frames": 60, "min_frames": 60}


@pytest.fixture(scope="module")
def tts() -> Iterator[TTS]:
    with TTS("dummy:toy", memory_gb=0.01) as engine:
        yield engine


@pytest.fixture(scope="module")
def reads_on(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TTS]:
    """A model that takes text while it speaks."""
    checkpoint = tiny_qwen3_tts.write("custom_voice", tmp_path_factory.mktemp("live") / "model")
    with TTS(checkpoint, device="cpu", max_num_seqs=4, memory_gb=0.05, threads=1) as engine:
        yield engine


async def written(*parts: Any) -> AsyncIterator[Any]:
    for part in parts:
        await asyncio.sleep(0)
        yield part


async def chunks(stream: AsyncIterator[Speech]) -> list[Speech]:
    return [chunk async for chunk in stream]


def joined(found: list[Speech]) -> np.ndarray:
    return np.concatenate([c.samples for c in found])


async def idle(tts: TTS) -> None:
    while (health := tts.engine.health()).running or health.queued:
        await asyncio.sleep(0.005)


@pytest.mark.parametrize("granularity", ["auto", "sentence"])
def test_it_gives_what_the_other_gives(tts: TTS, granularity: str) -> None:
    options = {"split_granularity": granularity, "retries": 1, **SHORT}
    speech, other = asyncio.run(tts.agenerate(TEXT, **options)), tts.generate(TEXT, **options)
    np.testing.assert_allclose(speech.samples, other.samples, atol=1e-5)
    assert (speech.segments, speech.seed, speech.finish_reason) == (
        other.segments,
        other.seed,
        other.finish_reason,
    )
    several = asyncio.run(tts.agenerate([TEXT, "One."], **options))
    assert [s.segments for s in several] == [
        s.segments for s in tts.generate([TEXT, "One."], **options)
    ]
    assert asyncio.run(tts.agenerate([])) == []


def test_a_run_on_is_tried_again_with_the_next_seed(tts: TTS) -> None:
    options = {"min_frames": 60, "max_frames": 60, "seed": 5}
    awaited = asyncio.run(tts.agenerate("Hi!", retries=3, **options))
    last = tts.generate("Hi!", retries=1, **{**options, "seed": 7})
    assert np.array_equal(awaited.samples, tts.generate("Hi!", retries=3, **options).samples)
    assert np.array_equal(awaited.samples, last.samples)
    assert awaited.seed == 5  # repeats all three


def test_a_failure_in_a_list_is_one_failure_and_a_cancelled_task_ends_its_request(tts: TTS) -> None:
    with pytest.raises(BatchError) as e:
        asyncio.run(tts.agenerate(["Fine.", BROKEN], cleanup="none", **SHORT))
    assert [isinstance(r, Speech) for r in e.value.results] == [True, False]
    with pytest.raises(EngineError):
        asyncio.run(tts.agenerate(BROKEN, cleanup="none", **SHORT))

    async def cancelled() -> int:
        before = tts.engine.health().stats.cancelled
        task = asyncio.create_task(tts.agenerate([TEXT, TEXT], **LONG))
        while tts.engine.health().running < 2:
            await asyncio.sleep(0.001)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await idle(tts)
        return tts.engine.health().stats.cancelled - before

    assert asyncio.run(cancelled()) == 2


def test_a_full_queue_refuses_the_first_text_only() -> None:
    async def check(tts: TTS) -> None:
        with pytest.raises(Overloaded):
            await asyncio.gather(*(tts.agenerate("One.", **LONG) for _ in range(8)))
        await idle(tts)
        assert len(await tts.agenerate(["One."] * 8, **SHORT)) == 8

    with TTS("dummy:toy", max_num_seqs=1, memory_gb=0.01, policy=Policy(max_queue=1)) as tts:
        asyncio.run(check(tts))


def test_a_stream_is_the_stream_of_threads(tts: TTS) -> None:
    ours = asyncio.run(chunks(tts.astream(TEXT, split_granularity="sentence", **SHORT)))
    theirs = list(tts.stream(TEXT, split_granularity="sentence", **SHORT))
    np.testing.assert_allclose(joined(ours), joined(theirs), atol=1e-5)
    assert [c.finish_reason for c in ours] == [None] * (len(ours) - 1) + ["length"]
    assert [s for c in ours for s in c.segments] == [s for c in theirs for s in c.segments]


def test_many_run_at_once_in_one_loop(tts: TTS) -> None:
    async def check() -> list[list[Speech]]:
        return await asyncio.gather(
            *(chunks(tts.astream("One.", seed=i, max_frames=6, min_frames=6)) for i in range(40))
        )

    alone = list(tts.stream("One.", seed=7, max_frames=6, min_frames=6))
    np.testing.assert_allclose(joined(asyncio.run(check())[7]), joined(alone), atol=1e-5)


@pytest.mark.parametrize("live", [False, True])
def test_leaving_the_loop_cancels_the_rest(tts: TTS, live: bool) -> None:
    async def check() -> None:
        before = tts.engine.health().stats.cancelled
        closed = asyncio.Event()

        async def endless() -> AsyncIterator[str]:
            try:
                yield "Hello there. How are"
                await asyncio.Event().wait()
            finally:
                closed.set()

        async for chunk in tts.astream(endless() if live else TEXT, **LONG):
            assert len(chunk.samples)
            break
        gc.collect()
        await idle(tts)
        assert tts.engine.health().stats.cancelled == before + 1
        if live:
            await closed.wait()

    asyncio.run(asyncio.wait_for(check(), 60))


def test_audio_comes_while_the_text_is_written(tts: TTS) -> None:
    async def check() -> None:
        first_audio = asyncio.Event()

        async def text() -> AsyncIterator[str]:
            yield "Hello there. How "  # a sentence ends once the next word is complete
            await first_audio.wait()  # the rest is written once something has been heard
            yield "are you today? I am"
            yield " fine."

        chunks = []
        async for chunk in tts.astream(text(), split_granularity="sentence", **SHORT):
            chunks.append(chunk)
            first_audio.set()
        assert [s.text for c in chunks for s in c.segments] == [
            "Hello there.",
            "How are you today?",
            "I am fine.",
        ]
        assert [c.finish_reason for c in chunks] == [None] * (len(chunks) - 1) + ["length"]
        at_once = tts.generate(TEXT, split_granularity="sentence", retries=1, **SHORT)
        assert [s for c in chunks for s in c.segments] == list(at_once.segments)
        np.testing.assert_allclose(joined(chunks), at_once.samples, atol=1e-5)

    asyncio.run(asyncio.wait_for(check(), 60))


def test_a_model_that_reads_on_begins_with_the_first_word(reads_on: TTS) -> None:
    ask = {"voice": "ryan", "max_frames": 28, "ignore_eos": True, "seed": 5}
    text = "Hello there, this is the voice. And you, there, speak."

    async def check() -> list[Speech]:
        first_audio = asyncio.Event()

        async def letters() -> AsyncIterator[str]:
            for letter in text[:12]:
                yield letter
            await first_audio.wait()
            for letter in text[12:]:
                await asyncio.sleep(0)
                yield letter

        chunks = []
        async for chunk in reads_on.astream(letters(), **ask):
            chunks.append(chunk)
            first_audio.set()
        return chunks

    chunks = asyncio.run(asyncio.wait_for(check(), 120))
    (segment,) = [s for c in chunks for s in c.segments]
    assert (segment.text, segment.start_char, segment.end_char) == (text, 0, len(text))
    at_once = joined(list(reads_on.stream(text, non_streaming_mode=False, **ask)))
    spoken = joined(chunks)
    assert len(spoken) == len(at_once) == 28 * 1920
    fade = round(0.005 * reads_on.sample_rate)
    np.testing.assert_allclose(spoken[: -2 * fade], at_once[: -2 * fade], atol=1e-4)


def test_text_after_the_model_has_stopped_is_a_segment_of_its_own(reads_on: TTS) -> None:
    ask = {"voice": "ryan", "max_frames": 3, "ignore_eos": True, "seed": 5}

    async def check() -> list[Speech]:
        ended = asyncio.Event()

        async def text() -> AsyncIterator[str]:
            yield "Hello there "
            await ended.wait()
            yield "and more of it."

        chunks = []
        async for chunk in reads_on.astream(text(), **ask):
            chunks.append(chunk)
            if chunk.segments:
                ended.set()
        return chunks

    chunks = asyncio.run(asyncio.wait_for(check(), 120))
    assert [s.text.strip() for c in chunks for s in c.segments] == [
        "Hello there",
        "and more of it.",
    ]


def test_an_error_of_the_writer_is_raised_after_what_it_has_written(tts: TTS) -> None:
    async def broken() -> AsyncIterator[str]:
        yield "Hello there. "
        raise OSError("the language model is gone")

    async def check() -> list[Speech]:
        chunks: list[Speech] = []

        async def collect() -> None:
            async for chunk in tts.astream(broken(), **SHORT):
                chunks.append(chunk)

        with pytest.raises(OSError, match="the language model is gone"):
            await collect()
        return chunks

    chunks = asyncio.run(asyncio.wait_for(check(), 60))
    assert [s.text for c in chunks for s in c.segments] == ["Hello there."]


WRONG: list[tuple[tuple[Any, ...], dict[str, Any], str]] = [
    (("Hello. ", 5), {}, "text: must bring strings, got int"),
    (("Hello. ", None), {}, "text: must bring strings, got NoneType"),
    (("Hello. ", b"you"), {}, "text: must bring strings, got bytes"),
    (("Hello.",), {"voice": "nobody"}, "voice: 'nobody' is not known"),
    (("Hello.",), {"script": [{"text": "x"}]}, "script: needs the complete text"),
    (("Hello.",), {"voices": {"a": "low"}}, "voices: needs the complete text"),
    (("Hello.",), {"retries": 2}, "retries: needs the complete text"),
    (("Hello.",), {"speed": 9}, "speed: must be a number from 0.25 to 4"),
    (("Hello.",), {"live": True}, "live: is for submit"),
    (("bad \ud800 text.",), {}, "text: is not valid Unicode"),
]


@pytest.mark.parametrize(("parts", "options", "says"), WRONG, ids=[says[:40] for *_, says in WRONG])
def test_what_is_wrong_with_live_text_is_named(
    tts: TTS, parts: Any, options: Any, says: str
) -> None:
    with pytest.raises(InvalidRequest) as e:
        asyncio.run(
            asyncio.wait_for(chunks(tts.astream(written(*parts), **{**SHORT, **options})), 60)
        )
    assert str(e.value).startswith(says)


def test_a_text_that_never_comes_is_no_audio(tts: TTS) -> None:
    assert asyncio.run(chunks(tts.astream(written()))) == []
    assert asyncio.run(chunks(tts.astream(written("", " ", "\n")))) == []


def test_what_is_wrong_with_a_text_is_raised_with_the_first_chunk(tts: TTS) -> None:
    for text in (5, None, "", ["a"]):
        with pytest.raises(InvalidRequest, match="text: must"):
            asyncio.run(chunks(tts.astream(text)))  # type: ignore[arg-type]
