"""The second low-rank product of short sequences in one kernel with a norm, against the kernels of each."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import tests.helpers.kernel_tests  # noqa: F401  (first: it imports the kernels interpreted where there is no GPU)
from stentor.kernels import lora, lora_norm, switches
from stentor.kernels.configs import lora_norm_config
from stentor.layers.lora import LoraLinear, LoraRows
from stentor.layers.norm import RMSNorm
from tests.helpers.kernel_tests import DEVICE, DOTS, close, integers, random

pytestmark = pytest.mark.usefixtures("kernel_test")

SIZE, SLOTS, RANK = 136, 4, 20
SHAPES = [(4, 3), (8, 11), (4, 18)]  # sequences of one tile with rows for guidance behind, or of two tiles


def norm(size: int, dtype: torch.dtype, cast_first: bool) -> RMSNorm:
    made = RMSNorm(size, 1e-6, cast_first).to(DEVICE, dtype).requires_grad_(False)
    made.weight.copy_(1 + random(size) / 4)
    return made


@pytest.mark.parametrize("dtype", DOTS)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("cast_first", [True, False])
def test_a_norm_behind_the_second_product(dtype, shape, cast_first):
    inputs = 1160  # which two CTAs add up
    x, residual = random(*shape, inputs, dtype=dtype), random(*shape, SIZE, dtype=dtype)
    behind, index = norm(SIZE, dtype, cast_first), integers(0, 4, 1, 4)
    a, b = random(1, SLOTS, RANK, inputs, dtype=dtype) / inputs**0.5, random(SLOTS, RANK, SIZE, dtype=dtype)
    y, low = random(*shape, SIZE, dtype=dtype), lora.shrink(x, index, a)
    total, h = lora_norm.expand_norm(y.clone(), low, index, b, residual, behind.kernel_args)
    want = behind.add_norm(residual, lora.expand(y.clone(), low, index, b, (SIZE,)))
    close(total, want[0])
    close(h, want[1])


@pytest.mark.parametrize("dtype", DOTS)
def test_a_layer_takes_it_for_sequences(dtype, monkeypatch):
    """And a row of a sequence has what it has alone."""
    monkeypatch.setattr(switches, "INTERPRETED", DEVICE == "cpu")  # kernels serve tensors of a CPU
    taken, real = [], lora_norm.expand_norm
    monkeypatch.setattr(lora_norm, "expand_norm", lambda *args: taken.append(1) or real(*args))
    layer = LoraLinear(nn.Linear(SIZE, SIZE, bias=False), (SIZE,), SLOTS, RANK, LoraRows()).to(DEVICE, dtype)
    layer.requires_grad_(False)
    for slot in range(SLOTS):
        layer.write(slot, 0, random(RANK, SIZE, dtype=dtype) / SIZE**0.5, random(SIZE, RANK, dtype=dtype))
    x, residual, behind = random(8, 11, SIZE, dtype=dtype), random(8, 11, SIZE, dtype=dtype), norm(SIZE, dtype, True)
    index = integers(1, 0, 3, 1)
    with layer.rows.of(index):
        total, h = layer.before_norm(x, residual, behind)
        close(total, residual + layer(x))
        close(h, behind(residual + layer(x)))
    assert taken
    for row in range(4):
        with layer.rows.of(index[row : row + 1]):
            alone = layer.before_norm(x[[row, row + 4]], residual[[row, row + 4]], behind)
        close(alone[0], total[[row, row + 4]])
        close(alone[1], h[[row, row + 4]])


def test_a_layer_of_several_parts_has_the_norm_behind_it_in_a_kernel_of_its_own(monkeypatch):
    monkeypatch.setattr(switches, "INTERPRETED", DEVICE == "cpu")
    monkeypatch.setattr(lora_norm, "expand_norm", lambda *_: pytest.fail("it has a single part"))
    widths = (16, 16, 16)
    layer = LoraLinear(nn.Linear(SIZE, 48, bias=False), widths, SLOTS, RANK, LoraRows()).to(DEVICE)
    layer.requires_grad_(False)
    for part, width in enumerate(widths):
        layer.write(0, part, random(RANK, SIZE), random(width, RANK))
    x, residual, behind = random(2, 11, SIZE), random(2, 11, 48), norm(48, torch.float32, True)
    with layer.rows.of(integers(1, 0)):
        total, h = layer.before_norm(x, residual, behind)
        close(total, residual + layer(x))
        close(h, behind(residual + layer(x)))


@pytest.mark.parametrize(
    ("size", "rank", "itemsize", "taken"),
    [(1024, 32, 2, True), (1024, 33, 2, False), (1025, 32, 2, False), (1024, 32, 4, False), (512, 20, 4, True)],
)
def test_they_take_what_registers_and_shared_memory_hold(size, rank, itemsize, taken):
    assert (lora_norm_config(size, rank, itemsize) is not None) == taken
