"""The speaker encoder's convolutions, which are products."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from stentor.models.qwen3_tts.speaker_encoder import SameConv1d, fourier


@torch.inference_mode()
@pytest.mark.parametrize(("kernel", "dilation"), [(1, 1), (5, 1), (3, 4), (4, 3)])
def test_a_convolution_as_a_product_equals_torchs(kernel: int, dilation: int) -> None:
    conv = SameConv1d(6, 4, kernel, dilation)
    want = nn.Conv1d(6, 4, kernel, dilation=dilation, padding="same", padding_mode="reflect")
    want.load_state_dict(conv.state_dict())
    for length in (13, 30):
        x = torch.randn(2, 6, length)
        torch.testing.assert_close(conv(x), want(x), rtol=1e-5, atol=1e-5)


def test_the_spectrum_as_a_product_is_the_fourier_transform_of_the_window() -> None:
    frames = torch.randn(5, 64, dtype=torch.float64)
    real, imaginary = (frames @ torch.from_numpy(fourier(64)).double()).chunk(2, dim=1)
    want = torch.fft.rfft(frames * torch.hann_window(64, dtype=torch.float64))
    torch.testing.assert_close(torch.complex(real, imaginary), want, rtol=1e-5, atol=1e-5)
