"""Rounding to bfloat16 in the original, with which its model was trained. Expected values are of `voxcpm` 2.0.3."""

from __future__ import annotations

from pathlib import Path

import torch

from stentor.models.config_files import read_config
from stentor.models.source import Checkpoint
from stentor.models.voxcpm2.builder import build
from stentor.models.voxcpm2.flow import sinusoid
from stentor.models.voxcpm2.model import VoxCPM2

TINY = Path(__file__).parents[2] / "fixtures" / "voxcpm2"
TIMES = (0.953125, 0.609375, 0.1884765625)
SINUSOIDS = [
    [
        -0.09716796875,
        0.494140625,
        0.875,
        0.09765625,
        -0.99609375,
        0.8671875,
        -0.486328125,
        0.99609375,
    ],
    [-0.99609375, -0.2236328125, 0.96875, 0.062255859375, 0.1015625, -0.9765625, 0.240234375, 1.0],
    [-0.474609375, 0.57421875, 0.3984375, 0.019287109375, 0.87890625, -0.81640625, 0.91796875, 1.0],
]
POSITION = 300
COSINES = [
    -0.0220947265625,
    0.240234375,
    -0.2265625,
    0.9375,
    -0.33203125,
    0.8515625,
    0.98828125,
    1.0,
]
SINES = [
    -1.0,
    0.97265625,
    -0.97265625,
    0.349609375,
    0.94140625,
    0.52734375,
    0.1611328125,
    0.04736328125,
]
NORMED = [
    -1.09375,
    -1.0703125,
    -1.3515625,
    -1.0078125,
    -1.0546875,
    -0.7734375,
    -0.74609375,
    -0.5546875,
    -0.66796875,
]


def tiny(dtype: torch.dtype) -> VoxCPM2:
    return build(Checkpoint(TINY, read_config(TINY)), torch.device("cpu"), dtype, {})


def test_sinusoids_of_times_are_computed_in_bfloat16_throughout() -> None:
    """Float32 differs by up to 0.90 here: what the model knows is what bfloat16 makes of a time."""
    found = sinusoid(torch.tensor(TIMES, dtype=torch.bfloat16), 8)
    assert found.dtype == torch.bfloat16
    assert (found.float() - torch.tensor(SINUSOIDS)).abs().max() <= 2**-8  # the last bit near 1


def test_rotary_tables_are_rounded_to_the_dtype_of_the_model() -> None:
    rope = tiny(torch.bfloat16).net.rope
    assert rope.in_float32
    assert rope.cos[POSITION].tolist() == COSINES
    assert rope.sin[POSITION].tolist() == SINES
    exact = tiny(torch.float32).net.rope
    assert 1e-4 < (exact.cos[POSITION] - torch.tensor(COSINES)).abs().max() < 2e-3


def test_norms_are_rounded_before_the_weight_multiplies_them() -> None:
    """torch's own order gives other values at six of these nine places."""
    norm = tiny(torch.bfloat16).net.base_lm.norm
    x = torch.linspace(-2, 3, 48).bfloat16()
    assert norm(x)[: len(NORMED)].tolist() == NORMED
    assert torch.rms_norm(x, (48,), norm.weight, norm.eps)[: len(NORMED)].tolist() != NORMED
