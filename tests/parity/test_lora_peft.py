"""Adapters in PEFT's layout: one that a request names equals the checkpoint with that adapter merged."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stentor import TTS
from stentor.api import Speech
from stentor.config import Policy
from stentor.errors import CheckpointError
from tests.helpers import peft
from tests.helpers.stepped_engine import read_at_once
from tests.helpers.tiny import VOICE, checkpoint

TEXT = "hello there and speak"
OPTIONS: dict[str, Any] = {"ignore_eos": True, "min_frames": 5, "max_frames": 5, "seed": 3}
NAMES = (None, "one", "two")
AUDIO = 1e-3  # of the peak


@dataclass(frozen=True)
class Family:
    """The names of the layers that take adapters: what they begin with, and their last parts, few and all. `other` is a
    layer that takes none."""

    before: str
    few: tuple[str, ...]
    all: tuple[str, ...]
    other: str


FAMILIES = {
    "qwen3_tts": Family(
        "talker.model.layers.",
        ("q_proj", "v_proj"),
        ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"),
        "talker.code_predictor.model.layers.0.self_attn.o_proj",
    ),
    "qwen3_omni_talker": Family(
        "talker.model.layers.",
        ("q_proj", "v_proj"),
        ("q_proj", "k_proj", "v_proj", "o_proj"),
        "talker.model.layers.0.mlp.experts.0.up_proj",
    ),
    "fish_s2": Family(
        "text_model.model.layers.",
        ("wqkv",),
        ("wqkv", "wo", "w1", "w2", "w3"),
        "audio_decoder.layers.0.attention.wo",
    ),
}


@pytest.fixture(scope="module", params=FAMILIES)
def family(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def path(family: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return checkpoint(family, tmp_path_factory.mktemp(family))


@pytest.fixture(scope="module")
def folders(family: str, path: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root, names = tmp_path_factory.mktemp("adapters"), FAMILIES[family]
    one = peft.weights(path, names.few, names.before, 4, seed=1)
    two = peft.weights(path, names.all, names.before, 6, seed=2)
    return {
        "one": peft.store(root / "one", one, r=4, lora_alpha=8, target_modules=list(names.few)),
        "two": peft.store(root / "two", two, r=6, lora_alpha=6, use_rslora=True),
    }


@pytest.fixture(scope="module")
def options(family: str) -> dict[str, Any]:
    return OPTIONS | VOICE[family]


@pytest.fixture(scope="module")
def merged(
    path: Path, folders: dict[str, Path], options: dict[str, Any]
) -> dict[str | None, Speech]:
    found: dict[str | None, Speech] = {}
    for name in NAMES:
        with TTS(
            path, device="cpu", max_num_seqs=1, **({} if name is None else {"lora": folders[name]})
        ) as engine:
            found[name] = engine.generate(TEXT, retries=1, **options)
    return found


@pytest.fixture(scope="module")
def tts(path: Path, folders: dict[str, Path]) -> Iterator[TTS]:
    with TTS(path, device="cpu", max_num_seqs=4, loras=folders, max_loras=3) as engine:
        yield engine


def same(speech: Speech, want: Speech) -> None:
    assert np.array_equal(speech.frames, want.frames)
    assert np.abs(speech.samples - want.samples).max() < AUDIO * np.abs(want.samples).max()


def test_the_adapters_of_these_tests_change_the_codes(merged: dict[str | None, Speech]) -> None:
    speeches = [merged[name].frames for name in NAMES]
    assert not any(np.array_equal(a, b) for i, a in enumerate(speeches) for b in speeches[:i])


@pytest.mark.parametrize("name", NAMES)
def test_a_request_alone_equals_the_merged_checkpoint(
    name: str | None, tts: TTS, merged: dict[str | None, Speech], options: dict[str, Any]
) -> None:
    same(tts.generate(TEXT, retries=1, lora=name, **options), merged[name])


def test_requests_of_all_adapters_and_none_share_a_batch_while_one_comes_and_goes(
    tts: TTS, folders: dict[str, Path], merged: dict[str | None, Speech], options: dict[str, Any]
) -> None:
    streams = [
        tts.submit(tts.request(TEXT, lora=n, **options), streaming=n is not None) for n in NAMES
    ]
    tts.load_lora("guest", folders["two"])
    guest = tts.submit(tts.request(TEXT, lora="guest", **options))
    tts.unload_lora("guest")
    for name, stream in zip((*NAMES, "two"), (*streams, guest), strict=True):
        same(tts.speech(list(stream), stream.seed), merged[name])


def test_a_layer_without_slots_is_refused_as_the_file_names_it_and_may_be_merged(
    family: str,
    path: Path,
    tts: TTS,
    merged: dict[str | None, Speech],
    options: dict[str, Any],
    tmp_path: Path,
) -> None:
    layer = FAMILIES[family].other
    before, _, last = layer.rpartition(".")
    folder = peft.store(tmp_path, peft.weights(path, (last,), before, 4, seed=5), r=4, lora_alpha=8)
    with pytest.raises(
        CheckpointError,
        match=rf"base_model.model.{layer}.lora_A.weight belongs to no layer that takes",
    ):
        tts.load_lora("other", folder)
    with TTS(path, device="cpu", max_num_seqs=1, lora=folder) as engine:
        spoken = engine.generate(TEXT, retries=1, **options)
    assert not np.array_equal(spoken.frames, merged[None].frames)


def test_preempted_requests_equal_the_merged_checkpoint(
    path: Path, folders: dict[str, Path], merged: dict[str | None, Speech], options: dict[str, Any]
) -> None:
    with TTS(path, device="cpu", loras=folders, max_num_seqs=3, page_size=4) as whole:
        page, prompt = whole.engine.sizes.page_bytes, whole.engine.stats.prompt_tokens
        whole.generate(TEXT, retries=1, **options)
        tokens = whole.engine.stats.prompt_tokens - prompt
    pages = 3 * -(-tokens // 4) + 2  # every request begins, and few can go on
    small = {"max_num_seqs": 3, "page_size": 4, "memory_gb": (pages + 0.5) * page / 2**30}
    policy = Policy(max_prefill_delay=0)
    with TTS(path, device="cpu", loras=folders, policy=policy, **small) as poor:
        with read_at_once(poor):
            streams = [poor.submit(poor.request(TEXT, lora=n, **options)) for n in NAMES]
        for name, stream in zip(NAMES, streams, strict=True):
            same(poor.speech(list(stream), stream.seed), merged[name])
        assert poor.engine.health().preemptions > 0
