"""stentor equals the official `voxcpm` 2.0.3 on a tiny checkpoint in the released layout, in every mode.

Expected values: tests/fixtures/make_voxcpm2.py. The reference's noise was replaced by stentor's own of the same seed,
so whole requests are compared through the public API, with nothing injected.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from stentor import TTS, Reference
from stentor.api import Speech
from stentor.audio import load
from stentor.config import Policy
from stentor.engine.stream import AudioStream
from stentor.layers.configs import StackConfig
from stentor.models.voxcpm2.flow import LocDiT
from stentor.models.voxcpm2.steps import evaluations
from stentor.models.voxcpm2.tokenizer import TextTokenizer
from tests.helpers.stepped_engine import read_at_once

HERE = Path(__file__).parents[1] / "fixtures" / "voxcpm2"
CASES: dict[str, dict[str, Any]] = json.loads((HERE / "cases.json").read_text(encoding="utf-8"))
PLAIN = [name for name, case in CASES.items() if "lora" not in case]
EVERY = 7  # audio in the fixture is thinned
FILES = {"reference": "reference.wav", "prompt": "prompt.wav", "short": "short.wav"}
LATENTS, LOGITS, AUDIO, CHUNKS = 1e-4, 1e-4, 1e-3, 1e-5


@pytest.fixture(scope="module")
def expected() -> dict[str, np.ndarray]:
    with np.load(HERE / "expected.npz") as data:
        return dict(data)


@pytest.fixture(scope="module")
def tts() -> Iterator[TTS]:
    with TTS(HERE, device="cpu", max_num_seqs=4) as engine:
        yield engine


def arguments(case: dict[str, Any]) -> dict[str, Any]:
    """The public API's arguments for a case of the fixture."""
    out = {
        k: case[k]
        for k in ("seed", "cfg", "flow_steps", "temperature", "min_frames", "instructions")
        if k in case
    }
    if "frames" in case:
        out["max_frames"] = case["frames"]
    if "frames" in case or "never_stop" in case:
        out["ignore_eos"] = True
    prompt = (
        Reference(HERE / FILES[case["prompt"]], case["prompt_text"]) if "prompt" in case else None
    )
    if "reference" in case:
        out["reference"] = Reference(HERE / FILES[case["reference"]])
        out["prompt"] = prompt
    elif prompt is not None:
        out["reference"] = prompt
    return out


def check(name: str, speech: Speech, expected: dict[str, np.ndarray]) -> None:
    patches, audio = expected[f"{name}/patches"], expected[f"{name}/audio"]
    assert speech.frames.shape == patches.shape
    assert np.abs(speech.frames - patches).max() < LATENTS
    assert speech.sample_rate == 48000
    assert len(speech.samples) == 7680 * len(patches)
    assert np.abs(speech.samples[::EVERY] - audio).max() < AUDIO * expected[f"{name}/peak"]
    logits = expected[f"{name}/logits"]
    stopped = "ignore_eos" not in arguments(CASES[name]) and bool(logits[-1, 1] > logits[-1, 0])
    assert speech.finish_reason == ("stop" if stopped else "length")


def joined(stream: AudioStream, tts: TTS) -> Speech:
    return tts.speech(list(stream), stream.seed)


@pytest.mark.parametrize("name", PLAIN)
def test_a_request_alone_equals_the_reference(
    name: str, tts: TTS, expected: dict[str, np.ndarray]
) -> None:
    logits: list[torch.Tensor] = []
    head = tts._model.net.stop_head
    hook = head.register_forward_hook(lambda module, args, out: logits.append(out[0].clone()))
    try:
        given = {
            "cleanup": "none",
            "split_granularity": "none",
        }  # the official package takes a text as it is
        speech = tts.generate(CASES[name]["text"], retries=1, **given, **arguments(CASES[name]))
    finally:
        hook.remove()
    check(name, speech, expected)
    want = expected[f"{name}/logits"]
    assert np.abs(torch.stack(logits)[: len(want)].numpy() - want).max() < LOGITS


def test_requests_that_differ_in_everything_and_join_and_leave_midway_equal_the_reference(
    tts: TTS, expected: dict[str, np.ndarray]
) -> None:
    streams = {
        name: tts.submit(
            tts.request(CASES[name]["text"], **arguments(CASES[name])), streaming=i % 2 == 0
        )
        for i, name in enumerate(PLAIN)
    }
    for name, stream in streams.items():
        check(name, joined(stream, tts), expected)


def test_requests_preempted_for_want_of_pages_equal_the_reference(
    expected: dict[str, np.ndarray],
) -> None:
    names = [
        "length cap",
        "stop after nine frames",
        "ultimate cloning",
        "guidance 3.5 in 7 steps",
        "no noise",
    ]
    page_bytes = 5 * 2 * 4 * 2 * 16 * 4  # layers, keys and values, tokens, heads, dimensions, bytes
    memory = 14 * page_bytes / 2**30
    policy = Policy(max_prefill_delay=0)
    with TTS(
        HERE, device="cpu", max_num_seqs=5, page_size=4, memory_gb=memory, policy=policy
    ) as poor:
        with read_at_once(poor):
            streams = [
                poor.submit(poor.request(CASES[n]["text"], **arguments(CASES[n]))) for n in names
            ]
        for name, stream in zip(names, streams, strict=True):
            check(name, joined(stream, poor), expected)
        assert poor.engine.health().preemptions > 0


@pytest.mark.parametrize(
    "name",
    [
        "zero shot",
        "controllable cloning",
        "continuation",
        "ultimate cloning with a prompt of two patches",
    ],
)
def test_streamed_chunks_joined_equal_the_whole(
    name: str, tts: TTS, expected: dict[str, np.ndarray]
) -> None:
    chunks = list(tts.stream(CASES[name]["text"], **arguments(CASES[name])))
    whole = tts.generate(CASES[name]["text"], retries=1, **arguments(CASES[name]))
    assert len(chunks) > 1
    assert len(chunks[0].samples) == 7680
    samples = np.concatenate([c.samples for c in chunks])
    assert np.abs(samples - whole.samples).max() < CHUNKS
    assert np.array_equal(np.concatenate([c.frames for c in chunks]), whole.frames)


def test_merged_lora_weights_equal_the_reference_that_applies_them(
    expected: dict[str, np.ndarray],
) -> None:
    with TTS(HERE, device="cpu", max_num_seqs=2, lora=HERE / "lora") as tuned:
        speech = tuned.generate(CASES["lora"]["text"], retries=1, **arguments(CASES["lora"]))
    check("lora", speech, expected)


def test_the_lora_of_the_fixture_changes_the_speech(
    tts: TTS, expected: dict[str, np.ndarray]
) -> None:
    speech = tts.generate(CASES["lora"]["text"], retries=1, **arguments(CASES["lora"]))
    assert np.abs(speech.frames - expected["lora/patches"]).max() > 0.05


@pytest.mark.parametrize(
    ("role", "file"), [("reference", "reference.wav"), ("prompt", "prompt.wav")]
)
def test_recordings_become_the_latents_of_the_reference(
    role: str, file: str, tts: TTS, expected: dict[str, np.ndarray]
) -> None:
    audio = load(Reference(HERE / file), role, tts.spec.reference_seconds)
    with torch.inference_mode():
        patches = tts._model.encode(torch.from_numpy(audio.at(tts.spec.reference_rate)), role)[
            "patches"
        ].numpy()
    want = expected[f"ultimate cloning/{role}"]
    assert patches.shape == want.shape
    assert np.abs(patches - want).max() < 1e-5


def test_token_ids_equal_the_reference_for_mixed_scripts_bytes_and_special_tokens() -> None:
    tokenize = TextTokenizer(HERE / "tokenizer.json")
    cases = json.loads((HERE / "tokens.json").read_text(encoding="utf-8"))
    assert len(cases) > 200
    wrong = [(text, tokenize(text), ids) for text, ids in cases if tokenize(text) != ids]
    assert not wrong


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_times_and_step_sizes_of_the_solver_equal_the_reference_bit_for_bit(
    dtype: torch.dtype, expected: dict[str, np.ndarray]
) -> None:
    dit = LocDiT(StackConfig(8, 8, 1, 1, 1, 8, 1e-5), 4).to(dtype)
    dit.time_tokens = lambda t: t  # type: ignore[method-assign]
    schedule = dit.schedule()
    name = str(dtype).removeprefix("torch.")
    for steps in (1, 2, 10, 24, 25, 49, 50, 100):
        want = expected[f"schedule/{name}/{steps}"]
        assert len(want) == evaluations(steps) + 1
        x = torch.zeros((), dtype=dtype)
        for k in range(evaluations(steps)):
            assert float(schedule.times[schedule.at[steps, k]]) == want[k, 0]
            assert float(x) == want[k, 1]
            x = x - schedule.dt[steps, k] * torch.ones((), dtype=dtype)
        assert float(x) == want[-1, 1]
