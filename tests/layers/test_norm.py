"""RMSNorm rounds as the released models do."""

import torch

from stentor.layers.norm import RMSNorm


def test_rms_norm_rounds_where_it_says():
    x = torch.randn(64, dtype=torch.bfloat16)
    for late in (True, False):
        norm = RMSNorm(64, 1e-5, late)
        norm.weight.data = torch.rand(64).bfloat16()
        y = x.float() * torch.rsqrt(x.float().pow(2).mean() + 1e-5)
        expected = y.bfloat16() * norm.weight if late else (y * norm.weight.float()).bfloat16()
        assert torch.equal(norm(x), expected)


def test_a_residual_branch_joins_before_the_norm():
    norm, x, delta = RMSNorm(8, 1e-6), torch.randn(3, 8), torch.randn(3, 8)
    total, normed = norm.add_norm(x, delta)
    assert torch.equal(total, x + delta)
    assert torch.equal(normed, norm(x + delta))
    alone, normed = norm.add_norm(x, None)
    assert alone is x
    assert torch.equal(normed, norm(x))
