"""The operations between the GEMMs of this family. Each is one function with its reference formula,
and runs as one kernel of `kernels.py` where that is enabled. Kernels have no gradients, so training
uses the reference formulas."""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from stentor import kernels
from stentor.kernels import Kernel
from stentor.models.voxcpm2.schedule import EulerSchedule

ZERO_STAR_EPS = 1e-8


def patch_tokens(patches: Tensor, proj: nn.Linear, first: Tensor) -> Tensor:
    """Tokens [N, 1 + P, H]: `first` [1, 1, 1, H], then the patches [N, P, D], rounded to its dtype
    and projected."""
    if kernels.enabled(Kernel.PATCH, first):
        from stentor.models.voxcpm2.kernels import patch_tokens as fused

        return fused(patches, proj.weight, proj.bias, first)
    x = proj(patches.to(first.dtype))
    return torch.cat((first[0].expand(x.shape[0], 1, -1), x), dim=1)


def fsq_round(x: Tensor, scale: int, straight_through: bool = False) -> Tensor:
    """round(tanh(x) * scale) / scale. `straight_through`: with the gradient of tanh."""
    if straight_through:
        soft = torch.tanh(x)
        return soft + (torch.round(soft * scale) / scale - soft).detach()
    if kernels.enabled(Kernel.PATCH, x):
        from stentor.models.voxcpm2.kernels import fsq_round as fused

        return fused(x, scale)
    return torch.round(torch.tanh(x) * scale) / scale


def select_and_concat(
    h: Tensor, rounded: Tensor, feat: Tensor, audio: Tensor
) -> tuple[Tensor, Tensor]:
    """(x, (x, feat) side by side), where x is `rounded` where audio [...] bool is set and else h.
    All [..., H]."""
    if h.ndim == 2 and kernels.enabled(Kernel.PATCH, h):
        from stentor.models.voxcpm2.kernels import select_and_concat as fused

        both = fused(h, rounded, feat, audio)
        return both[:, : h.shape[1]], both
    h = torch.where(audio.unsqueeze(-1), rounded, h)
    return h, torch.cat((h, feat), dim=-1)


def stop_head(x: Tensor, head: nn.Linear) -> Tensor:
    """Whether the second of the two outputs of head(silu(x [N, H])) is the larger: [N] bool."""
    if kernels.enabled(Kernel.PATCH, x):
        from stentor.models.voxcpm2.kernels import stop_head as fused

        return fused(x, head.weight)
    logits: Tensor = head(F.silu(x))
    return logits[:, 1] > logits[:, 0]


def dit_input_tokens(
    mu: tuple[Tensor, Tensor],
    cond: Tensor,
    z: Tensor,
    cond_proj: nn.Linear,
    in_proj: nn.Linear,
    steps: Tensor,
    schedule: EulerSchedule,
    num_evals: int,
) -> tuple[Tensor, EulerSchedule]:
    """Tokens [2B, 3 + 2P, H] of the first evaluation, and the schedule of the rows for `num_evals`
    evaluations.

    A row has two tokens mu [B, H], the time, the patch before `cond` [B, P, D] and the noisy patch
    z [B, P, D], both projected. The second half of the rows, for guidance, has zeros for mu. steps
    [B] int64.
    """
    if kernels.enabled(Kernel.FLOW, z):
        from stentor.models.voxcpm2.kernels import dit_input_tokens as fused

        projections = (cond_proj.weight, cond_proj.bias, in_proj.weight, in_proj.bias)
        return fused(mu, cond, z, projections, steps, schedule, num_evals)
    rows_schedule = EulerSchedule(schedule.dt[steps], schedule.at[steps], schedule.times)
    time = rows_schedule.times[rows_schedule.at[:, 0]]
    tokens = torch.cat(
        (torch.stack((*mu, time), dim=1), cond_proj(cond.to(z.dtype)), in_proj(z)), dim=1
    )
    without = tokens.clone()
    without[:, :2] = 0
    return torch.cat((tokens, without)), rows_schedule


def cfg_zero_star(both: Tensor, cfg: Tensor) -> Tensor:
    """CFG-Zero*: velocities [2B, P, D] (conditioned rows, then unconditioned) and guidance [B]
    float32 -> [B, P, D]."""
    with_mu, without = both.chunk(2)
    a = with_mu.flatten(1)
    b = without.flatten(1)
    scale = (a * b).sum(1, keepdim=True) / ((b**2).sum(1, keepdim=True) + ZERO_STAR_EPS)
    base = without * scale.unsqueeze(-1)
    return base + (cfg.view(-1, 1, 1) * (with_mu - base).float()).to(both.dtype)


class NextTokens(NamedTuple):
    """Parts of the next evaluation's tokens: rows `at` [B] of the time tokens `times` [K, H], which
    stand at position `time_at`, and the projection of the noisy patch, which stands at the end."""

    at: Tensor
    times: Tensor
    in_proj: nn.Linear
    time_at: int


def cfg_euler_step(
    both: Tensor, x: Tensor, cfg: Tensor, dt: Tensor, tokens: Tensor, following: NextTokens | None
) -> Tensor:
    """x [B, P, D] after a step dt [B] along the guided velocities both [2B, P, D]. Rows with dt 0
    do not change.

    Writes the time and the patch of the next evaluation into tokens [2B, T, H], unless `following`
    is None.
    """
    if kernels.enabled(Kernel.FLOW, x):
        from stentor.models.voxcpm2.kernels import cfg_euler_step as fused

        if following is None:
            return fused(both, x, cfg, dt, ZERO_STAR_EPS, tokens, None, 0)
        proj = following.in_proj
        feed = (following.at, following.times, proj.weight, proj.bias)
        return fused(both, x, cfg, dt, ZERO_STAR_EPS, tokens, feed, following.time_at)
    velocity = cfg_zero_star(both, cfg)
    step = dt.view(-1, 1, 1)
    x = torch.where(step != 0, x - step * velocity, x)
    if following is not None:
        halves = tokens.view(2, len(x), *tokens.shape[1:])
        halves[:, :, following.time_at] = following.times[following.at]
        halves[:, :, -x.shape[1] :] = following.in_proj(x)
    return x
