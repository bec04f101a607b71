"""Conditional flow matching: the local diffusion transformer and the Euler solver.

Lipman et al., 2023 (flow matching), Ho & Salimans, 2022 (classifier-free guidance), Fan et al.,
2025 (CFG-Zero*). Each row of a batch has its own guidance and its own number of steps. The result
of a row does not depend on the others.
"""

from __future__ import annotations

import math
from collections import OrderedDict

import torch
from torch import Tensor, nn

from stentor.layers.attention import full
from stentor.layers.configs import StackConfig
from stentor.layers.linear import some_outputs
from stentor.layers.lora import LoraLinear, project
from stentor.layers.packed import PackedLinear
from stentor.layers.qk_norm_rope import RopePositions
from stentor.layers.rope import Rope
from stentor.layers.transformer import Block, Stack
from stentor.models.voxcpm2.ops import NextTokens, cfg_euler_step, dit_input_tokens
from stentor.models.voxcpm2.schedule import EulerSchedule, TimeTokens


def last_layer_subset(stack: Stack, x: Tensor, rope: Rope, keep: slice) -> Tensor:
    """stack(x [N, T, hidden])[:, keep], every token seeing every other."""
    positions = RopePositions(rope)
    x, delta = stack.blocks(x, full, positions, count=-1)
    last = stack.layers[-1]
    assert isinstance(last, Block)
    if delta is None and last.fuses(x):
        return stack.norm.add_norm(_fused_subset(last, x, positions, keep), None)[1]
    x, h = last.input_layernorm.add_norm(x, delta)
    attended = _attend_to_all(last, h, positions, keep)
    x, h = last.post_attention_layernorm.add_norm(x[:, keep], last.self_attn.o_proj(attended))
    return stack.norm.add_norm(x, last.mlp(h))[1]


def _fused_subset(block: Block, x: Tensor, positions: RopePositions, keep: slice) -> Tensor:
    """The block's output [N, kept, hidden]. All queries are computed: that costs less than a launch
    of their own."""
    attention = block.self_attn
    q, k, v = attention.heads(block.fused_qkv(x))
    norm_rope = attention.norm_rope(positions, keep.indices(x.shape[1])[0])
    return block.fused_after(x[:, keep], full(0, q[:, keep], k, v, norm_rope).flatten(-2))


def _attend_to_all(block: Block, h: Tensor, positions: RopePositions, keep: slice) -> Tensor:
    """From the input of `qkv_proj`, all tokens h [N, T, hidden], to that of `o_proj` for the tokens
    `keep`."""
    attention = block.self_attn
    layer = attention.qkv_proj
    widths = attention.widths
    dim = attention.head_dim
    # its outputs come together, with adapters in fewer launches
    if isinstance(layer, PackedLinear | LoraLinear):
        q, k, v = attention.heads(layer(h))
        q = q[:, keep]
    else:
        q = some_outputs(layer, h[:, keep], 0, widths[0])
        k, v = some_outputs(layer, h, widths[0], sum(widths)).chunk(2, dim=-1)
        q, k, v = (t.reshape(*t.shape[:2], -1, dim) for t in (q, k, v))
    first = keep.indices(h.shape[1])[0]
    return full(0, q, k, v, attention.norm_rope(positions, first)).flatten(-2)


TIME_AT = 2  # position of the time token, after the two of mu


def sinusoid(t: Tensor, dim: int) -> Tensor:
    """t [K] -> [K, dim], every operation in the dtype of t. The model was trained with what
    bfloat16 makes of it."""
    half = dim // 2
    rate = torch.exp(
        torch.arange(half, dtype=t.dtype, device=t.device) * -(math.log(10000) / (half - 1))
    )
    angle = 1000 * t.unsqueeze(1) * rate.unsqueeze(0)
    return torch.cat((angle.sin(), angle.cos()), dim=-1)


class TimeMLP(nn.Sequential):
    def __init__(self, hidden: int) -> None:
        first = nn.Linear(hidden, hidden)
        second = nn.Linear(hidden, hidden)
        super().__init__(OrderedDict(linear_1=first, act=nn.SiLU(), linear_2=second))


class LocDiT(nn.Module):
    """Velocity of one patch from the tokens [mu_lm, mu_res, time, condition patch, noisy patch],
    bidirectional.

    Conditions and patches come as projected by `cond_proj` and `in_proj`.
    """

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
        """t [K] in the model dtype -> [K, hidden]. The step-size branch always sees 0 (mean mode is
        off)."""
        moment = self.time_mlp(sinusoid(t, self.hidden))
        out: Tensor = moment + self.delta_time_mlp(sinusoid(torch.zeros_like(t[:1]), self.hidden))
        return out

    def forward(self, tokens: Tensor, patch: int, rope: Rope) -> Tensor:
        """Tokens [N, T, H], the last `patch` of them the noisy patch -> velocities [N, patch,
        feat]."""
        x = last_layer_subset(self.decoder, tokens, rope, slice(-patch, None))
        return project(self.out_proj, x)

    def times(self) -> TimeTokens:
        """The schedules of the solver, from the present weights."""
        return TimeTokens(self.time_tokens, self.in_proj.weight.dtype, self.in_proj.weight.device)

    def schedule(self) -> EulerSchedule:
        """Schedules of all numbers of steps."""
        times = self.times()
        times.prepare_all()
        return times.schedule


def euler_solve(
    dit: LocDiT,
    schedule: EulerSchedule,
    rope: Rope,
    mu: tuple[Tensor, Tensor],
    cond: Tensor,
    z: Tensor,
    cfg: Tensor,
    steps: Tensor,
    num_evals: int,
) -> Tensor:
    """Integrate noise z [B, P, D] to a patch [B, P, D].

    mu: two tokens [B, hidden]. cond: the patch before [B, P, D], in any floating dtype.
    cfg: [B] float32. steps: [B] int64.
    `num_evals` evaluations are made, at least `evaluations(steps)` of every row. A row that needs
    fewer keeps its result through the rest. All evaluations use one tensor of tokens, in which the
    time and the noisy patch change.
    """
    x = z.contiguous()
    if not num_evals:
        return x
    tokens, rows_schedule = dit_input_tokens(
        mu, cond, x, dit.cond_proj, dit.in_proj, steps, schedule, num_evals
    )
    for k in range(num_evals):
        both = dit(tokens, x.shape[1], rope)
        more = k + 1 < num_evals
        if more:
            following = NextTokens(
                rows_schedule.at[:, k + 1], rows_schedule.times, dit.in_proj, TIME_AT
            )
        else:
            following = None
        x = cfg_euler_step(both, x, cfg, rows_schedule.dt[:, k], tokens, following)
    return x
