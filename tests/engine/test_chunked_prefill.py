"""Prompts in pieces give what whole prompts give, in shapes that a GPU captures, whatever happens in the middle."""

from __future__ import annotations

import json
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from stentor import TTS, Reference, Speech
from stentor.config import Policy
from stentor.engine.scheduling.sequence import Phase
from stentor.models.voxcpm2.config import parse
from tests.engine.test_engine import VOICE, _checked, assert_all_free, assert_equal, toy  # noqa: F401
from tests.helpers.captured import TOKENS, capture_prefills, eager_prefills, small_shapes
from tests.helpers.stepped_engine import SteppedEngine, hold, stepped_engines
from tests.helpers.tiny import FAMILIES, checkpoint
from tests.helpers.tiny import VOICE as VOICES

PAGE = 4
TEXTS = (
    "a long text that goes in pieces " * 3,
    "a long text that goes in pieces and ends soon",
    "short",
)
OPTIONS: dict[str, Any] = {"reference": VOICE, "max_frames": 10, "min_frames": 10, "seed": 7}
BUDGETS = (7, 16, TOKENS)


def policy(budget: int, **more: Any) -> Policy:
    return Policy(max_prefill_tokens=budget, min_cached_tokens=PAGE, reserve_tokens=4, **more)


def spoken(tts: TTS, count: int = 1, together: bool = False, **options: Any) -> list[Speech]:
    """All texts at once, `count` times. `together`: the engine sees none before all are there."""
    requests = [tts.request(text, **{**OPTIONS, **options}) for text in TEXTS * count]
    all_there = threading.Event()
    if together:
        hold(tts)(all_there)
    streams = [tts.submit(request) for request in requests]
    all_there.set()
    return [tts.speech(list(s), s.seed) for s in streams]


@pytest.fixture(scope="module")
def whole() -> Iterator[list[Speech]]:
    """Audio of each text from a prompt computed in one piece."""
    with toy(page_size=PAGE, policy=Policy(prefix_cache=False)) as tts:
        yield [tts.generate(text, retries=1, **OPTIONS) for text in TEXTS]


def assert_all_equal(whole: list[Speech], got: list[Speech]) -> None:
    for i, speech in enumerate(got):
        assert_equal(whole[i % len(TEXTS)], speech)


@pytest.mark.parametrize("captured", [False, True], ids=["as it is", "captured"])
@pytest.mark.parametrize("budget", BUDGETS)
def test_a_prompt_in_pieces_says_what_it_says_whole(
    monkeypatch: pytest.MonkeyPatch, whole: list[Speech], budget: int, captured: bool
) -> None:
    """The cache is cold, warm, and shared by 15 requests that come at once."""
    small_shapes(monkeypatch)
    with toy(page_size=PAGE, policy=policy(budget)) as tts:
        if captured:
            capture_prefills(tts)
        for count in (1, 1, 5):
            assert_all_equal(whole, spoken(tts, count))
        assert tts.engine.stats.cached_tokens > 0.5 * tts.engine.stats.prompt_tokens
        assert_all_free(tts)
        if captured:
            assert eager_prefills(tts) == 0


@pytest.mark.parametrize("captured", [False, True], ids=["as it is", "captured"])
def test_preempted_requests_go_on_in_pieces_of_captured_shapes(
    monkeypatch: pytest.MonkeyPatch, whole: list[Speech], captured: bool
) -> None:
    """Few pages: requests are preempted, and pages of voices are evicted while others are in their middle."""
    small_shapes(monkeypatch)
    pages = 44 * PAGE * 2 * 2 * 2 * 8 * 8 / 2**30
    with toy(page_size=PAGE, memory_gb=pages, policy=policy(7)) as tts:
        if captured:
            capture_prefills(tts)
        assert_all_equal(whole, spoken(tts, 5, together=True))
        health = tts.engine.health()
        assert health.preemptions > 0
        if captured:
            assert eager_prefills(tts) == 0
        assert_all_free(tts)


def test_prompts_with_other_loop_lengths_take_captured_shapes_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Their last tokens are computed again, behind a prefill that makes no frame."""
    small_shapes(monkeypatch)
    with toy(page_size=PAGE, policy=Policy(prefix_cache=False)) as tts:
        want = [tts.generate(text, retries=1, **{**OPTIONS, "flow_steps": 5}) for text in TEXTS]
    with toy(page_size=PAGE, policy=policy(16)) as tts:
        capture_prefills(tts)
        assert_all_equal(want, spoken(tts, 2, flow_steps=5))
        assert eager_prefills(tts) == 0


def test_prompts_with_a_named_voice_take_captured_shapes_too(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Its frames are those of a reference, in a model that takes none."""
    small_shapes(monkeypatch)
    path = checkpoint("voxcpm2", tmp_path)
    copied = shutil.copytree(path, tmp_path / "voices")
    config = json.loads((copied / "config.json").read_text())
    config["stentor"] = {"voices": ["ann"], "takes_reference": False}
    (copied / "config.json").write_text(json.dumps(config))
    shape = parse(config)
    save_file({"ann": torch.ones(2, shape.patch, shape.feat)}, copied / "voices.safetensors")
    load: dict[str, Any] = {
        "device": "cpu",
        "max_num_seqs": 4,
        "policy": Policy(max_prefill_tokens=TOKENS),
    }
    options: dict[str, Any] = {"max_frames": 2, "min_frames": 2, "seed": 7, "retries": 1}
    with TTS(copied, **load) as tts:
        want = tts.generate("short", **options)
    with TTS(copied, **load) as tts:
        capture_prefills(tts)
        np.testing.assert_allclose(
            tts.generate("short", **options).samples, want.samples, atol=1e-4
        )
        assert eager_prefills(tts) == 0


@pytest.mark.parametrize("failing", [0, 1, 2, 4])
def test_a_piece_that_fails_is_computed_again_and_says_the_same(
    monkeypatch: pytest.MonkeyPatch, whole: list[Speech], failing: int
) -> None:
    with toy(page_size=PAGE, policy=policy(7)) as tts:
        plain, calls = tts.engine.runner.prefill, iter(range(1000))

        def prefill(group: Any) -> Any:
            if next(calls) == failing and len(group) > 1:
                raise torch.OutOfMemoryError("full")
            return plain(group)

        monkeypatch.setattr(tts.engine.runner, "prefill", prefill)
        assert_all_equal(whole, spoken(tts, 2))
        assert_all_free(tts)


@pytest.mark.parametrize("after", [0, 1, 2])
def test_who_shares_pages_of_a_prefill_that_is_cancelled_halfway_says_the_same(
    whole: list[Speech], after: int
) -> None:
    """Pages whose tokens were launched are found. Those of pieces that were never planned are not."""
    with stepped_engines(), toy(page_size=PAGE, policy=policy(7)) as tts:
        engine: SteppedEngine = tts.engine  # type: ignore[assignment]
        first = tts.submit(tts.request(TEXTS[0], **OPTIONS))
        engine.step(1 + after)
        (seq,) = engine.scheduler.live
        assert seq.phase is Phase.PREFILLING
        launched = seq.piece.stop // PAGE
        assert len(engine.scheduler.pages.find(seq.prefix)) == launched
        first.cancel()
        engine.step(2)
        assert len(engine.scheduler.pages.find(seq.prefix)) == launched
        other = tts.submit(tts.request(TEXTS[0], **OPTIONS))
        engine.step(120)
        assert_equal(whole[0], tts.speech(list(other), other.seed))
        assert engine.stats.cached_tokens == launched * PAGE
        assert_all_free(tts)


def test_tokens_are_counted_once_however_many_pieces_they_take() -> None:
    with toy(page_size=PAGE, policy=policy(7)) as tts:
        length = tts.prompt(tts.request(TEXTS[0], **OPTIONS)).length
        for time in range(2):
            tts.generate(TEXTS[0], retries=1, **OPTIONS)
            assert tts.engine.stats.prompt_tokens == (1 + time) * length
        assert tts.engine.stats.cached_tokens == (length - 1) // PAGE * PAGE


def asked(family: str, pitch: int = 220) -> dict[str, Any]:
    """Options with which a prompt has given frames where the family takes them, so that pieces are cut inside those."""
    if family == "qwen3_tts":
        return VOICES[family] if pitch == 220 else {"voice": "ryan"}
    t = np.arange(12000) / 16000
    sound = (0.3 * np.sin(2 * np.pi * pitch * t) * np.sin(9 * t)).astype(np.float32), 16000
    return {"reference": Reference(sound, "what is said" if family == "fish_s2" else None)}


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_says_the_same_in_pieces(
    monkeypatch: pytest.MonkeyPatch, family: str, tmp_path: Path
) -> None:
    """An odd budget, captured shapes, a cache that is cold, warm, shared by 16, preemptions, and another voice that
    evicts pages while they run."""
    small_shapes(monkeypatch)
    path = checkpoint(family, tmp_path)
    sizes: dict[str, Any] = {"device": "cpu", "dtype": "float32", "max_num_seqs": 4, "page_size": 4}
    options = {**asked(family), "max_frames": 8, "seed": 3}
    texts = ["Hello there, one two three.", "Hello there, one two four."]
    with TTS(path, memory_gb=0.02, policy=Policy(prefix_cache=False), **sizes) as tts:
        options |= {"ignore_eos": True} if "ignore_eos" in tts.spec.options else {}
        want = [tts.generate(t, retries=1, **options) for t in texts]
        longest = max(tts.prompt(tts.request(t, **options)).length for t in texts)
        few = (-(-(longest + 8) // 4) + 3) * tts.engine.sizes.page_bytes / 2**30
    with TTS(path, memory_gb=few, policy=policy(13), **sizes) as tts:
        capture_prefills(tts)
        for count in (1, 8):
            streams = [
                tts.submit(tts.request(t, **options), streaming=False) for t in texts * count
            ]
            other = tts.submit(
                tts.request(texts[0], **{**options, **asked(family, 330)}), streaming=False
            )
            for i, stream in enumerate(streams):
                assert_close(want[i % 2], tts.speech(list(stream), stream.seed))
            list(other)
        assert eager_prefills(tts) == 0
        assert tts.engine.stats.cached_tokens > 0
        health = tts.engine.health()
        assert min(health.preemptions, health.evictions) > 0
        assert_all_free(tts)


def assert_close(want: Speech, got: Speech) -> None:
    if want.frames.dtype.kind == "f":
        np.testing.assert_allclose(got.frames, want.frames, atol=1e-4)
    else:
        np.testing.assert_array_equal(got.frames, want.frames)
