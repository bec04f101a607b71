"""Kernels of this family, against its reference implementations."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import tests.helpers.kernel_tests  # noqa: F401  (first: it imports the kernels interpreted where there is no GPU)
from stentor.models.voxcpm2 import kernels
from stentor.models.voxcpm2.ops import cfg_zero_star
from stentor.models.voxcpm2.schedule import EulerSchedule
from tests.helpers.child import python
from tests.helpers.kernel_tests import DEVICE, DTYPES, close, random

pytestmark = pytest.mark.usefixtures("kernel_test")


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("count", "patch", "feat", "hidden"), [(3, 4, 6, 80), (1, 2, 64, 64), (0, 4, 6, 80)]
)
def test_a_patch_becomes_tokens_behind_the_first(dtype, count, patch, feat, hidden):
    weight, bias, first = (
        random(*s, dtype=dtype) for s in ((hidden, feat), (hidden,), (1, 1, 1, hidden))
    )
    for given in (random(count, patch, feat), random(count, patch, feat, dtype=dtype)):
        got = kernels.patch_tokens(given, weight, bias, first)
        projected = F.linear(given.to(dtype), weight, bias)
        assert torch.equal(got[:, 0], first[0, 0].expand(count, -1))
        assert got.shape == (count, 1 + patch, hidden)
        if count:
            close(got[:, 1:], projected)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("batch", "work", "stacked"), [(1, 9, False), (3, 2, True), (2, 1, False)])
def test_a_flow_begins_with_its_conditions_time_and_patches(dtype, batch, work, stacked):
    patch, feat, hidden, most = 4, 6, 80, 12
    both = random(batch, 2, hidden, dtype=dtype)
    mu = (both[:, 0], both[:, 1]) if stacked else (both[:, 0].clone(), both[:, 1].clone())
    last, z = random(batch, patch, feat), random(batch, patch, feat, dtype=dtype)
    weights = [random(*s, dtype=dtype) for s in ((hidden, feat), (hidden,)) * 2]
    steps = torch.randint(0, 5, (batch,), device=DEVICE)
    tables = EulerSchedule(
        random(5, most, dtype=dtype),
        torch.randint(0, 7, (5, most), device=DEVICE),
        random(7, hidden, dtype=dtype),
    )
    made, own = kernels.dit_input_tokens(mu, last, z, tuple(weights), steps, tables, work)
    assert torch.equal(own.dt[:, :work], tables.dt[steps, :work])
    assert torch.equal(own.at[:, :work], tables.at[steps, :work])
    time = tables.times[tables.at[steps, 0]].unsqueeze(1)
    patches = F.linear(last.to(dtype), *weights[:2]), F.linear(z, *weights[2:])
    halves = [torch.cat((m, time, *patches), dim=1) for m in (both, torch.zeros_like(both))]
    assert torch.equal(made[:, :3], torch.cat(halves)[:, :3])
    close(made, torch.cat(halves))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("scale", [9, 4])
def test_levels_are_those_of_tanh_rounded(dtype, scale):
    x = random(7, 100, dtype=dtype) * 3
    x[0, :4] = torch.tensor([0.0, 40.0, -200.0, 1e-6], device=DEVICE)
    got, want = kernels.fsq_round(x, scale), torch.round(torch.tanh(x) * scale) / scale
    assert got.dtype == want.dtype
    near = ((torch.tanh(x.float()) * scale).abs() % 1 - 0.5).abs() < (
        1e-5 if dtype == torch.float32 else 0.1
    )
    torch.testing.assert_close(
        got[~near], want[~near], atol=1e-6, rtol=1e-6 if dtype == torch.float32 else 8e-3
    )
    assert ((got - want).abs() <= 1.1 / scale).all()
    assert near.float().mean() < 0.3


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("hidden", [48, 600])
def test_halves_are_joined_and_an_end_is_the_larger_of_two(dtype, hidden):
    h, rounded, feat = (random(5, hidden, dtype=dtype) for _ in range(3))
    mixed = torch.tensor([True, False, False, True, True], device=DEVICE)
    for audio in (mixed, mixed[:1].expand(5)):
        want = torch.cat((torch.where(audio[:, None], rounded, h), feat), dim=-1)
        assert torch.equal(kernels.select_and_concat(h, rounded, feat, audio), want)
    weight = random(2, hidden, dtype=dtype)
    logits = F.linear(F.silu(h), weight)
    got = kernels.stop_head(h, weight)
    assert got.dtype == torch.bool
    clear = (logits[:, 1] - logits[:, 0]).abs() > 0.1
    assert clear.any()
    assert torch.equal(got[clear], (logits[:, 1] > logits[:, 0])[clear])


@pytest.mark.parametrize("dtype", DTYPES)
def test_one_launch_guides_steps_and_writes_the_next_tokens(dtype):
    batch, patch, feat, hidden = 3, 4, 6, 80
    both, x = random(2 * batch, patch, feat, dtype=dtype), random(batch, patch, feat, dtype=dtype)
    cfg = torch.tensor([2.0, 1.0, 3.5], device=DEVICE)
    dt = torch.tensor([[0.1, 0.2], [0.3, 0.0], [0.0, 0.4]], device=DEVICE).to(dtype)
    at, times = (
        torch.tensor([[1, 0], [0, 2], [2, 1]], device=DEVICE),
        random(3, hidden, dtype=dtype),
    )
    weight, bias = random(hidden, feat, dtype=dtype), random(hidden, dtype=dtype)
    tokens = random(2 * batch, 3 + 2 * patch, hidden, dtype=dtype)
    step = dt[:, 0].view(-1, 1, 1)
    want = torch.where(step != 0, x - step * cfg_zero_star(both, cfg), x)
    want_tokens = tokens.clone()
    want_tokens[:, 2] = times[at[:, 1]].repeat(2, 1)
    want_tokens[:, -patch:] = torch.nn.functional.linear(want, weight, bias).repeat(2, 1, 1)
    got = kernels.cfg_euler_step(
        both, x, cfg, dt[:, 0], 1e-8, tokens, (at[:, 1], times, weight, bias), 2
    )
    close(got, want)
    close(tokens, want_tokens)
    assert torch.equal(got[2], x[2])
    last = kernels.cfg_euler_step(both, x, cfg, dt[:, 0], 1e-8, tokens, None, 2)
    assert torch.equal(last, got)


@pytest.mark.slow
def test_every_kernel_compiles_for_gpus():
    done = python("-m", "tests.models.voxcpm2.compile_kernels", TRITON_INTERPRET="0")
    assert done.returncode == 0, done.stderr[-3000:]
    assert len(done.stdout.splitlines()) >= 15
