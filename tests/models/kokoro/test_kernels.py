"""The network by kernels, in 16 bits, is as the modules are in float32."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import tests.helpers.kernel_tests  # noqa: F401  (first: it imports the kernels interpreted where there is no GPU)
from stentor.kernels import switches
from stentor.kernels.types import SnakeParams
from stentor.models.dummy import UNIT_GAIN, random_init
from stentor.models.kokoro import blocks, channels_last_blocks, codec
from stentor.models.kokoro.builder import cast_decoder
from stentor.models.kokoro.codec import step_mask
from stentor.models.kokoro.config import BertConfig, GeneratorConfig, KokoroConfig
from stentor.models.kokoro.kernels import (
    SPAN,
    Norm,
    Pool,
    Steps,
    convolution_input,
    statistics,
)
from stentor.models.kokoro.lstm_kernels import Recurrence, lstm
from stentor.models.kokoro.network import Network
from stentor.models.kokoro.transforms import Transforms
from tests.helpers.child import python
from tests.helpers.kernel_tests import DEVICE, close, integers, random
from tests.helpers.kokoro_spectrum import spectrum
from tests.helpers.released import released

STYLE = 8
SMALL = KokoroConfig(
    tokens=20,
    hidden=32,
    style=STYLE,
    layers=1,
    max_duration=4,
    text_kernel=3,
    bert=BertConfig(hidden=16, heads=2, ffn=16, positions=32, layers=1),
    generator=GeneratorConfig(
        channels=64,
        rates=(4, 6),
        kernels=(8, 12),
        block_kernels=(3, 7),
        dilations=((1, 3, 5), (1, 3, 5)),
        fft=20,
        hop=5,
    ),
)


@pytest.fixture(autouse=True)
def _kernels(kernel_test, monkeypatch):
    """The network calls the kernels, also where they are interpreted."""
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    if DEVICE == "cpu":
        monkeypatch.setattr(switches, "INTERPRETED", True)


def error(result: Tensor, expected: Tensor) -> float:
    assert result.shape == expected.shape
    return float((result.double() - expected.double()).norm() / expected.double().norm())


def norm_of(channels: int) -> blocks.StyledInstanceNorm:
    norm = blocks.StyledInstanceNorm(STYLE, channels).to(DEVICE)
    random_init(norm, 1)
    return norm


def gains_of(norm: blocks.StyledInstanceNorm, style: Tensor) -> Tensor:
    return torch.cat(norm.gains(style), dim=-1)


@pytest.mark.parametrize("mean", [0.0, 100.0])
@pytest.mark.parametrize("count", [1, SPAN // 2 + 1, 8 * SPAN + 5])
def test_a_norm_takes_its_statistics_over_the_steps_of_each_row(count, mean):
    steps = Steps(integers(count, (count + 1) // 2), 2, 1)
    x = random(2, 2 * count + 1, 6) + mean
    norm = norm_of(6)
    style = random(2, STYLE)
    result = convolution_input(
        x, steps, 2, Norm(statistics(x, steps), gains_of(norm, style)), slope=0.2
    )

    mask = step_mask(steps.lengths, count, 2, 1)
    expected = F.leaky_relu(norm(x.transpose(1, 2), style, mask), 0.2) * mask
    expected = F.pad(expected, (2, 2)).transpose(1, 2)
    torch.testing.assert_close(result, expected, rtol=1e-4, atol=1e-4 * (1 + mean))


def test_a_row_is_the_same_whatever_stands_beside_it():
    x = random(2, 3 * SPAN, 5)
    gains = random(2, 10)

    def normed(x: Tensor, *lengths: int) -> Tensor:
        steps = Steps(integers(*lengths), 1)
        return convolution_input(x, steps, 0, Norm(statistics(x, steps), gains[: len(x)]))

    beside = normed(x, SPAN + 9, 3 * SPAN)[:1, : SPAN + 9]
    x[0, SPAN + 9 :] = float("nan")
    assert torch.equal(normed(x[:1, : SPAN + 9], SPAN + 9), beside)
    assert torch.equal(normed(x, SPAN + 9, 3 * SPAN)[:1, : SPAN + 9], beside)


def test_snake_stands_behind_the_norm():
    x = random(1, 40, 6)
    norm = norm_of(6)
    style = random(1, STYLE)
    alpha = random(1, 6, 1).abs() + 0.1
    snake = SnakeParams(alpha.flatten(), 1 / alpha.flatten())
    steps = Steps(integers(40), 1)
    result = convolution_input(
        x, steps, 3, Norm(statistics(x, steps), gains_of(norm, style)), snake
    )
    mask = step_mask(steps.lengths, 40, 1)
    expected = blocks.snake(norm(x.transpose(1, 2), style, mask), alpha)
    close(result, F.pad(expected, (3, 3)).transpose(1, 2).contiguous())


def test_a_pool_makes_two_steps_of_each():
    pool = nn.ConvTranspose1d(6, 6, 3, stride=2, padding=1, output_padding=1, groups=6).to(DEVICE)
    x = random(2, 9, 6)
    steps = Steps(integers(9, 5), 1)
    weights = Pool(pool.weight[:, 0].t().contiguous(), pool.bias)
    result = convolution_input(x, steps, 1, slope=0.2, pool=weights)
    mask = step_mask(steps.lengths, 9, 1)
    y = pool(F.leaky_relu(x.transpose(1, 2), 0.2) * mask) * step_mask(steps.lengths, 9, 2)
    close(result, F.pad(y, (1, 1)).transpose(1, 2).contiguous())


def test_transforms_are_those_of_the_library():
    """Phases of half a turn have the sign of a rounding error there."""
    rows = random(2, 20 + 5 * 40)
    rows[0, :10] = rows[0, 11:21].flip(0)
    transforms = Transforms(20, 5, rows.device)
    magnitudes, phases = transforms.spectrum(rows)
    window = torch.hann_window(20, device=DEVICE)
    bins = torch.stft(rows, 20, 5, window=window, center=False, return_complex=True).transpose(1, 2)
    turned = torch.polar(magnitudes, phases)
    torch.testing.assert_close(turned, bins, rtol=1e-4, atol=1e-5)
    assert bool((phases[0, 0].sin().abs() < 1e-6).all())
    assert bool((phases[0, 0] >= 0).all())

    mask = torch.ones(2, 41, 1, device=DEVICE)
    mask[1, 30:] = 0
    samples = transforms.samples(magnitudes, phases, mask)
    assert samples.shape == (2, 200)
    torch.testing.assert_close(samples[0], rows[0, 10:210], rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(samples[1, :135], rows[1, 10:145], rtol=1e-4, atol=1e-4)


def lstm_of(inputs: int, outputs: int) -> blocks.LSTM:
    net = blocks.LSTM(inputs, outputs).to(DEVICE)
    for p in net.parameters():
        p.data *= 3
    return net


@pytest.mark.parametrize("size", [16, 256])
@pytest.mark.parametrize("numbers", [(1,), (9, 3, 6), tuple(1 + n % 4 for n in range(18))])
def test_an_lstm_runs_over_each_row_from_both_ends(size, numbers):
    net = lstm_of(24, 2 * size)
    lengths = blocks.Lengths(torch.tensor(numbers), integers(*numbers))
    x = random(len(numbers), max(numbers) + 2, 24)
    result = channels_last_blocks.LSTM(net)(x, lengths.device)
    expected = net.cpu().over(x.cpu(), lengths)
    torch.testing.assert_close(result.cpu(), expected, rtol=0, atol=1e-5)


def test_rows_of_an_lstm_are_the_same_whatever_stands_beside_them():
    inputs = random(20, 8, 2, 64)
    net = lstm_of(4, 32)
    recurrence = Recurrence.of(net.weight_hh_l0, net.weight_hh_l0_reverse)
    rows = lstm(inputs, recurrence, integers(*[1 + n % 8 for n in range(20)]))
    inputs[4, 5:] = float("nan")
    assert torch.equal(lstm(inputs[4:5, :5], recurrence, integers(5))[0], rows[4, :5])
    again = lstm(inputs[3:6], recurrence, integers(8, 5, 2))
    assert torch.equal(again[1, :5], rows[4, :5])
    assert not again[1, 5:].any()


def small(dtype: torch.dtype) -> Network:
    """A net that does not amplify: any rounding would become another waveform."""
    with torch.device(DEVICE):
        net = Network(SMALL)
    random_init(net, 0, UNIT_GAIN, released("kokoro", "kokoro-82m").constants)
    for name, p in net.named_parameters():
        if p.ndim == 3 and "alpha" not in name:
            p.data *= 0.4
    cast_decoder(net, dtype)
    net.process_weights_after_loading()
    return net


def spoken(net: Network) -> tuple[list[np.ndarray], Tensor]:
    torch.manual_seed(5)
    tokens = [torch.tensor([0, 3, 5, 7, 0]), torch.tensor([0, 4, 0])]
    styles = random(2, 2 * STYLE)
    frames, features = net.plan(tokens, styles, torch.ones(2, device=DEVICE))
    counts = [row[: len(t)] for row, t in zip(frames.cpu().numpy(), tokens, strict=True)]
    places = [np.repeat(np.arange(len(row)), row) for row in counts]
    longest = max(len(row) for row in places)
    noise = torch.randn(2, longest * net.hop, codec.HARMONICS).to(DEVICE)
    samples = net.speak(features, places, styles, noise)
    ends = [len(row) * net.hop for row in places]
    return counts, torch.cat([row[:end] for row, end in zip(samples, ends, strict=True)])


def test_the_network_in_16_bits_by_kernels_is_as_close_to_float32_as_without(monkeypatch):
    monkeypatch.setattr(codec.Generator, "_spectrum", spectrum)
    fast = small(torch.float16)
    assert fast.fast is not None
    assert fast.curves.shared.by_kernel is not None
    counts, result = spoken(fast)
    monkeypatch.setattr(switches, "AVAILABLE", False)
    expected_counts, expected = spoken(small(torch.float32))
    _, plain = spoken(small(torch.float16))
    for a, b in zip(counts, expected_counts, strict=True):
        assert np.array_equal(a, b)
    assert 0.01 < float(expected.abs().max()) < 1
    assert error(result, expected) < 0.01
    assert error(result, expected) < 1.5 * error(plain, expected)
    assert not torch.equal(result, plain)


@pytest.mark.slow
def test_every_kernel_compiles_for_gpus():
    done = python("-m", "tests.models.kokoro.compile_kernels", TRITON_INTERPRET="0")
    assert done.returncode == 0, done.stderr[-3000:]
    assert len(done.stdout.splitlines()) >= 12
