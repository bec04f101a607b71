"""Whole tiny checkpoints, captured on a GPU with the kernels, speak what they speak on a CPU without.

tests/engine/test_step_interpreted.py runs the kernels of whole steps on a CPU.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from stentor import TTS
from stentor.models.kokoro.codec import Generator
from stentor.models.kokoro.model import Kokoro
from stentor.models.piece_model import PieceRow
from stentor.request import build
from tests.helpers.child import python
from tests.helpers.kokoro_spectrum import spectrum
from tests.helpers.tiny import checkpoint

pytestmark = pytest.mark.gpu
CASES = {
    "fish_s2": {"temperature": 0.0},
    "qwen3_tts sampled": {"voice": "serena", "top_k": 20},
    "qwen3_tts greedy": {"voice": "serena", "temperature": 0.0, "subtalker_temperature": 0.0},
    "qwen3_omni_talker sampled": {"voice": "ethan", "top_k": 20},
    "qwen3_omni_talker greedy": {
        "voice": "ethan",
        "temperature": 0.0,
        "subtalker_temperature": 0.0,
    },
    "voxcpm2": {"ignore_eos": True},
    "vibevoice": {"ignore_eos": True},
    "vibevoice_dialogue": {"ignore_eos": True},
    "phonon": {"cleanup": "none"},
}
PIECES = ["Hello there, it was warm today.", "One two three."]


def speak(path: Path, device: str, options: dict, **environment: str) -> dict:
    done = python(
        "-m", "tests.helpers.spoken", str(path), device, json.dumps(options), **environment
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize("case", CASES)
def test_a_checkpoint_speaks_the_same_with_kernels_and_without(case, tmp_path):
    path = checkpoint(case.split()[0], tmp_path)
    options = {
        "texts": ["Hello there.", "One two three."],
        "max_frames": 20,
        "seed": 3,
        **CASES[case],
    }
    plain = speak(path, "cpu", options, STENTOR_KERNELS_OFF="all")
    fast = speak(path, "cuda", options)
    assert fast["fused"]
    assert not plain["fused"]
    for a, b in zip(fast["frames"], plain["frames"], strict=True):
        if np.asarray(b).dtype.kind == "f":
            np.testing.assert_allclose(a, b, atol=1e-4)
        else:
            assert a == b
    assert fast["eager"] == 0


def test_kokoro_speaks_the_same_on_a_gpu():
    with TTS("dummy:kokoro-82m", device="cpu", threads=4) as tts:
        model = tts._model
        rows = [piece(model, text, seed) for seed, text in enumerate(PIECES)]
        plain = model.speak(rows)
        plans = [row.planned for row in rows]

        torch.backends.cudnn.allow_tf32 = False
        model.net.to("cuda")
        for row, plan, planned in zip(rows, plans, model.plan(rows), strict=True):
            assert np.array_equal(planned.frames, plan.frames)
            row.planned = planned
        fast = model.speak(rows)
    for a, b in zip(fast, plain, strict=True):
        np.testing.assert_allclose(a, b, atol=1e-3 * np.abs(b).max())


@torch.inference_mode()
def test_kokoro_in_16_bits_by_kernels_is_close_to_float32_on_a_gpu(monkeypatch):
    monkeypatch.setattr(Generator, "_spectrum", spectrum)
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    audio = []
    for dtype in ("float16", "float32"):
        with TTS("dummy:kokoro-82m", device="cuda", codec_dtype=dtype) as tts:
            model = tts._model
            assert (model.net.fast is not None) == (dtype == "float16")
            rows = [piece(model, text, seed) for seed, text in enumerate(PIECES)]
            audio.append(np.concatenate(model.speak(rows)))
            alone = np.concatenate([model.speak([row])[0] for row in rows])
            assert error(alone, audio[-1]) < 0.01
    fast, plain = audio
    assert error(fast, plain) < 0.01


def error(result: np.ndarray, expected: np.ndarray) -> float:
    return float(np.linalg.norm(result - expected) / np.linalg.norm(expected))


def piece(model: Kokoro, text: str, seed: int) -> PieceRow:
    """A planned piece."""
    request = build(model.spec, text, options={})
    row = PieceRow(model.prompts.build(request, []), seed)
    (row.planned,) = model.plan([row])
    return row
