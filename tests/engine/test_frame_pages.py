"""Page sets that count frames, beside the one that counts positions: given, shared, taken and counted together."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import torch

from stentor import TTS, InvalidRequest, Reference
from stentor.config import Policy
from stentor.engine.memory import frame_bytes
from stentor.engine.scheduling.pages import PageAllocator, PageTables
from stentor.engine.scheduling.sequence import Sequence
from stentor.engine.sequence_maker import frame_keys
from tests.helpers.invariants import check
from tests.helpers.stepped_engine import read_at_once

TEXTS = ["the first of three", "another one that is quite a bit longer", "last"]
VOICE = Reference((np.sin(np.arange(540, dtype=np.float32) / 50), 6000))  # nine frames
SMALL = {"dtype": "float64", "threads": 1, "max_frames": 64}


@pytest.fixture(scope="module")
def alone() -> Iterator[dict[int, np.ndarray]]:
    with TTS("dummy:toy-frames", max_num_seqs=1, **SMALL) as tts:
        yield {i: speech.samples for i in range(6) if (speech := tts.generate(**request(i)))}


def request(i: int) -> dict[str, object]:
    voice = {"reference": VOICE} if i % 2 else {}
    return {
        "text": TEXTS[i % 3],
        "seed": i,
        "max_frames": 30,
        "min_frames": 30,
        "retries": 1,
        **voice,
    }


def compare(tts: TTS, alone: dict[int, np.ndarray], streaming: bool = True) -> None:
    with read_at_once(tts):
        streams = [
            (
                i,
                tts.submit(
                    tts.request(**{k: v for k, v in request(i).items() if k != "retries"}),
                    streaming,
                ),
            )
            for i in alone
        ]
    for i, stream in streams:
        samples = np.concatenate([c.samples for c in stream])
        assert samples.shape == alone[i].shape
        np.testing.assert_allclose(samples, alone[i], atol=1e-6)


@pytest.mark.parametrize("streaming", [True, False])
def test_requests_together_are_as_alone(alone: dict[int, np.ndarray], streaming: bool):
    with TTS("dummy:toy-frames", max_num_seqs=4, **SMALL) as tts:
        compare(tts, alone, streaming)


def test_requests_that_lose_their_pages_are_as_alone(alone: dict[int, np.ndarray]):
    policy = Policy(reserve_tokens=1, prefix_cache=False, max_prefill_tokens=7, max_prefill_delay=0)
    with TTS("dummy:toy-frames", max_num_seqs=4, page_size=4, policy=policy, **SMALL) as tts:
        frames = tts.engine.scheduler.tables.frames
        taken = frames.allocate(frames.available - 60)  # frames run out, and positions do not
        compare(tts, alone)
        assert tts.engine.health().preemptions > 0
        frames.free(taken or [])
        check(tts.engine.scheduler)


def test_a_voice_is_found_in_pages_of_both_kinds(alone: dict[int, np.ndarray]):
    policy = Policy(min_cached_tokens=4, min_cached_voice_tokens=4)
    with TTS("dummy:toy-frames", max_num_seqs=2, page_size=4, policy=policy, **SMALL) as tts:
        compare(tts, alone)
        before = tts.engine.health().stats.cached_tokens
        compare(tts, alone)
        assert tts.engine.health().stats.cached_tokens > before + 3 * 8
        tables = tts.engine.scheduler.tables
        assert tables.frames.kept >= 8
        check(tts.engine.scheduler)


def test_the_audio_of_a_first_chunk_is_late_and_the_last_brings_the_rest():
    with TTS("dummy:toy-frames", max_num_seqs=1, policy=Policy(ramp=(1,), chunk=1), **SMALL) as tts:
        lengths = [
            len(c.samples) for c in tts.submit(tts.request("hello", max_frames=5, min_frames=5))
        ]
    assert lengths == [4, 6, 6, 6, 8]


def test_a_request_with_more_frames_than_there_are_pages_is_bounded_or_refused():
    with TTS(
        "dummy:toy-frames", max_num_seqs=1, page_size=4, memory_gb=20 * 1792 / 2**30, **SMALL
    ) as tts:
        assert tts.engine.sizes.frame_pages == 2 * tts.engine.sizes.pages
        assert len(tts.generate("hi", max_frames=60, min_frames=60, retries=1).frames) < 60
        long = Reference((np.sin(np.arange(60 * 60, dtype=np.float32)), 6000))
        with pytest.raises(InvalidRequest):
            tts.generate("hi", reference=long, retries=1)


def test_memory_counts_the_rows_of_each_set():
    with TTS("dummy:toy-frames", max_num_seqs=1, dtype="float32", threads=1) as tts:
        spec, sizes = tts.spec, tts.engine.sizes
        assert frame_bytes(spec) == (2 + 1) * 2 * 2 * 4 * 4
        assert sizes.page_bytes == 16 * 2 * 2 * 2 * 8 * 4 + 8 * frame_bytes(spec)
        assert "of a frame" in sizes.describe()
        pool = tts.engine.runner.kv.frames["heard"].pool
        assert pool.shape == (1, 2, sizes.frame_pages + 1, 2, 2, 4)


# -- the host's account, without a model --


def tables(pages: int = 10, frames: int = 10) -> PageTables:
    return PageTables(
        PageAllocator(pages, 4),
        Policy(min_cached_tokens=4, reserve_tokens=0),
        PageAllocator(frames, 1),
    )


def sequence(id: int, length: int, frame_at: tuple[int, ...]) -> Sequence:
    seq = Sequence(id, length, 20, 0, 0, 0.1, False)
    seq.prefix = tuple(bytes([page]) * 16 for page in range(length // 4))
    seq.frame_at, seq.frame_keys = frame_at, frame_keys(frame_at, seq.prefix, 4)
    return seq


def test_frames_are_shared_with_the_positions_up_to_theirs():
    t, first, second = tables(), sequence(0, 11, (2, 3, 4, 9)), sequence(1, 11, (2, 3, 4, 9))
    assert len(first.frame_keys) == 3, "the last page of the prompt is not full"
    assert t.start(first, t.shared(first))
    assert (len(first.pages), len(first.frame_pages)) == (3, 5)
    first.piece = range(11)
    t.publish(first)
    t.begin_plan()
    shared = t.shared(second)
    assert shared == (first.pages[:2], first.frame_pages[:3])
    assert t.start(second, shared)
    assert second.num_cached == 8
    assert t.frames.available == 10 - 5 - 2
    t.free(first)
    t.free(second)
    assert (t.pages.available, t.frames.available) == (10, 10)


def test_a_page_whose_frames_are_gone_is_not_shared():
    t, first, second = tables(), sequence(0, 12, (2, 5)), sequence(1, 12, (2, 5))
    t.start(first, t.shared(first))
    first.piece = range(12)
    t.publish(first)
    t.begin_plan()
    t.frames.forget(first.frame_pages[1:2])
    assert t.shared(second) == (first.pages[:1], first.frame_pages[:1])


def test_frames_that_another_launch_is_to_write_are_not_shared():
    t, first, second = tables(), sequence(0, 12, (2, 5)), sequence(1, 12, (2, 5))
    second.num_evals = 3
    t.start(first, t.shared(first))
    first.piece = range(12)
    t.publish(first)
    t._unwritten.clear()
    assert t.shared(second) == ([], [])


def test_nothing_is_taken_where_one_of_both_is_short():
    t, seq = tables(frames=2), sequence(0, 8, (0, 1))
    assert not t.has_room(seq, t.shared(seq))
    assert not t.start(seq, t.shared(seq))
    assert (t.pages.available, t.frames.available) == (10, 2)
    t = tables(pages=1)
    assert not t.start(seq, t.shared(seq))
    assert (t.pages.available, t.frames.available) == (1, 10)


def test_no_other_family_has_pages_by_frame():
    with TTS("dummy:toy", max_num_seqs=1, threads=1) as tts:
        assert not tts.engine.runner.kv.frames
        assert tts.engine.sizes.frame_pages == 0
        assert torch.equal(
            tts.engine.runner.kv.table,
            torch.full_like(tts.engine.runner.kv.table, tts.engine.sizes.pages),
        )
