"""Arguments and results of kernels that belong together. This module does not import Triton."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor


class RopeArgs(NamedTuple):
    """RoPE by tables of the tokens' own positions: cos and sin [..., 1, dim / 2], and the rounding
    of `layers.rope`."""

    cos: Tensor
    sin: Tensor
    interleaved: bool
    in_float32: bool


class QKNormRope(NamedTuple):
    """Steps between projected queries and keys and their product: norms of the heads, if any, then
    RoPE by whole tables cos and sin [positions, dim / 2]."""

    cos: Tensor
    sin: Tensor
    interleaved: bool
    in_float32: bool
    norms: tuple[Tensor, Tensor, float, bool] | None
    """(weight of q, weight of k, eps, weight_after_cast)"""


class SnakeParams(NamedTuple):
    """The activation x + gain sin(alpha x)^2: float32, one value per channel."""

    alpha: Tensor
    gain: Tensor


class Affine(NamedTuple):
    """x * scale + shift, one value per channel."""

    scale: Tensor
    shift: Tensor


class SamplingParams(NamedTuple):
    """Parameters of one draw per row: uniforms u, temperature, top_k (int64) and top_p, [B]
    each."""

    u: Tensor
    temperature: Tensor
    top_k: Tensor
    top_p: Tensor


class SampleOut(NamedTuple):
    """Where a sampler writes.

    `code` [B], of any integer dtype, takes the ids. With `table` [V, H] and `x` [B, T, H], the
    embedding of the id becomes the last token of x, and `prefix` [B, H] the token before it.
    """

    code: Tensor
    table: Tensor | None = None
    x: Tensor | None = None
    prefix: Tensor | None = None


class MinFrames(NamedTuple):
    """Rows that have made `step` frames and may end only after `least`, [B] int64 each."""

    step: Tensor
    least: Tensor


class TextWindow(NamedTuple):
    """The part of a text that tokens see in some layers: positions place - behind to place + ahead,
    of start to end.

    Bounds of the text in the sequence start and end [N] int64, and place [N] float32, whole and
    counted from start. Keys outside the text are seen as ever.
    """

    layers: tuple[int, ...]
    start: Tensor
    end: Tensor
    place: Tensor
    behind: int
    ahead: int


class RowRef(NamedTuple):
    """Rows `idx` [B] of a table [slots, ...], without copying them."""

    table: Tensor
    idx: Tensor


class GatheredRows(NamedTuple):
    """Rows of the slot table: ints and floats [numbers, B], frames [B, *frame]."""

    ints: Tensor
    floats: Tensor
    frames: Tensor


class RowStatus(NamedTuple):
    """The values of a row's `stop` (engine.scheduling.sequence)."""

    RUNNING: int
    STOPPED: int
    LENGTH: int
    BROKEN: int
