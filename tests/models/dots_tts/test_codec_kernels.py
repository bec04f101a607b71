"""The activation of the decoder as a kernel, against the module, in the chunks of a stream that looks ahead."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import tests.helpers.kernel_tests  # noqa: F401  (first: it imports the kernels interpreted where there is no GPU)
from stentor.kernels import switches
from stentor.layers.conv import CausalConv1d, cast_codec
from stentor.layers.types import NO_END, CodecCall, State
from stentor.models.dots_tts import codec_kernels
from stentor.models.dots_tts.codec import (
    Activation,
    ChunkState,
    Decoder,
    cast_vocoder,
    convolve_activated,
)
from stentor.models.dots_tts.config import VocoderConfig
from tests.helpers.child import python
from tests.helpers.kernel_tests import DEVICE, random

SMALL = VocoderConfig(
    sample_rate=48000,
    latent=6,
    up_rates=(5, 2),
    channels=96,
    kernels=(3, 7),
    dilations=((1, 3), (1, 5)),
    down_rates=(2, 5),
    down_channels=(8, 8, 8),
    lstm_layers=1,
    last_bias=True,
    tanh=False,
)


@pytest.fixture(autouse=True)
def _conv_kernels(kernel_test, monkeypatch):
    """The codec calls the kernels, also where they are interpreted."""
    if DEVICE == "cpu":
        monkeypatch.setattr(switches, "INTERPRETED", True)


def filled(module: nn.Module) -> nn.Module:
    module.to(DEVICE)
    for name, p in module.named_parameters():
        p.data = random(*p.shape) * (0.3 if "act" in name or p.ndim == 1 else p[0].numel() ** -0.5)
    return module


def error(got: Tensor, want: Tensor) -> float:
    assert got.shape == want.shape
    return float((got.double() - want.double()).norm() / want.double().norm())


@pytest.mark.parametrize("steps", [6, 30, 78])
@pytest.mark.parametrize(
    ("channels", "own", "dilation"), [(24, True, 1), (64, False, 1), (40, False, 5)]
)
def test_an_activation_and_its_convolution_equal_the_modules(steps, channels, own, dilation):
    """Streams begin or go on, with more columns than either history and with fewer."""
    act, conv = (
        filled(Activation(channels, own)),
        filled(CausalConv1d(channels, channels, 7, dilation)),
    )
    act.key, conv.key = "act", "conv"
    x, residual = random(3, channels, steps), random(3, channels, steps)
    first = torch.tensor([False, True, False], device=DEVICE)
    old = {"act": random(3, act.tail, channels), "conv": random(3, conv.tail, channels)}
    for past in old.values():
        past[1] = 0
    want = ChunkState(old, first, 6)
    expected = convolve_activated(act, conv, x, want, residual)
    modules = nn.ModuleList([act, conv])
    cast_codec(modules, torch.float16)
    got = ChunkState({name: t.half() for name, t in old.items()}, first, 6)
    assert error(convolve_activated(act, conv, x.half(), got, residual.half()), expected) < 3e-3
    for name, state in want.new.items():
        assert error(got.new[name], state) < 2e-3


def test_every_length_of_a_walk_gives_the_same(monkeypatch):
    act = filled(Activation(24))
    act.key = "act"
    cast_codec(act, torch.float16)
    x, past, history = (
        random(2, 50, 24).half(),
        random(2, act.tail, 24).half(),
        random(2, 6, 24).half(),
    )
    taps = act.upsample.filter, act.downsample.lowpass.filter
    first = torch.tensor([False, True], device=DEVICE)
    outcomes = []
    for many in (1, 2**30):
        monkeypatch.setattr(codec_kernels, "MANY_ELEMENTS", many)
        outcomes.append(
            codec_kernels.activation(x, past, first, act.act.params(), *taps, history, 10)
        )
    for a, b in zip(*outcomes, strict=True):
        assert torch.equal(a, b)


def test_a_decoder_in_16_bits_streams_what_it_gives_in_float32():
    with torch.device(DEVICE):
        decoder = filled(Decoder(SMALL, patch=2))
    frames = random(2, 5, 2, SMALL.latent)

    def stream(dtype: torch.dtype) -> Tensor:
        cast_vocoder(decoder, dtype)
        state: State = {
            n: torch.zeros(2, *c.shape, dtype=c.dtype, device=DEVICE)
            for n, c in decoder.columns.items()
        }
        parts = []
        for start, end in ((0, 1), (1, 3), (3, 5)):
            starts = torch.full((2,), start, dtype=torch.int64, device=DEVICE)
            ends = torch.full_like(starts, 5 if end == 5 else NO_END)
            call = CodecCall(starts, torch.full_like(starts, end), ends, end - start)
            samples, state = decoder.decode(frames[:, start:end], state, call)
            parts.append(samples)
        return torch.cat(parts, 1)

    want = stream(torch.float32)
    assert error(stream(torch.float16), want) < 1e-2


@pytest.mark.slow
def test_every_kernel_compiles_for_gpus():
    done = python("-m", "tests.models.dots_tts.compile_kernels", TRITON_INTERPRET="0")
    assert done.returncode == 0, done.stderr[-3000:]
    assert len(done.stdout.splitlines()) >= 4
