"""Fused CUDA kernels (Triton) behind the layers' own formulas; the formulas are the twins the kernels are tested by.

A layer asks `on(x)` and calls a function of this file, which is imported without Triton. Kernels serve inference mode
only: they have no gradients. STENTOR_KERNELS_OFF in the environment names those to leave out, for comparisons: any of
norm, silu, rotate, paged, depth, local, flow, turn, pick, choose, narrow, codec, rows, embed, draw, tokens, early, or
all.
"""

from __future__ import annotations

import os
from importlib.util import find_spec
from typing import NamedTuple

import torch
from torch import Tensor

from stentor.kernels.configs_gemv import NARROW_ROWS

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
"""Kernels run on CPU tensors, slowly: for tests."""

LOCAL = 16
"""Tokens of a sequence that is one tile of `local_attention`."""

_OFF = frozenset(os.environ.get("STENTOR_KERNELS_OFF", "").split(","))
_WANTED = "all" not in _OFF and find_spec("triton") is not None
_DTYPES = (torch.float32, torch.bfloat16, torch.float16)


def on(x: Tensor, name: str) -> bool:
    """Whether the kernel `name` serves x."""
    return (
        _WANTED
        and name not in _OFF
        and (x.is_cuda or INTERPRETED)
        and x.dtype in _DTYPES
        and torch.is_inference_mode_enabled()
    )


def moves(device: torch.device) -> bool:
    """Whether kernels gather, draw for, and write the engine's rows."""
    there = device.type == "cuda" or INTERPRETED
    return _WANTED and "rows" not in _OFF and there and torch.is_inference_mode_enabled()


def early_wanted() -> bool:
    """Whether a kernel may start before the one in front of it has ended."""
    return "early" not in _OFF


def narrow(x: Tensor) -> bool:
    """Whether x [..., H] is one row or two, whose products by our kernel read the weights faster than the library's."""
    return x.numel() <= NARROW_ROWS * x.shape[-1] and on(x, "narrow")


def product(
    x: Tensor,
    weight: Tensor,
    norm: tuple[Tensor, float, bool] | None = None,
    residual: Tensor | None = None,
    gate: bool = False,
    bias: Tensor | None = None,
) -> Tensor:
    """norm(x) @ weight.T (+ bias) (+ residual) for rows that are `narrow`; `gate`: SwiGLU's silu(first half) * second
    half of it, without bias."""
    from stentor.kernels import gemv

    return gemv.narrow(x, weight, norm, residual, gate, bias)


def serve(device: torch.device, dtype: torch.dtype) -> bool:
    """Whether attention over pages will be a kernel in an engine of this device and dtype."""
    return _WANTED and "paged" not in _OFF and (device.type == "cuda" or INTERPRETED) and dtype in _DTYPES


class Rotation(NamedTuple):
    """RoPE as the kernels take it: tables [..., 1, dim / 2] per token and the two rounding switches of `Rope`."""

    cos: Tensor
    sin: Tensor
    interleaved: bool
    in_float32: bool


class Turn(NamedTuple):
    """What attention kernels do to queries and keys before they meet: norms of the heads, if there are any, and RoPE
    by whole tables [positions, dim / 2]."""

    cos: Tensor
    sin: Tensor
    interleaved: bool
    in_float32: bool
    norms: tuple[Tensor, Tensor, float, bool] | None
    """(weight of q, weight of k, eps, late_weight)"""


def rms_norm(x: Tensor, weight: Tensor, eps: float, late_weight: bool) -> Tensor:
    """RMSNorm over the last dimension of x [..., H]."""
    from stentor.kernels import norm_rope

    return norm_rope.add_rms_norm(x, None, weight, eps, late_weight)[1]


def add_rms_norm(x: Tensor, delta: Tensor, weight: Tensor, eps: float, late_weight: bool) -> tuple[Tensor, Tensor]:
    """(x + delta, its RMSNorm), x and delta [..., H]."""
    from stentor.kernels import norm_rope

    return norm_rope.add_rms_norm(x, delta, weight, eps, late_weight)


def silu_mul(gate_up: Tensor) -> Tensor:
    """silu(gate) * up of gate_up [..., 2 F] -> [..., F]."""
    from stentor.kernels import norm_rope

    return norm_rope.silu_mul(gate_up)


def norm_rotate(
    q: Tensor, k: Tensor, q_weight: Tensor | None, k_weight: Tensor | None, eps: float, late: bool, rope: Rotation
) -> tuple[Tensor, Tensor]:
    """Norms of q [..., Hq, D] and k [..., Hk, D] per head (if there are weights), then RoPE. Contiguous results."""
    from stentor.kernels import norm_rope

    return norm_rope.norm_rotate(q, k, q_weight, k_weight, eps, late, rope)


def rotate(x: Tensor, rope: Rotation) -> Tensor:
    """RoPE of x [..., H, D]."""
    from stentor.kernels import norm_rope

    return norm_rope.rotate(x, rope)


def paged_attention(
    pool: Tensor,
    table: Tensor,
    slot: Tensor,
    pos: Tensor,
    qkv: tuple[Tensor, Tensor, Tensor],
    turn: Turn | None = None,
) -> Tensor:
    """One token per row: store its k, v [N, Hk, D] in the pages of its slot and attend with q [N, Hq, D].

    pool [2, pages, page, Hk, D] of one layer, table [slots, max_pages], slot [N], pos [N] positions of the tokens.
    """
    from stentor.kernels import attention

    return attention.paged(pool, table, slot, pos, *qkv, write=True, turn=turn)


def paged_history(pool: Tensor, table: Tensor, slot: Tensor, pos: Tensor, q: Tensor) -> Tensor:
    """Attention of q [N, Hq, D] over what is in the pages, each token up to its own position."""
    from stentor.kernels import attention

    return attention.paged(pool, table, slot, pos, q, q, q, write=False)


def depth_attention(cache: Tensor, length: int, q: Tensor, k: Tensor, v: Tensor, turn: Turn | None = None) -> Tensor:
    """Attention of n new tokens q [B, n, Hq, D] over `length` earlier ones in cache [2, B, S, Hk, D] and, causally,
    each other; k, v [B, n, Hk, D] are stored behind the earlier ones."""
    from stentor.kernels import attention

    return attention.depth(cache, length, q, k, v, turn)


def local_attention(q: Tensor, k: Tensor, v: Tensor, turn: Turn | None = None, first: int = 0) -> Tensor:
    """Every one of few tokens sees every other: q [B, T, Hq, D], k and v [B, S, Hk, D], T and S at most LOCAL; for a
    turn, the queries' positions begin at `first`."""
    from stentor.kernels import attention

    return attention.local(q, k, v, turn, first)


def advance(
    both: Tensor,
    x: Tensor,
    guidance: Tensor,
    dt: Tensor,
    eps: float,
    tokens: Tensor,
    feed: tuple[Tensor, Tensor, Tensor, Tensor] | None,
    time_at: int,
) -> Tensor:
    """A guided Euler step of x [B, P, D] and the tokens of the next evaluation; see `kernels_flow.advance`."""
    from stentor.kernels import flow

    return flow.advance(both, x, guidance, dt, eps, tokens, feed, time_at)


def pick(logits: Tensor, u: Tensor, temperature: Tensor, top_k: Tensor, top_p: Tensor) -> Tensor:
    """`sampling.pick` in one launch."""
    from stentor.kernels import sampling

    return sampling.pick(logits, u, temperature, top_k, top_p)


def choose(logits: Tensor, u: Tensor, temperature: Tensor, top_k: Tensor, top_p: Tensor) -> Tensor:
    """The ranked sampler (nucleus before temperature) in one launch."""
    from stentor.kernels import sampling

    return sampling.choose(logits, u, temperature, top_k, top_p)


class Waves(NamedTuple):
    """A periodic activation x + gain sin(alpha x)^2: float32, one value per channel."""

    alpha: Tensor
    gain: Tensor


class Affine(NamedTuple):
    """x * scale + shift, one value per channel."""

    scale: Tensor
    shift: Tensor


def convolves(x: Tensor) -> bool:
    """Whether a codec decoder's convolutions and activations of x are kernels: in 16 bits."""
    return tap_by_tap(x.dtype) and on(x, "codec")


def tap_by_tap(dtype: torch.dtype) -> bool:
    """Whether weights of convolutions in `dtype` should lie in memory as the kernels read them."""
    return dtype.itemsize == 2 and _WANTED and "codec" not in _OFF


def extend(
    x: Tensor, past: Tensor | None, tail: int, waves: Waves | None, affine: Affine | None, keep: bool
) -> tuple[Tensor, Tensor]:
    """The activation of x [B, T, C], first scaled and shifted, behind its history, past [B, tail, C] or zeros:
    [B, tail + T, C]; and, to keep, a copy of its last `tail` steps."""
    from stentor.kernels import conv1d

    return conv1d.extend(x, past, tail, waves, affine, keep)


def convolve(
    x: Tensor, weight: Tensor, bias: Tensor | None, dilation: int, waves: Waves | None, residual: Tensor | None
) -> Tensor:
    """residual + activation(convolution + bias), x [B, T + history, C] -> [B, T, O]; weight laid out by `conv.cast`."""
    from stentor.kernels import conv1d

    return conv1d.convolve(x, weight, bias, dilation, waves, residual)


def upsample(
    x: Tensor, weight: Tensor, bias: Tensor | None, stride: int, waves: Waves | None, residual: Tensor | None
) -> Tensor:
    """The same for a transposed convolution: x [B, T + k / stride - 1, C] -> [B, T * stride, O]."""
    from stentor.kernels import conv1d

    return conv1d.upsample(x, weight, bias, stride, waves, residual)
