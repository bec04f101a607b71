"""Kernels of this family, against its reference implementations."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import tests.helpers.kernel_tests  # noqa: F401  (first: it imports the kernels interpreted where there is no GPU)
from stentor.kernels.types import MinFrames, RowRef
from stentor.models.fish_s2 import language_model as sampling
from stentor.models.fish_s2.kernels import (
    embed_codes,
    sample_first_code,
    sample_ranked,
    sample_ranked_into,
)
from stentor.models.fish_s2.language_model import rank
from tests.helpers.child import python
from tests.helpers.kernel_tests import DEVICE, DTYPES, random
from tests.helpers.samplers import agree, check_sample, sample_outs, sampling_cases, sampling_params

pytestmark = pytest.mark.usefixtures("kernel_test")

TOLERANCE = {torch.float32: 1e-6, torch.bfloat16: 2e-2}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", [40, 4097])
def test_one_launch_chooses_what_the_ranked_sampler_chooses(size, dtype):
    logits, *rest = sampling_cases(60, size)
    logits = logits.to(dtype)
    agree(sample_ranked(logits, *rest), sampling.sample_ranked(rank(logits), *rest), logits)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("batch", [1, 24])
def test_what_is_drawn_by_rank_is_the_next_token(dtype, batch):
    size = 70
    logits, how = random(batch, size, dtype=dtype) * 3, sampling_params(batch, size)
    for out in sample_outs(batch, size, dtype, torch.int64):
        sample_ranked_into(logits, how, out)
        check_sample(out, sampling.sample_ranked(rank(logits), *how), 0.05)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("batch", [1, 24])
def test_the_first_choice_is_made_again_if_it_repeats_and_may_end_in_time(dtype, batch):
    size, slots, most, books, window = 41, 30, 16, 11, 10
    logits, how = random(batch, size, dtype=dtype), sampling_params(batch, size)
    logits[:, size - 1] += 2.0 * (torch.arange(batch, device=DEVICE) % 3 == 1)
    u = torch.rand(batch, 13, device=DEVICE)[:, :2]
    past = RowRef(
        torch.randint(0, 9, (slots, most, books), device=DEVICE),
        torch.randperm(slots, device=DEVICE)[:batch],
    )
    step, least = torch.arange(batch, device=DEVICE) % most, torch.full((batch,), 4, device=DEVICE)
    early = (torch.arange(size, device=DEVICE) == size - 1) & (step < least)[:, None]
    ranking = rank(logits.float().masked_fill(early, float("-inf")))
    once = sampling.sample_ranked(ranking, u[:, 0], *how[1:])
    at = step[:, None] - torch.arange(1, window + 1, device=DEVICE)
    old = past.table[past.idx[:, None], at.clamp_min(0), 0]
    for row in range(0, batch, 2):  # every other row repeats itself, if it has a past that counts
        past.table[past.idx[row], :, 0] = once[row]
        old[row] = once[row]
    repeats = ((old == once[:, None]) & (at > 0)).any(-1)
    free = (how.temperature > 0).float()
    again = sampling.sample_ranked(ranking, u[:, 1], free, how.top_k, torch.full_like(free, 0.9))
    want = torch.where(repeats, again, once)
    for out in sample_outs(batch, size, dtype, torch.int64):
        ended = sample_first_code(
            logits, how._replace(u=u), (1.0, 0.9), out, past, window, MinFrames(step, least)
        )
        check_sample(out, torch.where(ended, 0, want), 0.05)
        assert ((want == size - 1) != ended).float().mean() <= 0.05
        assert not ended[step < least].any()
    if batch > 1:
        assert ended.any()
        assert repeats.any()
        assert (again != once)[repeats].any()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("hidden", "codes"), [(48, torch.int32), (600, torch.int64)])
def test_a_frame_is_the_scaled_sum_of_its_codes_and_its_token(dtype, hidden, codes):
    books, size = 16, 9
    table, texts = (torch.randn(n, hidden, device=DEVICE).to(dtype) for n in (books * size, 20))
    offset = torch.arange(books, device=DEVICE) * size
    frames = torch.randint(0, size, (4, books), device=DEVICE).to(codes)
    got = embed_codes(frames, offset, table, texts, 7, 11**0.5)
    want = (
        F.embedding(frames[:, 0] + 7, texts) + F.embedding(frames + offset, table).sum(1)
    ) / 11**0.5
    torch.testing.assert_close(got, want, atol=TOLERANCE[dtype], rtol=TOLERANCE[dtype])


@pytest.mark.slow
def test_every_kernel_compiles_for_gpus():
    done = python("-m", "tests.models.fish_s2.compile_kernels", TRITON_INTERPRET="0")
    assert done.returncode == 0, done.stderr[-3000:]
    assert len(done.stdout.splitlines()) >= 7
