"""Filters and samplers against the distributions that they should have."""

import numpy as np
import torch
from scipy import stats

from stentor.kernels.types import SampleOut, SamplingParams
from stentor.layers.rng import uniform
from stentor.layers.sampling import keep_top_k, keep_top_p, penalize_seen, sample, sample_into


def test_top_k_keeps_ties_and_zero_keeps_all():
    logits = torch.tensor([[3.0, 2.0, 2.0, 1.0]]).repeat(3, 1)
    kept = keep_top_k(logits, torch.tensor([1, 2, 0])).isfinite()
    assert kept.tolist() == [[True, False, False, False], [True, True, True, False], [True] * 4]


def test_top_p_keeps_the_token_that_crosses():
    logits = torch.log(torch.tensor([[0.5, 0.3, 0.15, 0.05]])).repeat(4, 1)
    kept = keep_top_p(logits, torch.tensor([0.4, 0.6, 1.0, 0.0])).isfinite().sum(1)
    assert kept.tolist() == [1, 2, 4, 1]


def test_the_penalty_pushes_seen_tokens_down_whatever_their_sign():
    logits = torch.tensor([[2.0, -2.0, 1.0]])
    out = penalize_seen(logits, torch.tensor([[True, True, False]]), torch.tensor([2.0]))
    assert out.tolist() == [[1.0, -4.0, 1.0]]


def test_samples_follow_the_filtered_distribution_with_mixed_parameters_in_one_batch():
    """20,000 draws per setting, chi-square against probabilities worked out in numpy."""
    logits = torch.randn(12, generator=torch.Generator().manual_seed(1)) * 2
    settings = [(0.7, 0, 1.0), (1.0, 5, 1.0), (1.3, 0, 0.8), (0.9, 6, 0.7)]
    n = 20_000
    rows = torch.arange(len(settings)).repeat_interleave(n)
    t, k, p = (torch.tensor([s[i] for s in settings])[rows] for i in range(3))
    u = uniform(torch.arange(len(rows)), torch.zeros(len(rows), dtype=torch.int64), 1)[:, 0]
    picks = sample(logits.expand(len(rows), -1), u, t, k, p).view(len(settings), n)
    for (temperature, top_k, top_p), drawn in zip(settings, picks, strict=True):
        expected = reference_probabilities(logits.double().numpy(), temperature, top_k, top_p)
        counts = np.bincount(drawn.numpy(), minlength=12)
        assert counts[expected == 0].sum() == 0
        keep = expected > 0
        assert stats.chisquare(counts[keep], expected[keep] * n).pvalue > 1e-3


def reference_probabilities(
    logits: np.ndarray, temperature: float, top_k: int, top_p: float
) -> np.ndarray:
    x = logits / temperature
    order = np.argsort(-x)
    kept = order[: top_k or len(x)]
    p = np.exp(x[kept] - x.max())
    p /= p.sum()
    size = int(np.searchsorted(np.cumsum(p), top_p) + 1) if top_p < 1 else len(p)
    out = np.zeros(len(x))
    out[kept[:size]] = p[:size] / p[:size].sum()
    return out


def test_sample_into_writes_the_ids_and_the_next_tokens_and_nothing_else():
    logits, u = torch.randn(3, 7), torch.rand(3)
    params = SamplingParams(u, torch.ones(3), torch.zeros(3, dtype=torch.int64), torch.ones(3))
    want, table, prefix = sample(logits, *params), torch.randn(7, 5), torch.randn(3, 5)
    codes, x = torch.full((2, 3), -1, dtype=torch.int32), torch.full((3, 3, 5), 9.0)
    sample_into(logits, params, SampleOut(codes[0]))
    assert codes.tolist() == [want.tolist(), [-1] * 3]
    sample_into(logits, params, SampleOut(codes[1], table, x[:, 1:], prefix))
    assert codes[1].tolist() == want.tolist()
    assert torch.equal(x, torch.stack((torch.full((3, 5), 9.0), prefix, table[want]), dim=1))
