"""Requests whose prompts begin alike share pages, and say what they say without that."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch

from stentor import TTS, Speech
from stentor.config import Policy
from tests.engine.test_engine import VOICE, _checked, assert_all_free, assert_equal, toy  # noqa: F401
from tests.helpers.tiny import EVERY, checkpoint
from tests.helpers.tiny import VOICE as VOICES

BEGINNING = "the beginning that all have in common "
ENDS = ("and one", "and another", "and", "and one more", "and one")
OPTIONS: dict[str, Any] = {
    "reference": VOICE,
    "max_frames": 12,
    "min_frames": 12,
    "retries": 1,
    "flow_steps": 2,
    "seed": 7,
}
PAGE = 2
OFF = Policy(prefix_cache=False)
ON = Policy(min_cached_tokens=PAGE)


def together(tts: TTS, *ends: str, **options: Any) -> list[Speech]:
    streams = [tts.submit(tts.request(BEGINNING + e, **{**asked(), **options})) for e in ends]
    return [tts.speech(list(s), s.seed) for s in streams]


def asked() -> dict[str, Any]:
    return {k: v for k, v in OPTIONS.items() if k != "retries"}


@pytest.fixture(scope="module")
def alone() -> Iterator[Callable[..., Speech]]:
    """Audio of a request when nothing is shared."""
    with toy(page_size=PAGE, policy=OFF) as tts:
        yield lambda end, **more: tts.generate(BEGINNING + end, **{**OPTIONS, **more})
        assert tts.engine.stats.cached_tokens == 0


def test_a_prompt_that_was_spoken_before_is_computed_from_its_last_page_on(
    alone: Callable[..., Speech],
) -> None:
    with toy(page_size=PAGE, policy=ON) as tts:
        for time in range(3):
            assert_equal(tts.generate(BEGINNING + ENDS[0], **OPTIONS), alone(ENDS[0]))
            length = tts.prompt(tts.request(BEGINNING + ENDS[0], **asked())).length
            assert tts.engine.stats.prompt_tokens == (1 + time) * length
            assert tts.engine.stats.cached_tokens == time * ((length - 1) // PAGE) * PAGE
        assert_all_free(tts)


def test_what_is_short_is_computed_again(alone: Callable[..., Speech]) -> None:
    length = None
    for most in (0, 1):
        with toy(page_size=PAGE) as tts:
            length = length or tts.prompt(tts.request(BEGINNING + ENDS[0], **asked())).length
        shared = (length - 1) // PAGE * PAGE
        least = shared + most
        with toy(
            page_size=PAGE, policy=Policy(min_cached_tokens=least, min_cached_voice_tokens=least)
        ) as tts:
            for _ in range(2):
                assert_equal(tts.generate(BEGINNING + ENDS[0], **OPTIONS), alone(ENDS[0]))
            assert tts.engine.stats.cached_tokens == (0 if most else shared)


def test_a_voice_is_shared_from_fewer_tokens_on_than_a_text(alone: Callable[..., Speech]) -> None:
    with toy(
        page_size=PAGE, policy=Policy(min_cached_tokens=10_000, min_cached_voice_tokens=PAGE)
    ) as tts:
        for _ in range(2):
            assert_equal(tts.generate(BEGINNING + ENDS[0], **OPTIONS), alone(ENDS[0]))
        length = tts.prompt(tts.request(BEGINNING + ENDS[0], **asked())).length
        assert tts.engine.stats.cached_tokens == (length - 1) // PAGE * PAGE
        for _ in range(2):
            tts.generate(BEGINNING + ENDS[0], **{**OPTIONS, "reference": None})
        assert tts.engine.stats.cached_tokens == (length - 1) // PAGE * PAGE


def test_requests_of_one_batch_share_what_the_first_of_them_computes(
    alone: Callable[..., Speech],
) -> None:
    with toy(page_size=PAGE, policy=ON) as tts:
        for want, got in zip(ENDS, together(tts, *ENDS), strict=True):
            assert_equal(got, alone(want))
        stats = tts.engine.stats
        assert stats.prompt_tokens - stats.cached_tokens < stats.prompt_tokens / 2
        assert_all_free(tts)


def test_rows_of_other_launches_do_not_read_what_is_not_written_yet(
    alone: Callable[..., Speech],
) -> None:
    """Rows with other `flow_steps` are prefilled in another launch of the same step."""
    with toy(page_size=PAGE, policy=ON) as tts:
        steps = (3, 1, 3, 1)
        streams = [
            tts.submit(tts.request(BEGINNING + ENDS[0], **{**asked(), "flow_steps": n}))
            for n in steps
        ]
        for stream, n in zip(streams, steps, strict=True):
            assert_equal(tts.speech(list(stream), stream.seed), alone(ENDS[0], flow_steps=n))


def test_another_voice_or_beginning_shares_nothing_of_it(alone: Callable[..., Speech]) -> None:
    with toy(page_size=PAGE, policy=ON) as tts:
        tts.generate(BEGINNING + ENDS[0], **OPTIONS)
        before = tts.engine.stats.cached_tokens
        assert_equal(
            tts.generate(BEGINNING + ENDS[0], **{**OPTIONS, "reference": None}),
            alone(ENDS[0], reference=None),
        )
        assert tts.engine.stats.cached_tokens == before


def test_a_pool_that_is_too_small_for_all_gives_up_what_nobody_holds(
    alone: Callable[..., Speech],
) -> None:
    with toy(
        page_size=PAGE, memory_gb=0.00005, policy=Policy(reserve_tokens=1, min_cached_tokens=PAGE)
    ) as tts:
        for seed in range(4):
            got = together(tts, *ENDS, seed=seed)
            for end, speech in zip(ENDS, got, strict=True):
                assert_equal(speech, alone(end, seed=seed))
        health = tts.engine.health()
        assert min(health.preemptions, health.evictions) > 0
        assert health.stats.cached_tokens > 0
        assert_all_free(tts)


@pytest.mark.parametrize("name", ["admit", "set_pages", "prefill"])
def test_who_shares_pages_of_a_request_that_fails_computes_them_again(
    monkeypatch: pytest.MonkeyPatch, alone: Callable[..., Speech], name: str
) -> None:
    with toy(page_size=PAGE, policy=ON) as tts:
        plain = getattr(tts.engine.runner, name)

        def call(rows: list[Any]) -> object:
            sequences = [row[0] if isinstance(row, tuple) else row for row in rows]
            if any(seq.id == 0 for seq in sequences):
                raise torch.OutOfMemoryError("full")
            return plain(rows)

        monkeypatch.setattr(tts.engine.runner, name, call)
        first, *others = [tts.submit(tts.request(BEGINNING + end, **asked())) for end in ENDS]
        with pytest.raises(Exception, match="full"):
            list(first)
        for stream, end in zip(others, ENDS[1:], strict=True):
            assert_equal(tts.speech(list(stream), stream.seed), alone(end))
        assert_all_free(tts)


def test_what_a_broken_request_has_left_is_not_found_again(monkeypatch: pytest.MonkeyPatch) -> None:
    with toy(page_size=PAGE, policy=ON) as tts:
        model = tts.engine.model
        plain = model.emit
        monkeypatch.setattr(
            model,
            "emit",
            lambda h, rows, u: (out := plain(h, rows, u))._replace(frame=out.frame * float("nan")),
        )
        with pytest.raises(Exception, match=r"not finite|not a number|NaN"):
            tts.generate(BEGINNING, **OPTIONS)
        monkeypatch.setattr(model, "emit", plain)
        tts.generate(BEGINNING, **OPTIONS)
        assert tts.engine.stats.cached_tokens == 0


@pytest.mark.parametrize("family", EVERY)
def test_every_family_says_the_same_from_shared_pages(family: str, tmp_path: Any) -> None:
    options = {**VOICES[family], "max_frames": 5, "seed": 3, "retries": 1}
    texts = ["Hello there, one two three.", "Hello there, one two four."]
    path = checkpoint(family, tmp_path)
    sizes: dict[str, Any] = {
        "device": "cpu",
        "dtype": "float32",
        "max_num_seqs": 16,
        "page_size": 4,
        "memory_gb": 0.02,
    }
    with TTS(path, policy=OFF, **sizes) as tts:
        want = [tts.generate(t, **options) for t in texts]
    with TTS(path, policy=ON, **sizes) as tts:
        for count in (1, 8):  # cold, and warm for 16 at once
            for i, got in enumerate(tts.generate(texts * count, **options)):
                expected = want[i % 2]
                if expected.frames.dtype.kind == "f":
                    np.testing.assert_allclose(got.frames, expected.frames, atol=1e-4)
                else:
                    np.testing.assert_array_equal(got.frames, expected.frames)
        health = tts.engine.health()
        assert health.stats.cached_tokens > 0.6 * health.stats.prompt_tokens
        assert (health.preemptions, health.evictions) == (0, 0)
