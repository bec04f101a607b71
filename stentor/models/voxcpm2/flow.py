"""Conditional flow matching: the local diffusion transformer and the Euler solver.

Lipman et al., 2023 (flow matching); Ho & Salimans, 2022 (classifier-free guidance); Fan et al., 2025 (CFG-Zero*).
Each row of a batch has its own guidance and its own number of steps; what a row gets does not depend on the others.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from stentor.layers.rope import Rope
from stentor.layers.transformer import Stack, StackConfig
from stentor.models.voxcpm2.local_stack import read_out

MAX_STEPS = 100
ZERO_STAR_EPS = 1e-8


def skipped(steps: int) -> int:
    """First Euler steps whose velocity CFG-Zero* sets to zero, of `steps`."""
    return max(1, int((steps + 1) * 0.04))


def evaluations(steps: int) -> int:
    """Network evaluations that `steps` Euler steps take."""
    return steps - skipped(steps)


def time_grid(steps: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Times [steps + 1] from 1 to 0 with sway sampling, in the model's own dtype as the reference rounds them."""
    t = torch.linspace(1, 0, steps + 1, device=device, dtype=dtype)
    return t + 1.0 * (torch.cos(torch.pi / 2 * t) - 1 + t)


def sinusoid(t: Tensor, dim: int) -> Tensor:
    """t [K] -> [K, dim], every operation in the dtype of t: in bfloat16 this is the hash that the model learnt."""
    half = dim // 2
    rate = torch.exp(torch.arange(half, dtype=t.dtype, device=t.device) * -(math.log(10000) / (half - 1)))
    angle = 1000 * t.unsqueeze(1) * rate.unsqueeze(0)
    return torch.cat((angle.sin(), angle.cos()), dim=-1)


class TimeMLP(nn.Module):
    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.linear_1 = nn.Linear(hidden, hidden)
        self.linear_2 = nn.Linear(hidden, hidden)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.linear_2(F.silu(self.linear_1(x)))
        return out


class LocDiT(nn.Module):
    """Velocity of one patch from the tokens [mu_lm, mu_res, time, condition patch, noisy patch], bidirectional."""

    def __init__(self, c: StackConfig, feat: int) -> None:
        super().__init__()
        self.in_proj = nn.Linear(feat, c.hidden)
        self.cond_proj = nn.Linear(feat, c.hidden)
        self.out_proj = nn.Linear(c.hidden, feat)
        self.time_mlp = TimeMLP(c.hidden)
        self.delta_time_mlp = TimeMLP(c.hidden)
        self.decoder = Stack(c)
        self.hidden = c.hidden

    def time_tokens(self, t: Tensor) -> Tensor:
        """t [K] in the model dtype -> [K, hidden]. The step-size branch always sees 0 (mean mode is off)."""
        moment = self.time_mlp(sinusoid(t, self.hidden))
        out: Tensor = moment + self.delta_time_mlp(sinusoid(torch.zeros_like(t[:1]), self.hidden))
        return out

    def forward(self, x: Tensor, mu: Tensor, time: Tensor, cond: Tensor, rope: Rope) -> Tensor:
        """in_proj(patch) x [N, P, H], mu [N, 2, H], time [N, H], cond_proj(patch) cond [N, P, H] -> [N, P, feat]."""
        return self.velocity(torch.cat((mu, time.unsqueeze(1), cond, x), dim=1), x.shape[1], rope)

    def velocity(self, tokens: Tensor, patch: int, rope: Rope) -> Tensor:
        """All tokens [N, T, H], the last `patch` of them the noisy patch -> [N, patch, feat]."""
        out: Tensor = self.out_proj(read_out(self.decoder, tokens, rope, slice(-patch, None)))
        return out


class FlowTables:
    """What a solve reads per row and evaluation, for every number of steps 1..MAX_STEPS, built once after loading.

    `dt` [MAX_STEPS + 1, MAX_STEPS] is the step size (0 after the row's last evaluation), `at` (same shape) the row of
    `time` [evaluations in all, hidden] that holds the time token.
    """

    def __init__(self, dit: LocDiT) -> None:
        like = dit.in_proj.weight
        device, dtype = like.device, like.dtype
        self.dt = torch.zeros(MAX_STEPS + 1, MAX_STEPS, dtype=dtype, device=device)
        self.at = torch.zeros(MAX_STEPS + 1, MAX_STEPS, dtype=torch.int64, device=device)
        moments, row = [], 0
        all_t, all_dt = _euler(dtype, device)
        for steps in range(1, MAX_STEPS + 1):
            count = evaluations(steps)
            used = slice(skipped(steps), steps)
            self.dt[steps, :count] = all_dt[steps, used]
            self.at[steps, :count] = torch.arange(row, row + count, device=device)
            moments.append(all_t[steps, used])
            row += count
        self.time = dit.time_tokens(torch.cat(moments))


def _euler(dtype: torch.dtype, device: torch.device) -> tuple[Tensor, Tensor]:
    """(t, dt) [MAX_STEPS + 1, MAX_STEPS] of Euler step k for each number of steps.

    The reference accumulates t and derives dt from it, in the model's dtype; the same additions are done here.
    """
    grid = torch.zeros(MAX_STEPS + 1, MAX_STEPS + 1, dtype=dtype, device=device)
    for steps in range(1, MAX_STEPS + 1):
        grid[steps, : steps + 1] = time_grid(steps, dtype, device)
    t, dt = grid[:, 0], grid[:, 0] - grid[:, 1]
    times, deltas = [], []
    for k in range(1, MAX_STEPS + 1):
        times.append(t)
        deltas.append(dt)
        t = t - dt
        if k < MAX_STEPS:
            dt = t - grid[:, k + 1]
    return torch.stack(times, dim=1), torch.stack(deltas, dim=1)


def guided(both: Tensor, cfg: Tensor) -> Tensor:
    """CFG-Zero*: velocities [2B, P, D] (conditioned rows, then unconditioned) and guidance [B] float32 -> [B, P, D]."""
    with_mu, without = both.chunk(2)
    a, b = with_mu.flatten(1), without.flatten(1)
    scale = (a * b).sum(1, keepdim=True) / ((b**2).sum(1, keepdim=True) + ZERO_STAR_EPS)
    base = without * scale.unsqueeze(-1)
    return base + (cfg.view(-1, 1, 1) * (with_mu - base).float()).to(both.dtype)


def solve(
    dit: LocDiT,
    tables: FlowTables,
    rope: Rope,
    mu: Tensor,
    cond: Tensor,
    z: Tensor,
    cfg: Tensor,
    steps: Tensor,
    work: int,
) -> Tensor:
    """Integrate noise z [B, P, D] to a patch [B, P, D].

    mu [B, 2, hidden], cond [B, P, D] the patch before, cfg [B] float32, steps [B] int64. `work` evaluations are made,
    at least `evaluations(steps)` of every row; a row that needs fewer keeps its result through the rest.
    """
    cond_tokens = dit.cond_proj(cond).repeat(2, 1, 1)
    mu = torch.cat((mu, torch.zeros_like(mu)))
    dt, at = tables.dt[steps], tables.at[steps]
    x = z
    for k in range(work):
        time = tables.time[at[:, k]].repeat(2, 1)
        velocity = guided(dit(dit.in_proj(x).repeat(2, 1, 1), mu, time, cond_tokens, rope), cfg)
        step = dt[:, k].view(-1, 1, 1)
        x = torch.where(step != 0, x - step * velocity, x)
    return x


def solve_in_place(
    dit: LocDiT,
    tables: FlowTables,
    rope: Rope,
    mu: tuple[Tensor, Tensor],
    cond: Tensor,
    z: Tensor,
    cfg: Tensor,
    steps: Tensor,
    work: int,
) -> Tensor:
    """The loop of `solve` by kernels, over one tensor of tokens, of which an evaluation changes the time and the patch;
    mu: both tokens [B, hidden]; cond in any floating dtype."""
    from stentor.models.voxcpm2.kernels import EulerSchedule, cfg_euler_step, dit_input_tokens

    x = z.contiguous()
    if not work:
        return x
    patch = dit.in_proj.weight, dit.in_proj.bias
    projections = (dit.cond_proj.weight, dit.cond_proj.bias, *patch)
    every = EulerSchedule(tables.dt, tables.at, tables.time)
    tokens, own = dit_input_tokens(mu, cond, x, projections, steps, every, work)
    for k in range(work):
        both = dit.velocity(tokens, x.shape[1], rope)
        feed = (own.at[:, k + 1], own.times, *patch) if k + 1 < work else None
        x = cfg_euler_step(both, x, cfg, own.dt[:, k], ZERO_STAR_EPS, tokens, feed, time_at=len(mu))
    return x
