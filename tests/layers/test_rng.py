"""Random numbers: the right distribution, and a function of (seed, frame, draw) alone."""

import torch
from scipy import stats

from stentor.layers.rng import normal, uniform


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
