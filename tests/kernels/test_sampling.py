"""Top-k and top-p sampling by a kernel, against `layers.sampling`."""

from __future__ import annotations

import pytest
import torch

import tests.helpers.kernel_tests  # noqa: F401  (first: it imports the kernels interpreted where there is no GPU)
from stentor.kernels import sampling
from stentor.layers.sampling import sample
from tests.helpers.kernel_tests import DEVICE, DTYPES, random
from tests.helpers.samplers import agree, check_sample, sample_outs, sampling_cases, sampling_params

pytestmark = pytest.mark.usefixtures("kernel_test")


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", [40, 2048])
def test_one_launch_picks_what_the_filters_and_the_draw_pick(size, dtype):
    case = sampling_cases(60, size)
    if dtype == torch.float32:
        case = (case[0] + random(60, size) * 1e-3, *case[1:])  # top-p may cut ties anywhere
    else:
        case = (case[0].to(dtype), *case[1:4], torch.ones_like(case[4]))
    agree(sampling.sample(*case), sample(*case), case[0])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("batch", [1, 24])
def test_what_is_drawn_is_the_next_token(dtype, batch):
    size = 70
    logits, how = random(batch, size, dtype=dtype) * 3, sampling_params(batch, size)
    for out in sample_outs(batch, size, dtype, torch.int32):
        sampling.sample_into(logits, how, out)
        check_sample(out, sample(logits, *how), 0.05)


@pytest.mark.skipif(
    DEVICE == "cuda",
    reason="the compiler takes minutes over a block of 131,072; arithmetic is shown",
)
def test_a_wide_vocabulary_is_counted_whole():
    size, k = 70_000, 66_000  # more than 16 bits count
    logits = torch.linspace(1, 0, size, device=DEVICE)[None]
    u, one = torch.full((1,), 0.999, device=DEVICE), torch.ones(1, device=DEVICE)
    drawn = int(sampling.sample(logits, u, one, torch.full((1,), k, device=DEVICE), one))
    assert 65_000 < drawn < k
