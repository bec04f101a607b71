"""Norms, RoPE and SwiGLU's activation by kernels, against the modules of `layers`."""

from __future__ import annotations

import pytest
import torch

import tests.helpers.kernel_tests  # noqa: F401  (first: it imports the kernels interpreted where there is no GPU)
from stentor.kernels import norm_rope
from stentor.kernels.buffers import rows_of
from stentor.kernels.types import RopeArgs
from stentor.layers.norm import RMSNorm
from stentor.layers.rope import Rope, angles
from tests.helpers.kernel_tests import DEVICE, DTYPES, close, random

pytestmark = pytest.mark.usefixtures("kernel_test")


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("late", [True, False])
@pytest.mark.parametrize("size", [48, 2048])
def test_addition_and_norm_are_those_of_rms_norm(dtype, late, size):
    x, delta = random(3, 2, size, dtype=dtype), random(3, 2, size, dtype=dtype)
    norm = RMSNorm(size, 1e-6, late).to(DEVICE, dtype)
    norm.weight.data = random(size, dtype=dtype)
    total, out = norm_rope.add_rms_norm(x, delta, norm.weight, 1e-6, late)
    close(total, x + delta)
    close(out, norm(x + delta))
    close(norm_rope.rms_norm(x[:, 1], norm.weight, 1e-6, late), norm(x[:, 1]))


def test_one_sequence_whose_channels_lie_outermost_is_read_as_it_is():
    """Output of an encoder for a transformer: channels by time, transposed. A reshape of one sequence is a view."""
    x, delta = random(1, 48, 5).transpose(1, 2), random(1, 48, 5).transpose(1, 2)
    norm = RMSNorm(48, 1e-6, True).to(DEVICE)
    total, out = norm_rope.add_rms_norm(x, delta, norm.weight, 1e-6, True)
    close(total, x + delta)
    close(out, norm(x + delta))
    close(norm_rope.rms_norm(x, norm.weight, 1e-6, True), norm(x))
    gate, up = x.chunk(2, dim=-1)
    close(norm_rope.silu_and_mul(x), torch.nn.functional.silu(gate) * up)
    assert rows_of(x, 48).equal(x[0])
    assert rows_of(x, 48).stride(1) == 1
    contiguous = x.contiguous()
    assert rows_of(contiguous, 48).data_ptr() == contiguous.data_ptr()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", [24, 3072])
def test_gate_is_silu_of_the_first_half_times_the_second(dtype, size):
    x = random(2, 3, 2 * size, dtype=dtype)
    gate, up = x.chunk(2, dim=-1)
    close(norm_rope.silu_and_mul(x), torch.nn.functional.silu(gate) * up)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("interleaved", [True, False])
@pytest.mark.parametrize("in_float32", [True, False])
@pytest.mark.parametrize(("dim", "norm"), [(128, True), (64, False), (24, True)])
def test_head_norms_and_rotation_equal_norm_then_rope(dtype, interleaved, in_float32, dim, norm):
    heads, kv_heads, batch, tokens = 4, 2, 3, 2
    qkv = random(batch, tokens, (heads + 2 * kv_heads) * dim, dtype=dtype)
    q, k, _ = (
        t.unflatten(-1, (-1, dim))
        for t in qkv.split((heads * dim, kv_heads * dim, kv_heads * dim), -1)
    )
    rope = Rope(angles(dim, 40, 1e4), torch.bfloat16, interleaved, in_float32).to(DEVICE)
    norms = [RMSNorm(dim, 1e-6).to(DEVICE, dtype) for _ in range(2)]
    for n in norms:
        n.weight.data = random(dim, dtype=dtype)
    for pos in (
        torch.tensor([5, 6], device=DEVICE),
        torch.arange(batch * tokens, device=DEVICE).view(batch, tokens),
    ):
        cos_sin = rope.at(pos)
        rotation = RopeArgs(*cos_sin, interleaved, in_float32)
        weights = [n.weight if norm else None for n in norms]
        got = norm_rope.qk_norm_rope(q, k, *weights, 1e-6, True, rotation)
        plain = [n(t) if norm else t for n, t in zip(norms, (q, k), strict=True)]
        for a, b in zip(got, plain, strict=True):
            close(a, rope.rotate(b, cos_sin))
        close(norm_rope.apply_rope(plain[1], rotation), rope.rotate(plain[1], cos_sin))
