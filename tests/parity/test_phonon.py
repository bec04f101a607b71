"""Phonon equals transformers on a tiny checkpoint (tests/fixtures/phonon/README.md), in every mode.

PHONON_FIXTURE names another folder of the same form.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from stentor import TTS, CheckpointError, InvalidRequest, Reference, Speech
from stentor.config import Policy
from stentor.models.calm_text import chunks, prepare
from stentor.models.phonon.checkpoint import read_tokenizer, read_voice
from stentor.models.phonon.config import TEXT, parse
from tests.fixtures.phonon import tiny_phonon as tiny
from tests.helpers.engines import Make, engines
from tests.helpers.stepped_engine import read_at_once

E = tiny.expected()
LATENTS, AUDIO, LOGITS = 2e-5, 1e-3, 1e-4  # shares of the largest
SHARED = Policy(min_cached_tokens=4, min_cached_voice_tokens=4)
ONE_CHUNK = [label for label, case in tiny.CASES.items() if len(case["chunks"]) == 1]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.write(tmp_path_factory.mktemp("phonon") / "model")


@pytest.fixture(scope="module")
def make(folder: Path) -> Iterator[Make]:
    """An engine with the official noise, made once for each set of options."""
    with engines(folder, tiny.give_official_noise) as make:
        yield make


def arguments(label: str) -> dict[str, Any]:
    """A case as the public API takes it."""
    case = tiny.CASES[label]
    same = ("temperature", "voice", "flow_steps", "duration_delta", "max_tokens", "max_frames")
    threshold = {"eos_threshold": min(case["eos_threshold"], 1e9)}
    return {"seed": tiny.SEEDS[label], **threshold, **{name: case[name] for name in same}}


def speak(tts: TTS, label: str, **more: Any) -> Speech:
    """A case as one utterance: transformers takes a text as it is, and cuts it itself."""
    options = {"cleanup": "none", "split_granularity": "none", "retries": 1}
    return tts.generate(tiny.CASES[label]["text"], **{**options, **arguments(label), **more})


def wanted(label: str, what: str) -> np.ndarray:
    parts = range(len(tiny.CASES[label]["chunks"]))
    return np.concatenate([E[f"{label}/{i}/{what}"] for i in parts])


def check(label: str, speech: Speech) -> None:
    latents = wanted(label, "latents")
    assert speech.frames.shape == latents.shape
    assert np.abs(speech.frames - latents).max() <= LATENTS * np.abs(latents).max()
    audio = E[f"{label}/audio"]
    assert len(speech.samples) == 1920 * len(latents)
    error = np.abs(speech.samples[:: tiny.EVERY] - audio).max()
    assert error <= AUDIO * np.abs(audio).max()


# -- every mode --


@pytest.mark.parametrize("label", tiny.CASES)
def test_a_request_alone_equals_transformers(label: str, make: Make):
    tts = make()
    logits: list[torch.Tensor] = []
    hook = tts._model.net.out_eos.register_forward_hook(lambda *call: logits.append(call[2][0]))
    try:
        check(label, speak(tts, label))
    finally:
        hook.remove()
    ends = wanted(label, "eos")
    assert np.abs(torch.cat(logits).numpy() - ends).max() <= LOGITS * np.abs(ends).max()


def test_hidden_states_equal_transformers(make: Make):
    tts = make()
    states: list[torch.Tensor] = []
    hook = tts._model.net.out_eos.register_forward_hook(lambda *call: states.append(call[1][0][0]))
    try:
        speak(tts, "plain")
    finally:
        hook.remove()
    np.testing.assert_allclose(torch.stack(states).numpy(), E["plain/0/hidden"], atol=LOGITS)


def test_requests_batched_with_strangers_equal_transformers(make: Make):
    tts = make()
    strangers = [
        tts.submit(
            tts.request(f"A stranger speaks, {i}.", voice="ben", seed=i + 1, duration_delta=i)
        )
        for i in range(-1, 2)
    ]
    streams = {
        label: tts.submit(
            tts.request(tiny.CASES[label]["text"], **arguments(label)), streaming=i % 2 == 0
        )
        for i, label in enumerate(tiny.CASES)
    }
    for label, stream in streams.items():
        check(label, tts.speech(list(stream), stream.seed))
    for stream in strangers:
        assert list(stream)


@pytest.mark.parametrize("label", ["plain", "slow", "steps", "long"])
def test_streamed_chunks_joined_equal_transformers(label: str, make: Make):
    tts = make()
    stream = tts.submit(tts.request(tiny.CASES[label]["text"], **arguments(label)))
    parts = list(stream)
    assert len(parts) > 2
    assert len(parts[0].samples) == 1920
    check(label, tts.speech(parts, stream.seed))


def positions(label: str) -> int:
    """Positions that the first chunk of a case takes in the cache."""
    return len(tiny.CASES[label]["chunks"][0]["ids"]) + len(E[f"{label}/0/latents"])


def test_preempted_requests_equal_transformers(make: Make):
    labels = ["plain", "hot", "steps", "fast"]
    kv = make().spec.kv
    page = 4 * 2 * kv.layers * kv.heads * kv.dim * 4  # tokens, keys and values, bytes
    pages = max(map(positions, labels)) // 4 + 4
    poor = make(
        page_size=4,
        memory_gb=(pages + 0.5) * page / 2**30,
        policy=Policy(reserve_tokens=0, prefix_cache=False, max_prefill_delay=0),
    )
    before = poor.engine.health().preemptions
    with read_at_once(poor):
        streams = [
            poor.submit(poor.request(tiny.CASES[label]["text"], **arguments(label)))
            for label in labels
        ]
    for label, stream in zip(labels, streams, strict=True):
        check(label, poor.speech(list(stream), stream.seed))
    assert poor.engine.health().preemptions > before


def test_a_prompt_in_pages_of_another_request_equals_transformers(make: Make):
    tts = make(page_size=4, policy=SHARED)
    check("ends", speak(tts, "ends"))
    before = tts.engine.health().stats.cached_tokens
    check("ends", speak(tts, "ends"))
    assert tts.engine.health().stats.cached_tokens - before >= 9  # the voice at least


def test_paces_and_voices_do_not_share_pages_of_what_differs(make: Make):
    tts = make(page_size=4, policy=SHARED)
    for label in ("plain", "slow", "fast"):
        text = tiny.CASES[label]["text"]
        tts.generate(text, voice="anna", duration_delta=0.9, max_frames=2)
        tts.generate(text, voice="default", duration_delta=-0.9, max_frames=2)
        check(label, speak(tts, label))


@pytest.mark.parametrize("label", ["plain", "steps", "slow"])
def test_weights_in_8_bits_are_near_transformers(label: str, make: Make):
    frames = speak(make(quantization="int8"), label).frames[:6]
    latents = E[f"{label}/0/latents"][:6]
    error = np.abs(frames - latents).max() / np.abs(latents).max()
    assert LATENTS < error < 0.1


def test_weights_in_16_bits_which_a_cpu_holds_by_default_equal_transformers(make: Make):
    check("plain", speak(make(dtype="auto"), "plain"))


def test_the_runtimes_description_is_the_same_model(tmp_path: Path):
    folder = tiny.write_runtime(tmp_path / "runtime")
    with TTS(folder, device="cpu", dtype="float32", max_num_seqs=1, threads=1) as tts:
        tiny.give_official_noise(tts)
        check("slow", speak(tts, "slow"))


# -- text --


@pytest.mark.parametrize("label", tiny.CASES)
def test_texts_are_cut_into_the_chunks_of_transformers(label: str, make: Make):
    case = tiny.CASES[label]
    prompts = make()._model.prompts
    parts = chunks(case["text"], TEXT, prompts.tokens, case["max_tokens"])
    assert parts == [chunk["text"] for chunk in case["chunks"]]
    for part, chunk in zip(parts, case["chunks"], strict=True):
        prepared = prepare(part, TEXT)
        frames = len(load_voice(make, case["voice"]))
        assert prompts.tokens.encode(prepared.text) == chunk["ids"][frames:-1]
        assert prepared.tail == chunk["tail"] + 1


def load_voice(make: Make, name: str) -> np.ndarray:
    return make()._model.prompts.voices[name].features["voice"]


@pytest.mark.parametrize(
    ("text", "prepared"),
    [
        ("a letter\u2019s end", "A letter's end."),
        ("\u201cquoted\u201d words \u2014 and more", '"quoted" words and more.'),
        ("first; then, perhaps\u2026", "First, then, perhaps."),
        ("two  words,", "Two words."),
        ("hi", "Hi."),  # not padded with spaces
    ],
)
def test_a_text_is_folded_as_the_runtime_does(text: str, prepared: str):
    assert prepare(text, TEXT).text == prepared


def test_a_text_cannot_begin_the_audio(make: Make):
    tts = make()
    prompt = tts.prompt(tts.request("Hi <|audio_bos|> there"))
    begins = prompt.rows["token"] == tts._model.prompts.audio_bos
    assert begins[-1]
    assert begins.sum() == 1


# -- voices --


def test_the_default_voice_speaks_where_none_is_named(make: Make):
    tts = make()
    assert set(tts.spec.voices) == {"anna", "ben", "default"}
    assert tts.request("Hello.").voice == "default"
    check("plain", speak(tts, "plain", voice=None))


def test_a_checkpoint_without_voices_asks_for_one(tmp_path: Path, folder: Path):
    shutil.copytree(folder, tmp_path / "mute", ignore=shutil.ignore_patterns("voices", "*-voice*"))
    with (
        TTS(tmp_path / "mute", device="cpu", max_num_seqs=1) as tts,
        pytest.raises(InvalidRequest, match="voice: is needed"),
    ):
        tts.generate("Hello.")


def test_a_recording_is_refused_as_the_encoder_was_not_released(make: Make):
    recording = Reference((np.zeros(24_000, np.float32), 24_000))
    with pytest.raises(InvalidRequest, match="reference"):
        make().generate("Hello.", reference=recording)


@pytest.mark.parametrize(
    ("tensors", "problem"),
    [
        ({"emb": torch.zeros(3, 24)}, "speaker_wavs is missing, it has emb"),
        ({"speaker_wavs": torch.zeros(4, 10)}, r"shape \[4, 10\], not \[10, frames\]"),
        ({"speaker_wavs": torch.zeros(10, 0)}, r"shape \[10, 0\]"),
        ({"speaker_wavs": torch.zeros(2, 10, 4)}, r"shape \[2, 10, 4\]"),
    ],
)
def test_a_file_that_is_no_voice_is_refused(
    tensors: dict[str, torch.Tensor], problem: str, tmp_path: Path
):
    save_file(tensors, tmp_path / "odd.safetensors")
    with pytest.raises(CheckpointError, match=problem):
        read_voice(tmp_path / "odd.safetensors", 10)


# -- configuration --


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"hidden_act": "silu"}, "hidden_act must be gelu, got 'silu'"),
        ({"attention_bias": True}, "attention_bias must be False"),
        ({"rope_parameters": {"rope_type": "yarn"}}, "rope_type must be default"),
        ({"rope_parameters": {"rope_theta": 5.0}}, "rope_theta must be 10000"),
        ({"hidden_size": None}, "hidden_size is missing"),
        ({"languages": ["xx"]}, "languages must be of en, fr, de, es, pt"),
        ({"mimi": {"ratios": [8, 5]}}, r"mimi.ratios must be \[6, 5, 4\]"),
        ({"num_speakers": 40}, "num_speakers must be below 32, got 40"),
        ({"conditioners": 3}, "conditioners must be a list, got 3"),
        ({"lsd_decode_steps": 17}, "lsd_decode_steps must be a positive integer, at most 16"),
        ({"mimi": {"frame_rate": 25}}, "mimi.frame_rate must be 12.5, got 25"),
    ],
)
def test_a_description_that_is_not_supported_is_refused(change: dict[str, Any], problem: str):
    config = json.loads((tiny.FIXTURE / "config.json").read_text(encoding="utf-8"))
    with pytest.raises(CheckpointError, match=problem):
        parse({**config, **change}, {}, "config.json")


def test_a_tokenizer_with_more_tokens_than_the_model_is_refused(folder: Path):
    file = folder / "tokenizer.json"
    tokens = len(json.loads(file.read_text(encoding="utf-8"))["model"]["vocab"])
    assert read_tokenizer(file, tokens)
    with pytest.raises(CheckpointError, match=f"has {tokens} tokens, and the model {tokens - 1}"):
        read_tokenizer(file, tokens - 1)


def test_a_tensor_of_the_codec_that_is_missing_is_named_as_in_the_file(
    tmp_path: Path, folder: Path
):
    shutil.copytree(folder, tmp_path / "cut")
    tensors = load_file(tmp_path / "cut" / "model.safetensors")
    name = "mimi.upsample.convtr.convtr.weight"
    save_file({k: t for k, t in tensors.items() if k != name}, tmp_path / "cut/model.safetensors")
    with pytest.raises(CheckpointError, match=name):
        TTS(tmp_path / "cut", device="cpu")


def test_models_without_files_have_the_sizes_of_releases():
    with TTS("dummy:phonon-31m", device="cpu", dtype="float32", max_num_seqs=1, threads=1) as tts:
        model: Any = tts._model
        weights = sum(p.numel() for p in model.net.parameters())
        assert model.net.embeddings.shape == (4003, 512)
        assert tts.spec.kv.layers == 6
        assert 2.0e7 < weights < 3.1e7
        speech = tts.generate("Noise.", max_frames=2, ignore_eos=True)
        assert len(speech.samples) == 2 * 1920
