"""The solver that makes a latent of noise: DPM-Solver++ of second order, midpoint rule (Lu et al.,
2022), over the timesteps of a cosine schedule. Its first and its last step are of first order."""

from __future__ import annotations

import math

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from stentor import kernels
from stentor.models.vibevoice.config import MAX_EVALUATIONS, TRAINING_STEPS
from stentor.models.vibevoice.diffusion import DiffusionHead

COSINE_OFFSET = 0.008
MAX_BETA = 0.999


def timesteps(steps: int) -> list[int]:
    """The timesteps of a solver with `steps` steps, the noisiest first."""
    borders = np.linspace(0, TRAINING_STEPS - 1, steps + 1)
    return [int(t) for t in borders.round()[:0:-1]]


def noise_to_signal() -> Tensor:
    """Noise over signal of each training timestep, float32 [TRAINING_STEPS]."""

    def remaining(step: int) -> float:
        share = step / TRAINING_STEPS
        angle = (share + COSINE_OFFSET) / (1 + COSINE_OFFSET)
        return math.cos(angle * math.pi / 2) ** 2

    betas = []
    for step in range(TRAINING_STEPS):
        beta = 1 - remaining(step + 1) / remaining(step)
        betas.append(min(beta, MAX_BETA))

    remains = 1 - torch.tensor(betas, dtype=torch.float32)
    signal = torch.cumprod(remains, 0)
    return ((1 - signal) / signal).sqrt()


def times_table() -> Tensor:
    """Timesteps of all solvers, [MAX_EVALUATIONS + 1, MAX_EVALUATIONS] float32, by the number of
    steps and by the step."""
    table = torch.zeros(MAX_EVALUATIONS + 1, MAX_EVALUATIONS)
    for steps in range(1, MAX_EVALUATIONS + 1):
        table[steps, :steps] = torch.tensor(timesteps(steps))
    return table


def solver_table(device: torch.device) -> Tensor:
    """Numbers of the steps of all solvers, [5, MAX_EVALUATIONS + 1, MAX_EVALUATIONS] float32, by
    the number of steps and by the step: alpha, sigma, keep, add and slope.

    A step takes z and the velocity v to `clean = alpha * z - sigma * v`, and z to `keep * z + add *
    (clean + slope * (clean - clean before))`. Behind the last step z stays as it is.
    """
    table = torch.zeros(
        5,
        MAX_EVALUATIONS + 1,
        MAX_EVALUATIONS,
    )
    alphas, sigmas, keeps, adds, slopes = table
    alphas.fill_(1)
    keeps.fill_(1)
    ratios = noise_to_signal()
    clean = torch.zeros(1)
    for steps in range(1, MAX_EVALUATIONS + 1):
        ratio = torch.cat((ratios[timesteps(steps)], clean))
        alpha = 1 / (ratio**2 + 1).sqrt()
        sigma = ratio * alpha
        level = alpha.log() - sigma.log()
        width = level.diff()
        alphas[steps, :steps] = alpha[:-1]
        sigmas[steps, :steps] = sigma[:-1]
        keeps[steps, :steps] = sigma[1:] / sigma[:-1]
        adds[steps, :steps] = -alpha[1:] * torch.expm1(-width)
        slopes[steps, 1 : steps - 1] = width[1:-1] / width[:-2] / 2
    return table.to(device)


def solve(
    head: DiffusionHead,
    table: Tensor,
    hidden: Tensor,
    without_text: Tensor,
    guidance: Tensor,
    steps: Tensor,
    noise: Tensor,
    num_evals: int,
) -> Tensor:
    """Return the latents [B, latent] float32 that noise [B, latent] becomes.

    table: of `solver_table`. hidden, without_text: [B, hidden] of the sequence, and of the one that
    holds no text. guidance, steps: [B]. num_evals: steps of the row that has most.
    """
    conditions = head.cond_proj(torch.cat((hidden, without_text)))
    if kernels.enabled(kernels.Kernel.FLOW, conditions):
        return _solve_fused(head, table, conditions, guidance, steps, noise, num_evals)
    dtype = conditions.dtype
    times = head.times[steps]
    numbers = table[:, steps, :, None]
    guidance = guidance[:, None]
    z = noise.to(torch.promote_types(dtype, torch.float32))
    before = torch.zeros_like(z)
    for i in range(num_evals):
        alpha, sigma, keep, add, slope = numbers[:, :, i]
        condition = conditions + times[:, i].repeat(2, 1)
        both = head.velocity(z.to(dtype).repeat(2, 1), F.silu(condition))
        guided, free = both.to(z.dtype).chunk(2)
        v = free + guidance * (guided - free)
        clean = alpha * z - sigma * v
        z = keep * z + add * (clean + slope * (clean - before))
        # the original rounds between steps, and computes within them in float32
        z = z.to(dtype).to(z.dtype)
        before = clean
    return z.float()


def _solve_fused(
    head: DiffusionHead,
    table: Tensor,
    conditions: Tensor,
    guidance: Tensor,
    steps: Tensor,
    noise: Tensor,
    num_evals: int,
) -> Tensor:
    from stentor.models.vibevoice.kernels import active_conditions, solver_step

    z = noise.float().contiguous()
    noisy = z.to(conditions.dtype).repeat(2, 1)
    clean = None
    for i in range(num_evals):
        active = active_conditions(conditions, head.times, steps, i)
        velocity = head.velocity(noisy, active)
        z, noisy, clean = solver_step(z, velocity, clean, guidance, table, steps, i)
    return z
