"""Randomness and sampling: right distribution, and a function of (seed, frame, draw) alone."""

import numpy as np
import torch
from scipy import stats

from stentor.layers.rng import normal, uniform
from stentor.layers.sampling import keep_top_k, keep_top_p, penalize_seen, sample


def test_uniforms_are_uniform_and_never_reach_the_ends():
    u = uniform(torch.arange(50), torch.zeros(50, dtype=torch.int64), 4000).flatten()
    assert u.min() > 0
    assert u.max() < 1
    assert stats.kstest(u.numpy(), "uniform").pvalue > 1e-3


def test_uniforms_are_independent_across_seeds_steps_and_draws():
    seeds = uniform(torch.arange(40), torch.zeros(40, dtype=torch.int64), 2000)
    steps = uniform(torch.zeros(40, dtype=torch.int64), torch.arange(40), 2000)
    for u in (seeds, steps, seeds.T[:40]):
        c = torch.corrcoef(u) - torch.eye(40)
        assert c.abs().max() < 5.5 / u.shape[1] ** 0.5


def test_a_row_does_not_depend_on_its_batch():
    alone = uniform(torch.tensor([7]), torch.tensor([3]), 16)
    together = uniform(torch.tensor([1, 7, 2**62]), torch.tensor([0, 3, 9]), 16)
    assert torch.equal(alone[0], together[1])


def test_normals_are_normal():
    z = normal(uniform(torch.arange(40), torch.zeros(40, dtype=torch.int64), 2000)).flatten()
    assert stats.kstest(z.numpy(), "norm").pvalue > 1e-3


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


def test_picks_follow_the_filtered_distribution_with_mixed_parameters_in_one_batch():
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


def reference_probabilities(logits: np.ndarray, temperature: float, top_k: int, top_p: float) -> np.ndarray:
    x = logits / temperature
    order = np.argsort(-x)
    kept = order[: top_k or len(x)]
    p = np.exp(x[kept] - x.max())
    p /= p.sum()
    size = int(np.searchsorted(np.cumsum(p), top_p) + 1) if top_p < 1 else len(p)
    out = np.zeros(len(x))
    out[kept[:size]] = p[:size] / p[:size].sum()
    return out
