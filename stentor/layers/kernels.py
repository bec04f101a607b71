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

from stentor.layers.tiles import NARROW_ROWS

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
    from stentor.layers import kernels_narrow

    return kernels_narrow.narrow(x, weight, norm, residual, gate, bias)


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
    from stentor.layers import kernels_norm

    return kernels_norm.add_rms_norm(x, None, weight, eps, late_weight)[1]


def add_rms_norm(x: Tensor, delta: Tensor, weight: Tensor, eps: float, late_weight: bool) -> tuple[Tensor, Tensor]:
    """(x + delta, its RMSNorm), x and delta [..., H]."""
    from stentor.layers import kernels_norm

    return kernels_norm.add_rms_norm(x, delta, weight, eps, late_weight)


def silu_mul(gate_up: Tensor) -> Tensor:
    """silu(gate) * up of gate_up [..., 2 F] -> [..., F]."""
    from stentor.layers import kernels_norm

    return kernels_norm.silu_mul(gate_up)


def norm_rotate(
    q: Tensor, k: Tensor, q_weight: Tensor | None, k_weight: Tensor | None, eps: float, late: bool, rope: Rotation
) -> tuple[Tensor, Tensor]:
    """Norms of q [..., Hq, D] and k [..., Hk, D] per head (if there are weights), then RoPE. Contiguous results."""
    from stentor.layers import kernels_norm

    return kernels_norm.norm_rotate(q, k, q_weight, k_weight, eps, late, rope)


def rotate(x: Tensor, rope: Rotation) -> Tensor:
    """RoPE of x [..., H, D]."""
    from stentor.layers import kernels_norm

    return kernels_norm.rotate(x, rope)


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
    from stentor.layers import kernels_attention

    return kernels_attention.paged(pool, table, slot, pos, *qkv, write=True, turn=turn)


def store_tokens(pool: Tensor, table: Tensor, slot: Tensor, pos: Tensor, k: Tensor, v: Tensor) -> None:
    """k and v [N, Hk, D] of tokens at pos [N] go into the pages of their slots [N]; see `paged_attention`."""
    from stentor.layers import kernels_rows

    kernels_rows.store_tokens(pool, table, slot, pos, k, v)


def paged_history(pool: Tensor, table: Tensor, slot: Tensor, pos: Tensor, q: Tensor) -> Tensor:
    """Attention of q [N, Hq, D] over what is in the pages, each token up to its own position."""
    from stentor.layers import kernels_attention

    return kernels_attention.paged(pool, table, slot, pos, q, q, q, write=False)


def depth_attention(cache: Tensor, length: int, q: Tensor, k: Tensor, v: Tensor, turn: Turn | None = None) -> Tensor:
    """Attention of n new tokens q [B, n, Hq, D] over `length` earlier ones in cache [2, B, S, Hk, D] and, causally,
    each other; k, v [B, n, Hk, D] are stored behind the earlier ones."""
    from stentor.layers import kernels_attention

    return kernels_attention.depth(cache, length, q, k, v, turn)


def local_attention(q: Tensor, k: Tensor, v: Tensor, turn: Turn | None = None, first: int = 0) -> Tensor:
    """Every one of few tokens sees every other: q [B, T, Hq, D], k and v [B, S, Hk, D], T and S at most LOCAL; for a
    turn, the queries' positions begin at `first`."""
    from stentor.layers import kernels_attention

    return kernels_attention.local(q, k, v, turn, first)


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
    from stentor.layers import kernels_flow

    return kernels_flow.advance(both, x, guidance, dt, eps, tokens, feed, time_at)


def pick(logits: Tensor, u: Tensor, temperature: Tensor, top_k: Tensor, top_p: Tensor) -> Tensor:
    """`sampling.pick` in one launch."""
    from stentor.layers import kernels_sampling

    return kernels_sampling.pick(logits, u, temperature, top_k, top_p)


def choose(logits: Tensor, u: Tensor, temperature: Tensor, top_k: Tensor, top_p: Tensor) -> Tensor:
    """The ranked sampler (nucleus before temperature) in one launch."""
    from stentor.layers import kernels_sampling

    return kernels_sampling.choose(logits, u, temperature, top_k, top_p)


class Asked(NamedTuple):
    """A draw: uniforms u, temperature, top_k (int64) and top_p, [B] each."""

    u: Tensor
    temperature: Tensor
    top_k: Tensor
    top_p: Tensor


class Into(NamedTuple):
    """Where what is drawn goes: codes [B] of any integer dtype, and rows of table [V, H] as the last of the tokens
    x [B, T, H]; `front` [B, H] becomes the token before it."""

    code: Tensor
    table: Tensor | None = None
    x: Tensor | None = None
    front: Tensor | None = None


class Place(NamedTuple):
    """Rows `idx` [B] of a table [slots, ...], where they lie."""

    table: Tensor
    idx: Tensor


class Ending(NamedTuple):
    """Rows of `step` frames that may end only after `least`, [B] int64 each."""

    step: Tensor
    least: Tensor


def depth_codes(batch: int, books: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Room for the codes of a frame as they are drawn, [books, batch]; each book's starts at a multiple of 16 bytes."""
    return torch.empty(books, -(-batch // 4) * 4, dtype=dtype, device=device)[:, :batch]


def pick_into(logits: Tensor, asked: Asked, into: Into) -> None:
    """`sampling.pick` of logits [B, V], and the token that follows from it."""
    from stentor.layers import kernels_draw

    kernels_draw.pick_into(logits, asked, into)


def pick_first(
    logits: Tensor, asked: Asked, into: Into, seen: Place, penalty: Tensor, ending: Ending, marks: int, end: int
) -> tuple[Tensor, Tensor]:
    """The same behind `sampling.penalize_seen` and without the last `marks` ids but for `end`, which waits for its
    time; returns ([B] bool, whether `end` was drawn, [B, V] bool, what has been seen now)."""
    from stentor.layers import kernels_draw

    return kernels_draw.pick_first(logits, asked, into, seen, penalty, ending, marks, end)


def choose_into(logits: Tensor, asked: Asked, into: Into) -> None:
    """The ranked sampler on logits [B, V], and the token that follows from it."""
    from stentor.layers import kernels_draw

    kernels_draw.choose_into(logits, asked, into)


def choose_first(
    logits: Tensor, asked: Asked, again: tuple[float, float], into: Into, past: Place, window: int, ending: Ending
) -> Tensor:
    """The same, where u is [B, 2]: a code among the last `window` first codes of past frames [slots, most, books] is
    drawn once more, with the second u and `again` = (temperature, top_p). The last id is the end, which waits for its
    time and is stored as code 0. Returns [B] bool, whether it was drawn."""
    from stentor.layers import kernels_draw

    return kernels_draw.choose_first(logits, asked, again, into, past, window, ending)


class Gathered(NamedTuple):
    """Rows of the engine's table: ints and floats [numbers, B], frames [B, *frame]."""

    ints: Tensor
    floats: Tensor
    frames: Tensor


class States(NamedTuple):
    """What a row's `stop` says (engine.sequence)."""

    RUNNING: int
    STOPPED: int
    LENGTH: int
    BROKEN: int


def uniform(seed: Tensor, step: Tensor, draws: int) -> Tensor:
    """`noise.uniform` in one launch."""
    from stentor.layers import kernels_rows

    return kernels_rows.uniform(seed, step, draws)


def normal(u: Tensor, outer: int, scale: Tensor, dtype: torch.dtype) -> Tensor:
    """`noise.grid_normal` in one launch."""
    from stentor.layers import kernels_rows

    return kernels_rows.normal(u, outer, scale, dtype)


def gather_rows(idx: Tensor, ints: Tensor, floats: Tensor, frames: Tensor) -> Gathered:
    """Columns `idx` [B] of ints and floats [numbers, slots], rows `idx` of frames [slots, *frame]."""
    from stentor.layers import kernels_rows

    return kernels_rows.gather(idx, ints, floats, frames)


def commit_rows(
    rows: tuple[Tensor, ...],
    length: Tensor | None,
    ended: Tensor,
    frame: Tensor,
    table: tuple[Tensor, Tensor, Tensor],
    states: States,
    stop_keeps: bool,
) -> Tensor:
    """`SlotTable.commit` in one launch; see `kernels_rows.commit`."""
    from stentor.layers import kernels_rows

    return kernels_rows.commit(rows, length, ended, frame, table, states, stop_keeps)


def keep_rows(idx: Tensor, kept: Tensor, new: Tensor, column: Tensor) -> None:
    """column[idx] = new where kept [B] uint8."""
    from stentor.layers import kernels_rows

    kernels_rows.keep(idx, kept, new, column)


def embed_told(
    codes: Tensor, offset: Tensor, table: Tensor, step: Tensor, told: Place, texts: Tensor, pad: int
) -> Tensor:
    """The sum of rows offset + codes of table [V, H], codes [B, books], and then the row of texts [T, H] that is told
    [slots, most] with frame step - 1, or `pad` after all of them: [B, H]."""
    from stentor.layers import kernels_embed

    return kernels_embed.embed_told(codes, offset, table, step, told, texts, pad)


def embed_scaled(codes: Tensor, offset: Tensor, table: Tensor, tokens: Tensor, first: int, scale: float) -> Tensor:
    """(row `first` + codes[:, 0] of tokens [T, H], plus the sum of rows offset + codes of table [V, H]) / scale, codes
    [B, books]: [B, H]."""
    from stentor.layers import kernels_embed

    return kernels_embed.embed_scaled(codes, offset, table, tokens, first, scale)


def embed_prompt(
    first: tuple[Tensor, Tensor],
    second: tuple[Tensor, Tensor],
    vectors: Tensor | None,
    frames: tuple[Tensor, Tensor, Tensor, Tensor],
) -> Tensor:
    """Prompt tokens [N, H]: rows index [N] of two tables, given as (index, table), none where an index is negative;
    vectors [N, H]; and frames, given as (codes [M, books], offset [books], table, places [M]), of which those at place
    N are left out. Every sum is rounded."""
    from stentor.layers import kernels_embed

    return kernels_embed.embed_prompt(first, second, vectors, frames)


class FlowRows(NamedTuple):
    """Step sizes dt and rows `at` of `times` [K, H], both [rows, most]: of every number of steps, or of every row."""

    dt: Tensor
    at: Tensor
    times: Tensor


def patch_tokens(patches: Tensor, weight: Tensor, bias: Tensor, first: Tensor) -> Tensor:
    """`first` [..., H] and the projections of patches [N, P, D], rounded to its dtype, by weight [H, D] and bias:
    [N, 1 + P, H]."""
    from stentor.layers import kernels_tokens

    return kernels_tokens.patch_tokens(patches, weight, bias, first)


def flow_tokens(
    mu: tuple[Tensor, Tensor],
    last: Tensor,
    z: Tensor,
    projections: tuple[Tensor, Tensor, Tensor, Tensor],
    steps: Tensor,
    tables: FlowRows,
    work: int,
) -> tuple[Tensor, FlowRows]:
    """Tokens [2B, 3 + 2P, H] of a flow's first evaluation, and what `tables` say of its `work` evaluations.

    mu: two tokens [B, H], zeros in the second half; then the time, the projected patches `last` and z [B, P, D];
    projections: weight [H, D] and bias [H] of either; steps [B] int64.
    """
    from stentor.layers import kernels_tokens

    return kernels_tokens.flow_tokens(mu, last, z, projections, steps, tables, work)


def levels(x: Tensor, scale: float) -> Tensor:
    """round(tanh(x) * scale) / scale."""
    from stentor.layers import kernels_tokens

    return kernels_tokens.levels(x, scale)


def join_halves(h: Tensor, rounded: Tensor, feat: Tensor, audio: Tensor) -> Tensor:
    """[N, 2H]: `rounded` where audio [N] bool, else h, and beside it feat; [N, H] each."""
    from stentor.layers import kernels_tokens

    return kernels_tokens.join_halves(h, rounded, feat, audio)


def ends(x: Tensor, weight: Tensor) -> Tensor:
    """Whether the second of silu(x [N, H]) @ weight.T [2, H] is the larger: [N] bool."""
    from stentor.layers import kernels_tokens

    return kernels_tokens.ends(x, weight)


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
    from stentor.layers import kernels_codec

    return kernels_codec.extend(x, past, tail, waves, affine, keep)


def convolve(
    x: Tensor, weight: Tensor, bias: Tensor | None, dilation: int, waves: Waves | None, residual: Tensor | None
) -> Tensor:
    """residual + activation(convolution + bias), x [B, T + history, C] -> [B, T, O]; weight laid out by `conv.cast`."""
    from stentor.layers import kernels_codec

    return kernels_codec.convolve(x, weight, bias, dilation, waves, residual)


def upsample(
    x: Tensor, weight: Tensor, bias: Tensor | None, stride: int, waves: Waves | None, residual: Tensor | None
) -> Tensor:
    """The same for a transposed convolution: x [B, T + k / stride - 1, C] -> [B, T * stride, O]."""
    from stentor.layers import kernels_codec

    return kernels_codec.upsample(x, weight, bias, stride, waves, residual)
