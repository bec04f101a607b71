"""A mixture of experts for few tokens: each expert that some token chose is read once, at fixed
shapes.

`route` applies the norm and chooses. Pairs of a token and an expert are then put in order of their
experts, on the device. A GEMM of each expert's pairs follows for gate and up-projection, and one
for the down-projection. Grids are as large as the pairs allow, so nothing is read on the host.
`combine` adds up a token's products in ascending order of their experts, in which they stand: no
sum depends on the other tokens.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from stentor.kernels.configs import experts_config
from stentor.kernels.pdl import PDL_LAUNCH, pdl_wait
from stentor.kernels.quantized import GROUPED, PER_OUTPUT, read_scale, weight_bits, widen
from stentor.kernels.switches import INTERPRETED

ROUTED_INPUTS = 256
GROUPED_PAIRS = 64
COMBINED = 256
"""Elements of a block: inputs of the gate, pairs that are put in order, outputs that are added
up."""


class Routing(NamedTuple):
    """Choice of N tokens: `x` [N, H] after the norm, `ids` [N, k] int32 ascending, their `weights`
    [N, k], and that of the shared expert, `shared` [N]."""

    x: Tensor
    ids: Tensor
    weights: Tensor
    shared: Tensor


class ExpertWeight(NamedTuple):
    """A weight of all experts under one another [outputs, inputs], in 8 bits with a scale [outputs,
    groups]."""

    weight: Tensor
    scale: Tensor | None = None


@triton.jit
def _normed(x_ptr, norm_ptr, offs, size, rstd, NORM: tl.constexpr, dtype: tl.constexpr):
    """A block of a row after its norm, rounded as `layers.norm` rounds."""
    x = tl.load(x_ptr + offs, offs < size, 0.0).to(tl.float32)
    if NORM:
        x = (x * rstd).to(dtype).to(tl.float32) * tl.load(norm_ptr + offs, offs < size, 0.0).to(
            tl.float32
        )
    return x.to(dtype)


@triton.jit
def _route_kernel(
    x_ptr,
    norm_ptr,
    gate_ptr,
    shared_gate_ptr,
    out_ptr,
    ids_ptr,
    weights_ptr,
    shared_ptr,
    hidden,
    experts,
    stride_x,
    eps,
    NORM: tl.constexpr,
    CHOSEN: tl.constexpr,
    NORMALISED: tl.constexpr,
    BLOCK_E: tl.constexpr,
    BLOCK_H: tl.constexpr,
    BLOCK_X: tl.constexpr,
    USE_PDL: tl.constexpr,
):
    pdl_wait(USE_PDL)
    dtype: tl.constexpr = out_ptr.dtype.element_ty
    row = tl.program_id(0).to(tl.int64)
    offs_e = tl.arange(0, BLOCK_E)
    offs_h = tl.arange(0, BLOCK_H)
    x_ptr += row * stride_x
    rstd = 1.0
    if NORM:
        every = tl.arange(0, BLOCK_X)
        x_row = tl.load(x_ptr + every, every < hidden, 0.0).to(tl.float32)
        rstd = tl.rsqrt(tl.sum(x_row * x_row, 0) / hidden + eps)
    logits = tl.zeros([BLOCK_E], tl.float32)
    shared_sums = tl.zeros([BLOCK_H], tl.float32)
    for start in range(0, hidden, BLOCK_H):
        offs = start + offs_h
        mask = (offs_e < experts)[:, None] & (offs < hidden)[None, :]
        gate = tl.load(gate_ptr + offs_e.to(tl.int64)[:, None] * hidden + offs[None, :], mask, 0.0)
        x = _normed(x_ptr, norm_ptr, offs, hidden, rstd, NORM, dtype)
        tl.store(out_ptr + row * hidden + offs, x, offs < hidden)
        wide = x.to(tl.float32)
        logits += tl.sum(gate.to(tl.float32) * wide[None, :], 1)
        shared_sums += tl.load(shared_gate_ptr + offs, offs < hidden, 0.0).to(tl.float32) * wide
    logits = logits.to(dtype).to(tl.float32)
    logits = tl.where(offs_e < experts, logits, float("-inf"))
    likely = tl.exp(logits - tl.max(logits, 0))
    likely = likely / tl.sum(likely, 0)
    # a row that is not finite chooses any: ids must be in range
    remaining = tl.where(likely >= 0.0, likely, 0.0)
    remaining = tl.where(offs_e < experts, remaining, -1.0)
    chosen = offs_e < 0
    for _ in tl.static_range(CHOSEN):
        best = tl.min(tl.where(remaining == tl.max(remaining, 0), offs_e, BLOCK_E), 0)
        chosen = chosen | (offs_e == best)
        remaining = tl.where(offs_e == best, -1.0, remaining)
    if NORMALISED:
        likely = likely / tl.sum(tl.where(chosen, likely, 0.0), 0)
    at = row * CHOSEN + tl.cumsum(chosen.to(tl.int32), 0) - 1
    tl.store(ids_ptr + at, offs_e, chosen)
    tl.store(weights_ptr + at, likely.to(dtype), chosen)
    shared = tl.sum(shared_sums, 0).to(dtype).to(tl.float32)
    tl.store(shared_ptr + row, (1.0 / (1.0 + tl.exp(-shared))).to(dtype))


def route(
    x: Tensor,
    norm: tuple[Tensor, float] | None,
    gate: Tensor,
    shared_gate: Tensor,
    chosen: int,
    normalised: bool,
) -> Routing:
    """Choose among the experts by gate [E, H] for rows x [N, H], after an RMSNorm (weight, eps)
    whose weight multiplies the rounded row. shared_gate [1, H]. Of equally likely experts the first
    is chosen."""
    rows, hidden = x.shape
    out = torch.empty(rows, hidden, dtype=x.dtype, device=x.device)
    ids = torch.empty(rows, chosen, dtype=torch.int32, device=x.device)
    routing = Routing(out, ids, x.new_empty(rows, chosen), x.new_empty(rows))
    weight, eps = (gate, 0.0) if norm is None else norm
    if rows:
        _route_kernel[(rows,)](
            x,
            weight,
            gate,
            shared_gate,
            *routing,
            hidden,
            len(gate),
            x.stride(0),
            eps,
            NORM=norm is not None,
            CHOSEN=chosen,
            NORMALISED=normalised,
            BLOCK_E=triton.next_power_of_2(len(gate)),
            BLOCK_H=min(ROUTED_INPUTS, triton.next_power_of_2(hidden)),
            BLOCK_X=triton.next_power_of_2(hidden),
            num_warps=16,
            **PDL_LAUNCH,
        )
    return routing


@triton.jit(do_not_specialize=["pairs", "slots"])
def _group_kernel(
    ids_ptr,
    groups_ptr,
    order_ptr,
    pairs,
    slots,
    experts,
    BLOCK_E: tl.constexpr,
    BLOCK_P: tl.constexpr,
    USE_PDL: tl.constexpr,
):
    """One expert's place among those that were chosen, and its pairs. The experts that nobody chose
    come last."""
    pdl_wait(USE_PDL)
    expert = tl.program_id(0)
    offs_e = tl.arange(0, BLOCK_E)
    offs_p = tl.arange(0, BLOCK_P)
    counts = tl.zeros([BLOCK_E], tl.int32)
    for start in range(0, pairs, BLOCK_P):
        ids = tl.load(ids_ptr + start + offs_p, start + offs_p < pairs, -1)
        counts += tl.sum((ids[None, :] == offs_e[:, None]).to(tl.int32), 1)
    chosen = (counts > 0).to(tl.int32)
    begin = tl.sum(tl.where(offs_e < expert, counts, 0), 0)
    before = tl.sum(tl.where(offs_e < expert, chosen, 0), 0)
    count = tl.sum(tl.where(offs_e == expert, counts, 0), 0)
    slot = tl.where(count > 0, before, tl.sum(chosen, 0) + expert - before)
    if slot < slots:
        tl.store(groups_ptr + slot * 3, expert)
        tl.store(groups_ptr + slot * 3 + 1, begin)
        tl.store(groups_ptr + slot * 3 + 2, count)
    at = begin
    for start in range(0, pairs, BLOCK_P):
        mine = tl.load(ids_ptr + start + offs_p, start + offs_p < pairs, -1) == expert
        tl.store(order_ptr + at + tl.cumsum(mine.to(tl.int32), 0) - 1, start + offs_p, mine)
        at += tl.sum(mine.to(tl.int32), 0)


def group(ids: Tensor, experts: int) -> tuple[Tensor, Tensor]:
    """Put the pairs of ids [N, k] int32 in order of their experts: order [N k], and groups [min(E,
    N k), 3].

    A group is (expert, its first place in the order, its pairs). Groups of no pairs come last.
    """
    slots = min(experts, ids.numel())
    order = torch.empty(ids.numel(), dtype=torch.int32, device=ids.device)
    groups = torch.empty(slots, 3, dtype=torch.int32, device=ids.device)
    if slots:
        _group_kernel[(experts,)](
            ids,
            groups,
            order,
            ids.numel(),
            slots,
            experts,
            BLOCK_E=triton.next_power_of_2(experts),
            BLOCK_P=GROUPED_PAIRS,
            num_warps=4,
            **PDL_LAUNCH,
        )
    return order, groups


@triton.jit
def _weights(
    weight_ptr,
    scale_ptr,
    offs_n,
    offs_k,
    first,
    N,
    K,
    groups,
    mask,
    dtype: tl.constexpr,
    SCALE: tl.constexpr,
):
    """Weights [BLOCK_K, BLOCK_N] of outputs first + offs_n, as they are multiplied."""
    rows = first + tl.minimum(offs_n, N - 1).to(tl.int64)
    w = tl.load(weight_ptr + rows[None, :] * K + offs_k[:, None], mask, 0.0)
    if SCALE > 0:
        w = widen(w)
        if SCALE == GROUPED:
            w *= read_scale(scale_ptr, rows[None, :], offs_k[:, None], first + N, K, groups)
        w = w.to(dtype)
    return w


@triton.jit
def _experts_kernel(
    x_ptr,
    weight_ptr,
    scale_ptr,
    pair_weights_ptr,
    groups_ptr,
    order_ptr,
    out_ptr,
    N,
    K,
    experts,
    scale_groups,
    GATE: tl.constexpr,
    CHOSEN: tl.constexpr,
    SCALE: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    USE_PDL: tl.constexpr,
):
    """With GATE tokens x [tokens, K] become silu(gate) * up in the order of the pairs. Without,
    what is in that order becomes weighted products [pairs, N], each where its pair is."""
    pdl_wait(USE_PDL)
    dtype: tl.constexpr = out_ptr.dtype.element_ty
    slot = groups_ptr + tl.program_id(1) * 3
    expert = tl.load(slot).to(tl.int64)
    begin = tl.load(slot + 1)
    count = tl.load(slot + 2)
    offs_n = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    mask_n = offs_n < N
    first = expert * N
    first_up = first + tl.cast(experts, tl.int64) * N
    for first_pair in range(0, count, BLOCK_M):
        offs_m = first_pair + tl.arange(0, BLOCK_M)
        mask_m = offs_m < count
        place = (begin + offs_m).to(tl.int64)
        pair = tl.load(order_ptr + place, mask_m, 0).to(tl.int64)
        x_rows = place
        out_rows = pair
        if GATE:
            x_rows = pair // CHOSEN
            out_rows = place
        acc = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
        acc_up = acc
        for start in range(0, K, BLOCK_K):
            offs_k = start + tl.arange(0, BLOCK_K)
            mask_k = offs_k < K
            mask_w = mask_k[:, None] & mask_n[None, :]
            x = tl.load(
                x_ptr + x_rows[:, None] * K + offs_k[None, :],
                mask_m[:, None] & mask_k[None, :],
                0.0,
            )
            w = _weights(
                weight_ptr,
                scale_ptr,
                offs_n,
                offs_k,
                first,
                N,
                K,
                scale_groups,
                mask_w,
                dtype,
                SCALE,
            )
            acc = tl.dot(x, w, acc, input_precision="ieee")
            if GATE:
                up = _weights(
                    weight_ptr,
                    scale_ptr,
                    offs_n,
                    offs_k,
                    first_up,
                    N,
                    K,
                    scale_groups,
                    mask_w,
                    dtype,
                    SCALE,
                )
                acc_up = tl.dot(x, up, acc_up, input_precision="ieee")
        if SCALE == PER_OUTPUT:
            acc *= tl.load(scale_ptr + first + offs_n, mask_n, 0.0)[None, :]
            if GATE:
                acc_up *= tl.load(scale_ptr + first_up + offs_n, mask_n, 0.0)[None, :]
        y = acc.to(dtype).to(tl.float32)
        if GATE:
            y = (y / (1.0 + tl.exp(-y))).to(dtype).to(tl.float32) * acc_up.to(dtype).to(tl.float32)
        else:
            y *= tl.load(pair_weights_ptr + pair, mask_m, 0.0).to(tl.float32)[:, None]
        tl.store(
            out_ptr + out_rows[:, None] * N + offs_n[None, :],
            y.to(dtype),
            mask_m[:, None] & mask_n[None, :],
        )


def _experts(
    x: Tensor,
    w: ExpertWeight,
    weights: Tensor,
    groups: Tensor,
    order: Tensor,
    experts: int,
    gate: bool,
) -> Tensor:
    pairs = weights.numel()
    k = x.shape[1]
    n = len(w.weight) // (2 * experts if gate else experts)
    out = torch.empty(pairs, n, dtype=x.dtype, device=x.device)
    bits = weight_bits(w.weight)
    scales = 0 if w.scale is None else w.scale.shape[1]
    c = experts_config(pairs, experts, x.element_size(), scales > 1)
    if INTERPRETED:
        c = c.for_interpreter(n, k)
    _experts_kernel[(triton.cdiv(n, c.block_n), len(groups))](
        x,
        bits,
        bits if w.scale is None else w.scale,
        weights,
        groups,
        order,
        out,
        n,
        k,
        experts,
        scales,
        GATE=gate,
        CHOSEN=weights.shape[1],
        SCALE=min(scales, GROUPED.value),
        **c.launch,
        **PDL_LAUNCH,
    )
    return out


def grouped_swiglu(
    routing: Routing, gate_up: ExpertWeight, down: ExpertWeight, experts: int
) -> Tensor:
    """Weighted products [N k, H] of the tokens' experts. gate_up [2 E I, H]: gates of all experts,
    then the other half. down [E H, I]."""
    x, ids, weights, _ = routing
    if not len(x):
        return x.new_empty(0, x.shape[1])
    order, groups = group(ids, experts)
    inner = _experts(x, gate_up, weights, groups, order, experts, gate=True)
    return _experts(inner, down, weights, groups, order, experts, gate=False)


@triton.jit
def _combine_kernel(
    routed_ptr,
    shared_gate_ptr,
    shared_ptr,
    residual_ptr,
    out_ptr,
    hidden,
    CHOSEN: tl.constexpr,
    ADD: tl.constexpr,
    BLOCK: tl.constexpr,
    USE_PDL: tl.constexpr,
):
    pdl_wait(USE_PDL)
    dtype: tl.constexpr = out_ptr.dtype.element_ty
    row = tl.program_id(0).to(tl.int64)
    offs = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = offs < hidden
    total = tl.zeros([BLOCK], tl.float32)
    for i in tl.static_range(CHOSEN):
        product = tl.load(routed_ptr + (row * CHOSEN + i) * hidden + offs, mask, 0.0).to(tl.float32)
        total = (total + product).to(dtype).to(tl.float32)
    shared = tl.load(shared_gate_ptr + row).to(tl.float32) * tl.load(
        shared_ptr + row * hidden + offs, mask, 0.0
    )
    total = (total + shared.to(dtype).to(tl.float32)).to(dtype).to(tl.float32)
    if ADD:
        total += tl.load(residual_ptr + row * hidden + offs, mask, 0.0).to(tl.float32)
    tl.store(out_ptr + row * hidden + offs, total.to(dtype), mask)


def combine(routed: Tensor, routing: Routing, shared: Tensor, residual: Tensor | None) -> Tensor:
    """Add up the products routed [N k, H] of each token, the shared expert's [N, H] and residual
    [N, H]: [N, H].

    The sum is rounded after each.
    """
    rows, hidden = routing.x.shape
    out = torch.empty_like(routing.x)
    if rows:
        _combine_kernel[(rows, triton.cdiv(hidden, COMBINED))](
            routed,
            routing.shared,
            shared,
            shared if residual is None else residual,
            out,
            hidden,
            CHOSEN=routing.ids.shape[1],
            ADD=residual is not None,
            BLOCK=COMBINED,
            num_warps=2,
            **PDL_LAUNCH,
        )
    return out
