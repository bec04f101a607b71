"""Convolutions of codec decoders by kernels, against the modules of `layers.conv` in float32."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import tests.helpers.kernel_tests  # noqa: F401  (first: it imports the kernels interpreted where there is no GPU)
from stentor.kernels import conv1d, switches
from stentor.kernels.configs import MIN_CONV_CTAS, ConvConfig, conv_config
from stentor.kernels.types import Affine
from stentor.layers.codec_blocks import Snake, SnakeBeta
from stentor.layers.conv import (
    CausalConv1d,
    CausalConvTranspose1d,
    SnakeBase,
    StreamingState,
    cast_codec,
    convolve,
    state_columns,
)
from tests.helpers.kernel_tests import DEVICE, random

CONVOLUTIONS = {
    "pointwise": lambda: CausalConv1d(40, 24, 1),
    "dilated": lambda: CausalConv1d(24, 24, 7, dilation=9),
    "first": lambda: CausalConv1d(6, 150, 7, bias=False),
    "last": lambda: CausalConv1d(24, 1, 7),
    "depthwise": lambda: CausalConv1d(24, 24, 7, dilation=3, groups=24),
    "of one channel": lambda: CausalConv1d(1, 24, 7),
    "upsampling": lambda: CausalConvTranspose1d(24, 12, 5),
    "upsampling without overlap": lambda: CausalConvTranspose1d(24, 24, 2, kernel=2),
}


@pytest.fixture(autouse=True)
def _conv_kernels(kernel_test, monkeypatch):
    """`layers.conv` calls the kernels, also where they are interpreted."""
    if DEVICE == "cpu":
        monkeypatch.setattr(switches, "INTERPRETED", True)


def filled(module: nn.Module) -> nn.Module:
    module.to(DEVICE)
    for p in module.parameters():
        p.data = random(*p.shape) * (p[0].numel() ** -0.5 if p.ndim > 1 else 0.3)
    return module


def wave(kind: str, channels: int) -> SnakeBase:
    act = {"alpha": Snake, "exponentials": SnakeBeta}[kind](channels).to(DEVICE)
    for p in act.parameters():
        p.data = random(*p.shape).abs() * 2 + 0.05 if kind == "alpha" else random(*p.shape)
    return act


def error(got: Tensor, want: Tensor) -> float:
    assert got.shape == want.shape
    return float((got.double() - want.double()).norm() / want.double().norm())


@pytest.mark.parametrize("kind", ["alpha", "exponentials"])
def test_the_sine_is_exact_for_large_arguments(kind):
    act = wave(kind, 33)
    x = random(2, 33, 9) * 100
    got = conv1d.concat_history(x.transpose(1, 2), None, 0, act.params())[0].transpose(1, 2)
    assert error(got, act.double().reference(x.double())) < 1e-6


@pytest.mark.parametrize("kind", ["alpha", "exponentials"])
def test_history_stands_before_the_activated_input_whatever_its_layout(kind):
    act = wave(kind, 20)
    layouts = (random(3, 20, 4).half(), random(3, 4, 20).half().transpose(1, 2))
    pasts = (random(3, 5, 20).half(), random(3, 20, 5).half().transpose(1, 2))
    for x, past in zip(layouts, pasts, strict=True):
        got, kept = conv1d.concat_history(x.transpose(1, 2), past, 5, act.params(), keep=True)
        assert torch.equal(got[:, :5], past)
        assert torch.equal(kept, got[:, -5:])
        assert kept.untyped_storage().data_ptr() != got.untyped_storage().data_ptr()
        assert error(got[:, 5:].transpose(1, 2), act(x)) < 1e-3
        silent, _ = conv1d.concat_history(x.transpose(1, 2), None, 2, None)
        assert torch.equal(silent, torch.cat((torch.zeros_like(past[:, :2]), x.transpose(1, 2)), 1))


def test_what_stands_before_the_first_column_is_silent_and_columns_ahead_are_not_kept():
    act, past, x = wave("alpha", 20), random(3, 5, 20).half(), random(3, 9, 20).half()
    first = torch.tensor([0, 4, 9], device=DEVICE)
    ahead = torch.tensor([3, 0, 7], device=DEVICE)
    heard = x * (torch.arange(9, device=DEVICE) >= first[:, None])[..., None]
    want, _ = conv1d.concat_history(heard, past, 5, act.params(), keep=True)
    got, kept = conv1d.concat_history(x, past, 5, act.params(), keep=True, ahead=ahead, first=first)
    assert torch.equal(got, want)
    for row, count in enumerate(ahead.tolist()):
        assert torch.equal(kept[row], want[row, 9 - count : 14 - count])


@pytest.mark.parametrize("chunks", [(9,), (1, 2, 6)])
@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_a_convolution_with_all_that_goes_with_it_equals_its_parts(name, chunks):
    conv = filled(CONVOLUTIONS[name]())
    columns = state_columns(nn.ModuleDict({"conv": conv}))
    inputs = conv.channels
    outputs = conv(random(1, inputs, 1)).shape[1]
    rate = conv(random(1, inputs, 1)).shape[2]
    before, after = wave("alpha", inputs), wave("exponentials", outputs)
    x, residual = random(2, inputs, 9), random(2, outputs, 9 * rate)
    want = convolve(conv, x, None, before, after, residual)
    cast_codec(conv, torch.float16)
    state = {
        n: torch.zeros(2, *c.shape, dtype=torch.float16, device=DEVICE) for n, c in columns.items()
    }
    parts, at = [], 0
    for n in chunks:
        streaming = StreamingState(state)
        part = None if residual is None else residual[..., at * rate : (at + n) * rate].half()
        parts.append(convolve(conv, x[..., at : at + n].half(), streaming, before, after, part))
        state, at = streaming.new, at + n
        assert {k: v.shape[1:] for k, v in state.items()} == {
            k: torch.Size(c.shape) for k, c in columns.items()
        }
    got = torch.cat(parts, -1)
    assert got.dtype == torch.float16
    assert error(got, want) < 3e-3
    whole = convolve(
        conv, x.half(), None, before, after, None if residual is None else residual.half()
    )
    assert error(whole, want) < 3e-3


def test_values_beyond_the_range_of_float16_stay_finite():
    conv = filled(CausalConv1d(16, 16, 1))
    cast_codec(conv, torch.float16)
    x = torch.full((1, 16, 4), 6e4, device=DEVICE).half()
    assert convolve(conv, x, None, residual=x).isfinite().all()


@pytest.mark.parametrize("rows", [1, 70, 5000, 400_000])
@pytest.mark.parametrize("outputs", [1, 32, 96, 160, 192, 384, 1536])
def test_blocks_fit_the_output(rows, outputs):
    t = conv_config(rows, outputs, 96)
    width = t.block_n + t.extra_n
    assert -(-outputs // width) * width < 1.5 * max(32, outputs)
    assert t.num_ctas(rows, outputs) >= MIN_CONV_CTAS or t.block_m * width <= 64 * 32


@pytest.mark.parametrize(
    "config",
    [ConvConfig(32, 16, 16, 16, 4), ConvConfig(16, 32, 16, 32, 4), ConvConfig(16, 16, 0, 64, 4)],
)
def test_a_product_does_not_depend_on_its_config(config, monkeypatch):
    conv = filled(CausalConv1d(48, 90, 7, dilation=3))
    x, residual = random(2, 48, 20), random(2, 90, 20)
    want = convolve(conv, x, None, None, wave("alpha", 90), residual)
    torch.manual_seed(7)
    cast_codec(filled(conv), torch.float16)
    monkeypatch.setattr(conv1d, "conv_config", lambda *shape: config)
    x, residual = random(2, 48, 20), random(2, 90, 20)
    assert (
        error(convolve(conv, x.half(), None, None, wave("alpha", 90), residual.half()), want) < 3e-3
    )


def test_a_depthwise_convolution_does_not_depend_on_how_many_rows_a_program_has(monkeypatch):
    conv = filled(CausalConv1d(40, 40, 7, dilation=3, groups=40))
    x = random(2, 40, 150)
    want = convolve(conv, x, None)
    cast_codec(conv, torch.float16)
    few = convolve(conv, x.half(), None)
    monkeypatch.setattr(conv1d, "MANY_ELEMENTS", 0)
    assert torch.equal(convolve(conv, x.half(), None), few)
    assert error(few, want) < 3e-3


def test_scale_and_shift_come_before_the_activation_and_not_into_the_history():
    conv, act = filled(CausalConv1d(24, 24, 7)), wave("alpha", 24)
    x, affine = random(2, 24, 9), Affine(random(24), random(24))
    want = convolve(conv, x, None, act, affine=affine)
    cast_codec(conv, torch.float16)
    half = Affine(affine.scale.half(), affine.shift.half())
    assert error(convolve(conv, x.half(), None, act, affine=half), want) < 3e-3


@pytest.mark.parametrize(
    ("inputs", "outputs", "taps", "stride", "left"),
    [(24, 40, 8, 4, 4), (24, 24, 2, 2, 0), (16, 16, 4, 2, 0), (6, 150, 10, 5, 5)],
    ids=["two strides", "no history", "taps that overlap", "few channels"],
)
def test_a_strided_convolution_reads_its_taps_as_one_row(inputs, outputs, taps, stride, left):
    conv = filled(CausalConv1d(inputs, outputs, taps, stride=stride, left=left))
    before = wave("alpha", inputs)
    x = random(2, inputs, 6 * stride + 1)  # the last step is not read
    want = convolve(conv, x, None, before)
    cast_codec(conv, torch.float16)
    for layout in (x.half(), x.half().transpose(1, 2).contiguous().transpose(1, 2)):
        got = convolve(conv, layout, None, before)
        assert got.dtype == torch.float16
        assert error(got, want) < 3e-3
        assert torch.equal(got[:1], convolve(conv, layout[:1], None, before))
