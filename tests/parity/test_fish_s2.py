"""Fish S2 Pro equals the values of the official implementation (tests/fixtures/fish_s2/README.md)."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from stentor import TTS, Reference

FIXTURES = Path(__file__).parents[1] / "fixtures" / "fish_s2"
CASES = {
    case["name"]: case for case in json.loads((FIXTURES / "cases.json").read_text(encoding="utf-8"))
}
EXPECTED = np.load(FIXTURES / "expected.npz")


@pytest.fixture(scope="module")
def tts():
    with TTS(FIXTURES / "checkpoint", device="cpu", max_num_seqs=10, threads=1) as model:
        yield model


def arguments(name):
    a = dict(CASES[name]["arguments"])
    if "reference" in a:
        a["reference"] = Reference(str(FIXTURES / a["reference"]["audio"]), a["reference"]["text"])
    return {"text": CASES[name]["text"], "temperature": 0, **a}


def check(name, speech):
    assert speech.frames.dtype == np.int64
    assert speech.frames.tolist() == EXPECTED[f"{name}_frames"].tolist()
    samples = EXPECTED[f"{name}_samples"] / np.float32(32768)
    assert speech.samples.shape == samples.shape
    # The expected samples are themselves rounded, by up to 1.6e-5.
    assert np.abs(speech.samples - samples).max() < 5e-5
    assert (speech.sample_rate, speech.finish_reason) == (44100, CASES[name]["finish"])


@pytest.mark.parametrize("name", CASES)
def test_a_request_alone_gives_the_expected_codes_and_audio(tts, name):
    check(name, tts.generate(**arguments(name)))


def test_requests_together_with_sampled_ones_give_what_they_give_alone(tts):
    others = [
        {
            "text": "[whisper] Quite another one.",
            "temperature": 1.1,
            "top_p": 0.95,
            "top_k": 0,
            "max_frames": 30,
        },
        {
            "text": "短い。",
            "temperature": 0.5,
            "top_p": 0.6,
            "top_k": 5,
            "max_frames": 7,
            "seed": 3,
        },
        {**arguments("g2_0"), "temperature": 0.8, "max_frames": 25, "seed": 4, "ignore_eos": True},
    ]
    others = [{"seed": 9, **o} for o in others]
    alone = [tts.generate(**o) for o in others]
    requests = [arguments(name) for name in CASES]
    streams = [tts.submit(tts.request(**r)) for r in [*others, *requests]]
    together = [tts.speech(list(s), s.seed) for s in streams]
    for name, speech in zip(CASES, together[len(others) :], strict=True):
        check(name, speech)
    for a, b in zip(alone, together, strict=False):
        assert a.frames.tolist() == b.frames.tolist()
        assert np.abs(a.samples - b.samples).max() < 1e-5


@pytest.mark.parametrize("name", ["g0_1", "g2_1"])
def test_a_stream_in_many_chunks_joins_to_the_whole(tts, name):
    chunks = list(tts.stream(**arguments(name)))
    assert len(chunks) > 3
    joined = np.concatenate([c.samples for c in chunks])
    check(name, tts.generate(**arguments(name)))
    assert np.abs(joined - tts.generate(**arguments(name)).samples).max() < 1e-5
    frames = np.concatenate([c.frames for c in chunks])
    assert frames.tolist() == EXPECTED[f"{name}_frames"].tolist()


@pytest.mark.parametrize(("frame", "book"), [(0, 0), (3, 9), (10, 4), (20, 1), (20, 9)])
def test_one_other_code_of_the_reference_changes_what_is_said(tts, frame, book):
    """So the expected codes of cloning prove those of the encoder as well."""
    request = tts.request(**arguments("g2_0"))
    prompt = tts.prompt(request)
    assert prompt.frames.shape == (21, 10)
    prompt.frames, prompt.voice = prompt.frames.copy(), "another"
    prompt.frames[frame, book] = (prompt.frames[frame, book] + 1) % 100
    speech = tts.speech(list(tts.engine.submit(prompt, 0, streaming=False)), 0)
    assert speech.frames.tolist() != EXPECTED["g2_0_frames"].tolist()
