"""Whole tiny checkpoints, captured on a GPU with the kernels, speak what they speak on a CPU without.

tests/engine/test_step_interpreted.py runs the kernels of whole steps on a CPU.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from tests.helpers.child import python
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
}


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
