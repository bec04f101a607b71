"""An adapter that a request names equals the checkpoint with that adapter merged: alone, mixed with others, streamed,
preempted, with recordings, and while adapters come and go."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stentor import TTS, InvalidRequest, Reference
from stentor.api import Speech
from stentor.config import Policy
from tests.helpers import adapters
from tests.helpers.adapters import ALL, TINY
from tests.helpers.stepped_engine import read_at_once

LATENTS, AUDIO = 1e-4, 1e-3
RANKS = {"one": 4, "two": 7}
TARGETS = {"one": ("q_proj", "v_proj", "o_proj"), "two": ALL}
CALM = {"ignore_eos": True, "flow_steps": 2}
VOICE = Reference(TINY / "reference.wav")
SAID = Reference(TINY / "prompt.wav", "What is said.")
REQUESTS: dict[str, dict[str, Any]] = {
    "plain": {"max_frames": 5, "seed": 1},
    "clone": {
        "max_frames": 4,
        "seed": 4,
        "reference": VOICE,
        "prompt": SAID,
        "cfg": 3.5,
        "flow_steps": 4,
    },
}
TEXT = "Hello there, one two three."


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("adapters")
    return {
        name: adapters.make(root / name, i, RANKS[name], TARGETS[name])
        for i, name in enumerate(RANKS)
    }


@pytest.fixture(scope="module")
def tts(folders: dict[str, Path]) -> Iterator[TTS]:
    with TTS(TINY, device="cpu", max_num_seqs=6, loras=folders, max_loras=4) as engine:
        yield engine


def options(request: str) -> dict[str, Any]:
    return CALM | REQUESTS[request]


@pytest.fixture(scope="module")
def merged(folders: dict[str, Path]) -> dict[tuple[str | None, str], Speech]:
    """Audio of each request where the weights are merged, by adapter and request."""
    found: dict[tuple[str | None, str], Speech] = {}
    for name in (None, *folders):
        more = {} if name is None else {"lora": folders[name]}
        with TTS(TINY, device="cpu", max_num_seqs=1, **more) as engine:
            for request in REQUESTS:
                found[name, request] = engine.generate(TEXT, retries=1, **options(request))
    return found


def same(speech: Speech, want: Speech) -> None:
    assert speech.frames.shape == want.frames.shape
    assert np.abs(speech.frames - want.frames).max() < LATENTS
    assert np.abs(speech.samples - want.samples).max() < AUDIO * np.abs(want.samples).max()


def differ(a: Speech, b: Speech) -> bool:
    return np.abs(a.frames - b.frames).max() > 100 * LATENTS


@pytest.mark.parametrize("request_name", REQUESTS)
@pytest.mark.parametrize("name", [None, *RANKS])
def test_a_request_alone_equals_the_merged_checkpoint(
    name: str | None, request_name: str, tts: TTS, merged: dict[tuple[str | None, str], Speech]
) -> None:
    speech = tts.generate(TEXT, retries=1, lora=name, **options(request_name))
    same(speech, merged[name, request_name])


def test_the_adapters_of_these_tests_change_the_speech(
    merged: dict[tuple[str | None, str], Speech],
) -> None:
    for request in REQUESTS:
        speeches = [merged[name, request] for name in (None, *RANKS)]
        assert all(differ(a, b) for i, a in enumerate(speeches) for b in speeches[:i])


def test_requests_of_all_adapters_and_none_share_a_batch_and_are_streamed(
    tts: TTS, merged: dict[tuple[str | None, str], Speech]
) -> None:
    pairs = [(name, request) for request in REQUESTS for name in (None, *RANKS)]
    streams = [
        tts.submit(tts.request(TEXT, lora=name, **options(request)), streaming=i % 2 == 0)
        for i, (name, request) in enumerate(pairs)
    ]
    for pair, stream in zip(pairs, streams, strict=True):
        same(tts.speech(list(stream), stream.seed), merged[pair])


def test_streamed_chunks_joined_equal_the_merged_checkpoint(
    tts: TTS, merged: dict[tuple[str | None, str], Speech]
) -> None:
    chunks = list(tts.stream(TEXT, lora="two", **options("clone")))
    assert len(chunks) > 1
    want = merged["two", "clone"]
    assert np.abs(np.concatenate([c.frames for c in chunks]) - want.frames).max() < LATENTS
    samples = np.concatenate([c.samples for c in chunks])
    assert np.abs(samples - want.samples).max() < AUDIO * np.abs(want.samples).max()


def test_preempted_requests_equal_the_merged_checkpoint(
    folders: dict[str, Path], merged: dict[tuple[str | None, str], Speech]
) -> None:
    page_bytes = 5 * 2 * 4 * 2 * 16 * 4  # layers, keys and values, tokens, heads, dimensions, bytes
    small = {"max_num_seqs": 4, "page_size": 4, "memory_gb": 13 * page_bytes / 2**30}
    names = (None, *RANKS, "one")
    policy = Policy(max_prefill_delay=0)
    with TTS(TINY, device="cpu", loras=folders, policy=policy, **small) as poor:
        with read_at_once(poor):
            streams = [poor.submit(poor.request(TEXT, lora=n, **options("plain"))) for n in names]
        for name, stream in zip(names, streams, strict=True):
            same(poor.speech(list(stream), stream.seed), merged[name, "plain"])
        assert poor.engine.health().preemptions > 0


def test_prompts_that_are_prefilled_in_pieces_equal_the_merged_checkpoint(
    folders: dict[str, Path], merged: dict[tuple[str | None, str], Speech]
) -> None:
    names = (None, *RANKS)
    with TTS(
        TINY, device="cpu", loras=folders, max_num_seqs=3, policy=Policy(max_prefill_tokens=8)
    ) as engine:
        streams = [engine.submit(engine.request(TEXT, lora=n, **options("clone"))) for n in names]
        for name, stream in zip(names, streams, strict=True):
            same(engine.speech(list(stream), stream.seed), merged[name, "clone"])
        assert engine.engine.stats.prefills > 2 * len(names)


def test_pages_of_a_prompt_are_shared_by_requests_of_one_adapter_only(tts: TTS) -> None:
    text = "A long text whose pages are kept. " * 8
    wanted: dict[str | None, Speech] = {}
    for _ in range(2):
        for name in (None, "one", "two"):
            speech = tts.generate(
                text, lora=name, split_granularity="none", retries=1, **CALM, max_frames=2, seed=9
            )
            same(speech, wanted.setdefault(name, speech))
    assert differ(wanted["one"], wanted["two"])
    assert differ(wanted[None], wanted["one"])
    assert tts.engine.stats.cached_tokens > 0


def test_adapters_come_and_go_while_others_run(
    tts: TTS, folders: dict[str, Path], merged: dict[tuple[str | None, str], Speech]
) -> None:
    for source in ("two", "one", "two"):  # four slots, two of them taken: a number is used again
        running = [tts.submit(tts.request(TEXT, lora=n, **options("plain"))) for n in (None, "one")]
        tts.load_lora("guest", folders[source])
        guest = tts.submit(tts.request(TEXT, lora="guest", **options("clone")))
        tts.unload_lora("guest")
        with pytest.raises(InvalidRequest, match="'guest' is not loaded; loaded: one, two"):
            tts.request(TEXT, lora="guest")
        same(tts.speech(list(guest), guest.seed), merged[source, "clone"])
        for name, stream in zip((None, "one"), running, strict=True):
            same(tts.speech(list(stream), stream.seed), merged[name, "plain"])
    assert tts.loras == ("one", "two")


def test_all_pieces_of_a_long_text_keep_an_adapter_that_is_unloaded_meanwhile(
    tts: TTS, folders: dict[str, Path]
) -> None:
    text = "Some words are said here. " * 2
    given = {"split_granularity": "sentence", "lora": "guest", **CALM, "max_frames": 2, "seed": 5}
    tts.load_lora("guest", folders["two"])
    whole = list(tts.stream(text, **given))
    chunks = tts.stream(text, **given)
    first = next(chunks)
    tts.unload_lora("guest")
    rest = list(chunks)
    frames = np.concatenate([c.frames for c in (first, *rest)])
    assert np.abs(frames - np.concatenate([c.frames for c in whole])).max() < LATENTS
