"""Kernels of this family, against its reference implementations."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import tests.helpers.kernel_tests  # noqa: F401  (first: it imports the kernels interpreted where there is no GPU)
from stentor.kernels import switches
from stentor.layers.conv import (
    CausalConv1d,
    CausalConvTranspose1d,
    StreamingState,
    cast_codec,
    state_columns,
)
from stentor.models.dummy import random_init
from stentor.models.vibevoice import codec
from stentor.models.vibevoice.codec import CodecBlock
from stentor.models.vibevoice.config import HeadConfig
from stentor.models.vibevoice.diffusion import DiffusionHead, add_modulated_norm
from stentor.models.vibevoice.kernels import MAX_FUSED_WIDTH
from stentor.models.vibevoice.solver import solve, solver_table, times_table
from tests.helpers.child import python
from tests.helpers.kernel_tests import DEVICE, DTYPES, close, random

pytestmark = pytest.mark.usefixtures("kernel_test")


@pytest.fixture(autouse=True)
def _conv_kernels(kernel_test, monkeypatch):
    """`layers.conv` calls the kernels, also where they are interpreted."""
    if DEVICE == "cpu":
        monkeypatch.setattr(switches, "INTERPRETED", True)


@pytest.fixture
def without_kernels(monkeypatch):
    """A call switches the kernels off."""
    return lambda: monkeypatch.setattr(switches, "AVAILABLE", False)


def block(channels: int, dtype: torch.dtype) -> tuple[CodecBlock, dict]:
    with torch.device(DEVICE):
        made = CodecBlock(channels, 1e-5)
    random_init(made, 0, constants={"gamma": 0.5, "ffn_gamma": 0.5})
    made.fold_gains()
    made.norm.weight.data = torch.linspace(0.5, 1.5, channels, device=DEVICE)
    parts = nn.ModuleDict({"block": made})
    cast_codec(parts, dtype)
    return made, state_columns(parts)


def run(made: CodecBlock, x: Tensor, columns: dict, chunks: tuple[int, ...]) -> Tensor:
    dtype = x.dtype
    state = {
        name: torch.zeros(len(x), *column.shape, dtype=dtype, device=DEVICE)
        for name, column in columns.items()
    }
    parts = []
    for part in x.split(chunks, dim=2):
        streaming = StreamingState(state)
        parts.append(made(part, streaming))
        state = streaming.new
    return torch.cat(parts, dim=2)


@torch.inference_mode()
@pytest.mark.parametrize("channels", [32, 2 * MAX_FUSED_WIDTH])
@pytest.mark.parametrize("chunks", [(9,), (1, 2, 6)])
def test_a_block_equals_its_parts_streamed_and_whole(channels, chunks, without_kernels):
    made, columns = block(channels, torch.float16)
    x = random(2, channels, 9).half()
    fused = run(made, x, columns, chunks)
    whole = made(x, None)
    without_kernels()
    made, columns = block(channels, torch.float32)
    wanted = run(made, x.float(), columns, (9,))
    for got in (fused, whole):
        error = (got.float() - wanted).norm() / wanted.norm()
        assert error < 2e-3
    assert torch.equal(fused, whole)


@torch.inference_mode()
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("weighted", [True, False])
@pytest.mark.parametrize("adds", [True, False])
def test_addition_norm_and_modulation_are_one_kernel(dtype, weighted, adds, without_kernels):
    x = random(3, 80, dtype=dtype)
    delta = random(3, 80, dtype=dtype) if adds else None
    modulation = random(3, 4, 80, dtype=dtype)
    gate, scale, shift, _ = modulation.unbind(1)
    weight = random(80, dtype=dtype) if weighted else None
    arguments = (x, delta, gate if adds else None, weight, scale, shift, 1e-5)
    fused = add_modulated_norm(*arguments)
    without_kernels()
    for got, wanted in zip(fused, add_modulated_norm(*arguments), strict=True):
        close(got, wanted)


@torch.inference_mode()
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_solver_with_kernels_equals_one_without(dtype, without_kernels):
    with torch.device(DEVICE):
        head = DiffusionHead(HeadConfig(hidden=48, ffn=96, layers=2, latent=24, eps=1e-5))
    random_init(head, 0)
    head.to(dtype)
    head.process_weights_after_loading(times_table())
    arguments = (
        head,
        solver_table(torch.device(DEVICE)),
        random(3, 48, dtype=dtype),
        random(3, 48, dtype=dtype),
        torch.tensor([1.3, 3.0, 1.0], device=DEVICE),
        torch.tensor([5, 2, 1], device=DEVICE),
        random(3, 24),
        5,
    )
    fused = solve(*arguments)
    without_kernels()
    plain = solve(*arguments)
    tolerance = 1e-5 if dtype == torch.float32 else 0.05
    assert (fused - plain).abs().max() <= tolerance * plain.abs().max()


@torch.inference_mode()
@pytest.mark.parametrize("chunks", [(12,), (2, 4, 6)])
@pytest.mark.parametrize("kind", ["up", "down"])
def test_a_wide_convolution_by_products_equals_one_by_its_kernel(kind, chunks, monkeypatch):
    with torch.device(DEVICE):
        if kind == "up":
            conv: nn.Module = CausalConvTranspose1d(24, 12, 3)
        else:
            conv = CausalConv1d(24, 12, 4, stride=2, left=2)
    random_init(conv, 0)
    conv.bias.data = random(12)
    parts = nn.ModuleDict({"conv": conv})
    cast_codec(parts, torch.float16)
    columns = state_columns(parts)
    x = random(2, 24, 12).half()
    results = []
    for most in (2**22, 0):
        monkeypatch.setattr(codec, "MANY_WEIGHTS", most)
        state = {
            name: torch.zeros(2, *column.shape, dtype=torch.float16, device=DEVICE)
            for name, column in columns.items()
        }
        outputs = []
        for part in x.split(chunks, dim=2):
            streaming = StreamingState(state)
            outputs.append(codec.resample(conv, part, streaming))
            state = streaming.new
        results.append(torch.cat(outputs, dim=2).float())
    by_kernel, by_products = results
    assert (by_products - by_kernel).norm() / by_kernel.norm() < 1e-3


@pytest.mark.slow
def test_every_kernel_compiles_for_gpus():
    done = python("-m", "tests.models.vibevoice.compile_kernels", TRITON_INTERPRET="0")
    assert done.returncode == 0, done.stderr[-3000:]
    assert len(done.stdout.splitlines()) >= 10
