"""Prompts that bring the keys and values of their first positions."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from stentor import TTS, EngineError
from stentor.audio import digest
from stentor.config import Policy
from stentor.engine.scheduling.pages import PageAllocator, PageTables, Shared
from stentor.engine.scheduling.prefill import PrefillPlanner, StepPlan
from stentor.engine.scheduling.sequence import Sequence
from stentor.engine.sequence_maker import prefix_keys
from stentor.models.base import Prompt
from tests.fixtures.pocket_tts import tiny_pocket_tts as tiny

PAGE = 4


def given(seed: int, length: int = 6) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((1, 2, length, 1, 2), np.float32)


def prompt(prefix: np.ndarray | None, tokens: int = 13) -> Prompt:
    rows = {"token": np.arange(tokens)}
    none, voice = np.zeros((0, 1)), "" if prefix is None else digest(prefix)
    return Prompt(rows, none, np.zeros(0, int), {}, 8, 0, none, voice, given_kv=prefix)


def sequence(id: int, of: Prompt) -> Sequence:
    seq = Sequence(id, of.length, 8, 0, 0, 0.1, True)
    seq.prefix, seq.has_voice = prefix_keys(of, PAGE), of.has_voice
    seq.num_given = of.num_given
    return seq


@pytest.fixture
def planner() -> PrefillPlanner:
    policy = Policy(min_cached_voice_tokens=PAGE, reserve_tokens=0)
    planner = PrefillPlanner(PageTables(PageAllocator(20, PAGE), policy), policy)
    planner.begin_plan(False)
    return planner


def start(planner: PrefillPlanner, seq: Sequence) -> StepPlan:
    plan = StepPlan()
    assert planner.start(seq, planner.tables.shared(seq), plan)
    return plan


def test_what_is_given_is_not_computed_and_costs_no_budget(planner: PrefillPlanner):
    seq = sequence(1, prompt(given(1)))
    start(planner, seq)
    assert seq.piece == range(6, 13)
    assert (seq.num_cached, len(seq.pages)) == (0, 4)
    left = planner.policy.max_prefill_tokens - 7
    assert [
        planner.fits(sequence(2, prompt(None, tokens)), Shared([], []))
        for tokens in (left, left + 1)
    ] == [
        True,
        False,
    ]


def test_pages_of_what_is_given_are_found_by_others_with_the_same(planner: PrefillPlanner):
    first, second, other = (sequence(i, prompt(given(seed))) for i, seed in enumerate((1, 1, 2)))
    start(planner, first)
    plan = start(planner, second)
    assert second.pages[:3] == first.pages[:3]
    assert (second.num_cached, second.piece) == (12, range(12, 13))
    assert plan.dependent == [second]
    start(planner, other)
    assert not set(other.pages) & set(first.pages)


def test_a_shared_page_within_what_is_given_leaves_the_rest_to_be_filled(planner: PrefillPlanner):
    first = sequence(1, prompt(given(1)))
    start(planner, first)
    words = prompt(given(1))
    words.rows["token"][6:] += 1
    second = sequence(2, words)
    start(planner, second)
    assert second.pages[0] == first.pages[0]
    assert second.pages[1] not in first.pages
    assert (second.num_cached, second.first_computed, second.piece) == (4, 6, range(6, 13))


def test_a_prompt_without_it_has_other_keys():
    assert not set(prefix_keys(prompt(None), PAGE)) & set(prefix_keys(prompt(given(1)), PAGE))


def test_keys_and_values_lie_in_the_pages_of_their_request(tmp_path: Path):
    with TTS(
        tiny.write(tmp_path / "lsd", "lsd"), device="cpu", max_num_seqs=2, page_size=PAGE
    ) as tts:
        voice = tts.engine.model.prompts.voices["mono24"].features["given"]
        brings = prompt(voice, voice.shape[2] + 2)
        seq = sequence(1, brings)
        seq.pages = [5, 2, 9, 3][: -(-seq.length // PAGE)]
        pool = tts.engine.runner.kv.pool
        pool.zero_()
        seq.num_cached = PAGE
        with torch.inference_mode():
            tts.engine.runner.fill_pages(seq, brings)
        held = pool[:, :, seq.pages].flatten(2, 3).numpy()
        assert np.array_equal(held[:, :, PAGE : voice.shape[2]], voice[:, :, PAGE:])
        assert not held[:, :, :PAGE].any()
        assert not held[:, :, voice.shape[2] :].any()


def test_a_voice_that_cannot_be_written_ends_its_own_request_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    with TTS(tiny.write(tmp_path / "lsd", "lsd"), device="cpu", max_num_seqs=4) as tts:
        alone = tts.generate("Spoken well.", voice="mono24", seed=1, retries=1, max_frames=8)
        fill = tts.engine.runner.fill_pages

        def fails(seq: Sequence, brings: Prompt) -> None:
            if brings.given_kv is tts.engine.model.prompts.voices["stereo16"].features["given"]:
                raise RuntimeError("no such page")
            fill(seq, brings)

        monkeypatch.setattr(tts.engine.runner, "fill_pages", fails)
        prompts = [
            tts.prompt(tts.request("Spoken well.", voice=voice, max_frames=8))
            for voice in ("stereo16", "mono24")
        ]
        broken, well = (tts.engine.submit(p, 1, True) for p in prompts)
        with pytest.raises(EngineError):
            list(broken)
        assert np.array_equal(np.concatenate([c.frames for c in well]), alone.frames)
