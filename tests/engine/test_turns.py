"""Speaker turns go on in their pages: each computes its own tokens, and says what it says when all is computed again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stentor import TTS, Reference, Speech
from stentor.audio import digest
from stentor.config import Policy
from stentor.engine.requests import OpenRequests
from stentor.models.base import Prompt
from stentor.models.fish_s2 import prompt as fish_prompt
from tests.engine.test_engine import _checked, assert_all_free, assert_equal, toy  # noqa: F401
from tests.helpers.captured import capture_prefills, eager_prefills, small_shapes
from tests.helpers.tiny import checkpoint

PAGE, TURNS = 16, 12
DIALOGUE = "\n".join(f"<|speaker:{i % 2}|>Turn {i} says a few words." for i in range(TURNS))
OPTIONS: dict[str, Any] = {"seed": 5, "max_frames": TURNS * 8, "temperature": 1.0}
FISH: dict[str, Any] = {"device": "cpu", "dtype": "float32", "max_num_seqs": 3, "page_size": PAGE}
OFF = Policy(prefix_cache=False)


@pytest.fixture
def fish(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(fish_prompt, "CHUNK_BYTES", 1)  # each turn by itself
    return checkpoint("fish_s2", tmp_path)


def short_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every turn is spoken, and has six frames at most."""
    plain = fish_prompt.PromptBuilder.assemble

    def assemble(self: Any, *args: Any) -> Prompt:
        made = plain(self, *args)
        made.max_frames = min(made.max_frames, 6)
        return made

    monkeypatch.setattr(fish_prompt.PromptBuilder, "assemble", assemble)


def as_one_request(tts: TTS) -> Speech:
    """The dialogue in one stream, not in pieces of a long text."""
    stream = tts.submit(tts.request(DIALOGUE, **OPTIONS))
    return tts.speech(list(stream), stream.seed)


def counted(monkeypatch: pytest.MonkeyPatch, tts: TTS) -> list[tuple[int, int]]:
    """(tokens computed, tokens of its own) of each prompt that ends, from the counters of /metrics."""
    found: list[tuple[int, int]] = []
    seen = [0]
    plain = OpenRequests.prepare_next

    def prepare(self: OpenRequests, seq: Any) -> None:
        stats, prompt = tts.engine.health().stats, self.of(seq).prompt
        computed = stats.prompt_tokens - stats.cached_tokens
        found.append((computed - seen[0], prompt.length - prompt.repeats))
        seen[0] = computed
        plain(self, seq)

    monkeypatch.setattr(OpenRequests, "prepare_next", prepare)
    return found


def test_a_dialogue_of_twelve_turns_computes_the_tokens_of_each_turn_once(
    monkeypatch: pytest.MonkeyPatch, fish: Path
) -> None:
    """At most a page more for each turn, in captured shapes, and by default: however short the beginning is."""
    short_turns(monkeypatch)
    small_shapes(monkeypatch)
    with TTS(fish, memory_gb=0.02, policy=OFF, **FISH) as tts:
        want = as_one_request(tts)
    with TTS(fish, memory_gb=0.02, policy=Policy(max_prefill_tokens=32), **FISH) as tts:
        capture_prefills(tts)
        turns = counted(monkeypatch, tts)
        got = as_one_request(tts)
        assert_all_free(tts)  # the last turn is counted when its slot is free
        assert len(turns) == TURNS
        assert [i for i, (computed, own) in enumerate(turns) if computed > own + PAGE] == []
        assert eager_prefills(tts) == 0
    np.testing.assert_array_equal(got.frames, want.frames)
    np.testing.assert_allclose(got.samples, want.samples, atol=1e-4)
    assert len(want.frames) > 2 * TURNS


def test_dialogues_side_by_side_on_few_pages_say_the_same(
    monkeypatch: pytest.MonkeyPatch, fish: Path
) -> None:
    """Turns lose their pages to others, are preempted, and go on."""
    short_turns(monkeypatch)
    texts = ["\n".join(DIALOGUE.split("\n")[: 3 + i]) for i in range(3)]
    with TTS(fish, memory_gb=0.02, policy=OFF, **FISH) as tts:
        want = [tts.generate(t, retries=1, **OPTIONS) for t in texts]
        few = 18 * tts.engine.sizes.page_bytes / 2**30
    with TTS(
        fish, memory_gb=few, policy=Policy(reserve_tokens=1, max_prefill_tokens=20), **FISH
    ) as tts:
        for got, expected in zip(tts.generate(texts, retries=1, **OPTIONS), want, strict=True):
            np.testing.assert_array_equal(got.frames, expected.frames)
        assert_all_free(tts)


def test_pieces_of_a_long_text_compute_the_tokens_of_their_voice_once(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    rate = 16000
    sound = (0.3 * np.sin(np.arange(3 * rate) / 12) * np.sin(np.arange(3 * rate) / 900)).astype(
        np.float32
    )
    voice = Reference((sound, rate), "these are the words of the recording " * 3)
    text = " ".join(f"Sentence number {i} of the text says a little." for i in range(8))
    with TTS(checkpoint("fish_s2", tmp_path), memory_gb=0.02, policy=Policy(), **FISH) as tts:
        options = {"max_frames": 5, "seed": 3, "reference": voice}
        begin = tts.prompt(tts.request("x", **options)).length - len("x")
        assert begin > 128
        turns = counted(monkeypatch, tts)
        tts.generate(text, split_granularity="sentence", retries=1, **options)
        assert_all_free(tts)
        assert len(turns) == 8
        stats = tts.engine.health().stats
        own = stats.prompt_tokens - 8 * begin
        assert stats.prompt_tokens - stats.cached_tokens <= begin + own + 8 * PAGE


def followed_by(tts: TTS, prompt: Prompt, text: str, options: dict[str, Any]) -> Prompt:
    """`prompt`, behind which the toy goes on with `text` after all that it has said."""
    prompt.columns["trail_len"] = 0  # a frame is then embedded as one that is given

    def then(spoken: np.ndarray) -> Prompt:
        new = tts.prompt(tts.request(text, **options))
        n = len(spoken)
        rows = {
            "token": np.concatenate(
                (prompt.rows["token"], np.zeros(n, np.int64), new.rows["token"])
            ),
            "given": np.concatenate((prompt.rows["given"], np.ones(n, bool), new.rows["given"])),
        }
        frames = np.concatenate((prompt.frames, spoken)).astype(prompt.frames.dtype)
        at = np.concatenate((prompt.frame_at, prompt.length + np.arange(n)))
        new.rows, new.frames, new.frame_at, new.repeats = rows, frames, at, prompt.length + n
        new.voice = digest(spoken)
        return new

    prompt.continuation = then
    return prompt


@pytest.mark.parametrize("frames", [1, 2, 7, 8, 9])
@pytest.mark.parametrize("overlap_steps", [0, 2])
def test_a_turn_of_any_length_goes_on_in_its_pages(frames: int, overlap_steps: int) -> None:
    """Steps that were launched after the last frame write behind what the next turn finds."""
    options = {"seed": 1, "max_frames": frames, "min_frames": frames}

    def said(policy: Policy) -> Speech:
        with toy(page_size=4, overlap_steps=overlap_steps, policy=policy) as tts:
            prompt = followed_by(
                tts, tts.prompt(tts.request("hello", **options)), "and on", options
            )
            speech = tts.speech(list(tts.engine.submit(prompt, 1, True)), 1)
            assert_all_free(tts)
            stats = tts.engine.stats
            assert stats.cached_tokens == (
                (len("hello") + frames - 1) // 4 * 4 if policy.prefix_cache else 0
            )
            return speech

    assert_equal(said(OFF), said(Policy()))


def test_a_prompt_that_follows_without_repeating_finds_nothing_of_the_last() -> None:
    options = {"seed": 1, "max_frames": 9, "min_frames": 9}
    with toy(page_size=4) as tts:
        prompt = tts.prompt(tts.request("hello", **options))
        prompt.continuation = lambda _: tts.prompt(tts.request("hello", **options))
        assert len(tts.speech(list(tts.engine.submit(prompt, 1, True)), 1).frames) == 18
        assert tts.engine.stats.cached_tokens == 0
        assert_all_free(tts)
