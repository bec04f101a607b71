"""Where in its text each frame looks: as attention has it, and the same whatever happens around a request."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest
import torch

from stentor import TTS, InvalidRequest, Reference, Speech
from stentor.config import Policy
from stentor.engine.running.kv_cache import PagedKV
from stentor.engine.running.step import attended
from stentor.kernels.types import TextWindow
from stentor.models.base import KVSpec
from stentor.models.info import ATTENDED_WIDTH, REACH, AlignmentHeads
from tests.helpers.patience import STUCK_S
from tests.helpers.stepped_engine import hold

TEXTS = ["one two three", "four, five and six.", "seven", "eight nine ten eleven twelve"]
ASK = {"max_frames": 24, "min_frames": 24, "retries": 1, "word_timestamps": True}
VOICE = Reference((np.sin(np.arange(1200) / 30).astype(np.float32), 6000))
PREEMPTED = {
    "page_size": 4,
    "memory_gb": 24 * 4 * 2 * 2 * 2 * 8 * 8 / 2**30,
    "policy": Policy(reserve_tokens=4),
}


def toy(kind: str = "words", **engine: object) -> TTS:
    return TTS(
        f"dummy:toy-{kind}", dtype="float64", **{"max_num_seqs": 4, "memory_gb": 0.002, **engine}
    )


@pytest.fixture(scope="module")
def solo() -> list[Speech]:
    with toy(max_num_seqs=1) as tts:
        return [tts.generate(text, seed=7, **ASK) for text in TEXTS]


@pytest.fixture(scope="module")
def alone_in_window() -> list[Speech]:
    with toy("window", max_num_seqs=1) as tts:
        return [tts.generate(text, seed=7, **ASK) for text in TEXTS]


def assert_same_words(a: Speech, b: Speech) -> None:
    assert [w.text for w in a.words] == [w.text for w in b.words]
    for one, other in zip(a.words, b.words, strict=True):
        np.testing.assert_allclose((one.start, one.end), (other.start, other.end), atol=1e-6)


class Rows(dict):
    num_evals = 0


def test_the_heads_of_a_row_look_at_its_own_text_across_pages_and_nowhere_else():
    generator = torch.Generator().manual_seed(1)
    kv = PagedKV(KVSpec(2, 2, 4, torch.float64), 2, 8, 4, 4, torch.device("cpu"))
    kv.pool.copy_(torch.randn(kv.pool.shape, generator=generator, dtype=torch.float64) * 3)
    kv.table[:2] = torch.tensor([[3, 0, 5, 1], [2, 7, 4, 6]])
    heads = AlignmentHeads((1,), 3, 2, 0.5)  # two heads of the first key head, one of the second
    queries = torch.randn(2, 1, 3, 4, generator=generator, dtype=torch.float64)
    rows = Rows(text_start=torch.tensor([2, 0]), text_end=torch.tensor([13, 6]))
    out = attended(kv, heads, queries, rows, torch.tensor([0, 1]), 4)
    assert out.shape == (2, ATTENDED_WIDTH)
    for b, (start, end) in enumerate(((2, 13), (0, 6))):
        keys = kv.pool[1, 0][kv.table[b]].flatten(0, 1)[start:end]
        scores = [(keys[:, h // 2] @ queries[b, 0, h] * 0.5).softmax(0) for h in range(3)]
        mean = torch.stack(scores).mean(0)
        peak = int(mean.argmax())
        assert int(out[b, 0]) == peak
        for k in range(-REACH, REACH + 1):
            want = float(mean[peak + k]) if 0 <= peak + k < end - start else 0.0
            assert float(out[b, 1 + REACH + k]) == pytest.approx(want, abs=1e-6)


def test_in_a_window_the_position_that_is_said_is_in_it_and_never_before_the_last_place():
    generator = torch.Generator().manual_seed(2)
    kv = PagedKV(KVSpec(1, 1, 4, torch.float64), 1, 5, 4, 5, torch.device("cpu"))
    kv.pool.copy_(torch.randn(kv.pool.shape, generator=generator, dtype=torch.float64) * 3)
    kv.table[0] = torch.arange(5)
    heads, idx = AlignmentHeads((0,), 1, 1, 0.5, window=(2, 3)), torch.zeros(8, dtype=torch.int64)
    rows = Rows(text_start=torch.full((8,), 3), text_end=torch.full((8,), 15))
    place = torch.tensor([0.0, 1, 4, 5, 8, 9, 10, 11])
    window = TextWindow((0,), rows["text_start"], rows["text_end"], place, 2, 3)
    queries = torch.randn(8, 1, 1, 4, generator=generator, dtype=torch.float64)
    out = attended(kv, heads, queries, rows, idx, 5, window)
    free = attended(kv, heads, queries, rows, idx, 5)
    assert (out[:, 0] >= place).all()
    assert (out[:, 0] <= (place + 3).clamp_max(11)).all()
    assert (free[:, 0] < place - 2).any(), "some would look back further"
    assert (free[:, 0] > place + 3).any(), "and some ahead"
    keys = kv.pool[0, 0, kv.table[0]].flatten(0, 1)[:, 0]
    for b in range(8):
        first, last = max(0, int(place[b]) - 2), min(11, int(place[b]) + 3)
        inside = (keys[3 + first : 4 + last] @ queries[b, 0, 0] * 0.5).softmax(0)
        assert int(out[b, 0]) == max(int(place[b]), first + int(inside.argmax()))
        around = out[b, 1:].tolist()
        want = {first + n: float(share) for n, share in enumerate(inside)}
        at = range(int(out[b, 0]) - REACH, int(out[b, 0]) + REACH + 1)
        np.testing.assert_allclose(around, [want.get(n, 0.0) for n in at], atol=1e-6)


@pytest.mark.parametrize(
    "engine",
    [
        {},
        {"overlap_steps": 2},
        {"page_size": 4, "policy": Policy(max_prefill_tokens=5)},
        PREEMPTED,
    ],
    ids=["batched", "overlapped", "in pieces", "preempted"],
)
def test_words_have_the_same_times_in_any_company(solo: list[Speech], engine: dict):
    for alone, speech in zip(solo, together("words", engine), strict=True):
        assert_same_words(alone, speech)


@pytest.mark.parametrize(
    "engine", [{"overlap_steps": 2}, PREEMPTED], ids=["overlapped", "preempted"]
)
def test_a_row_that_sees_a_part_of_its_text_is_the_same_in_any_company(
    solo: list[Speech], alone_in_window: list[Speech], engine: dict
):
    """One that is preempted computes its frames again, each with what it saw then."""
    for plain, alone, speech in zip(solo, alone_in_window, together("window", engine), strict=True):
        assert not np.allclose(plain.samples, alone.samples)
        np.testing.assert_allclose(speech.samples, alone.samples, atol=1e-6)
        assert_same_words(alone, speech)


def together(kind: str, engine: dict) -> list[Speech]:
    """The texts in one batch, which is preempted if `engine` is PREEMPTED."""
    with toy(kind, **engine) as tts, ThreadPoolExecutor() as pool:
        all_are_there = threading.Event()
        hold(tts)(all_are_there)
        running = pool.submit(tts.generate, TEXTS, seed=7, **ASK)
        deadline = time.monotonic() + STUCK_S
        while tts.engine.health().queued < len(TEXTS) and time.monotonic() < deadline:
            time.sleep(0.001)
        all_are_there.set()
        speeches = running.result()
        assert (tts.engine.health().preemptions > 0) == (engine is PREEMPTED)
    return speeches


def test_an_utterance_that_ran_on_has_the_words_of_its_last_try():
    with toy() as tts:
        ask = {**ASK, "max_frames": 60, "min_frames": 60}
        again = tts.generate("ab cd", seed=7, **{**ask, "retries": 3})  # every try runs on
        assert again.seed == 7
        assert_same_words(tts.generate("ab cd", seed=9, **ask), again)


def test_each_sentence_of_a_text_has_the_words_of_the_sentence_alone_where_it_is_spoken():
    with toy() as tts:
        ask = {**ASK, "seed": 7, "voice": "low"}
        cut = tts.generate(
            "one two three. Four, five [pause 200ms] and six.", split_granularity="sentence", **ask
        )
        alone = [tts.generate(part, **ask) for part in ("one two three.", "Four, five", "and six.")]
    assert [s.text for s in cut.segments] == ["one two three.", "Four, five", "and six."]
    for segment, speech in zip(cut.segments, alone, strict=True):
        own = [(w.start + segment.start, w.end + segment.start) for w in speech.words]
        np.testing.assert_allclose([(w.start, w.end) for w in segment.words], own, atol=1e-6)


def test_a_voice_before_the_text_moves_no_word_out_of_the_text():
    with toy() as tts:
        speech = tts.generate(TEXTS[1], reference=VOICE, voice="low", seed=7, **ASK)
    assert [w.text for w in speech.words] == TEXTS[1].split()


def test_a_language_that_no_aligner_knows_is_refused_before_anything_is_queued():
    with TTS("dummy:toy", max_num_seqs=1, memory_gb=0.002) as tts:
        tts.engine.model.spec = replace(tts.spec, languages=("german",))
        for call in (tts.generate, tts.stream):
            with pytest.raises(
                InvalidRequest, match="word_timestamps: no aligner knows the words of 'german'"
            ):
                call("hello", word_timestamps=True)
        with pytest.raises(
            InvalidRequest, match="word_timestamps: must be true or false, got 'yes'"
        ):
            tts.generate("hello", word_timestamps="yes")
        assert tts.generate("hello", max_frames=4, word_timestamps=False).words == ()
