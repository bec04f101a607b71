"""What a step does between its products, by kernels: its rows, its draws, its tokens.

Like kernels.py: imported without Triton, and the kernels serve where `kernels.on` or `kernels.moves` says so.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


def store_tokens(pool: Tensor, table: Tensor, slot: Tensor, pos: Tensor, k: Tensor, v: Tensor) -> None:
    """k and v [N, Hk, D] of tokens at pos [N] go into the pages of their slots [N]; see `paged_attention`."""
    from stentor.kernels import slot_table

    slot_table.store_tokens(pool, table, slot, pos, k, v)


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
    from stentor.kernels import sampling

    sampling.pick_into(logits, asked, into)


def pick_first(
    logits: Tensor, asked: Asked, into: Into, seen: Place, penalty: Tensor, ending: Ending, marks: int, end: int
) -> tuple[Tensor, Tensor]:
    """The same behind `sampling.penalize_seen` and without the last `marks` ids but for `end`, which waits for its
    time; returns ([B] bool, whether `end` was drawn, [B, V] bool, what has been seen now)."""
    from stentor.kernels import sampling

    return sampling.pick_first(logits, asked, into, seen, penalty, ending, marks, end)


def choose_into(logits: Tensor, asked: Asked, into: Into) -> None:
    """The ranked sampler on logits [B, V], and the token that follows from it."""
    from stentor.kernels import sampling

    sampling.choose_into(logits, asked, into)


def choose_first(
    logits: Tensor, asked: Asked, again: tuple[float, float], into: Into, past: Place, window: int, ending: Ending
) -> Tensor:
    """The same, where u is [B, 2]: a code among the last `window` first codes of past frames [slots, most, books] is
    drawn once more, with the second u and `again` = (temperature, top_p). The last id is the end, which waits for its
    time and is stored as code 0. Returns [B] bool, whether it was drawn."""
    from stentor.kernels import sampling

    return sampling.choose_first(logits, asked, again, into, past, window, ending)


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
    from stentor.kernels import slot_table

    return slot_table.uniform(seed, step, draws)


def normal(u: Tensor, outer: int, scale: Tensor, dtype: torch.dtype) -> Tensor:
    """`noise.grid_normal` in one launch."""
    from stentor.kernels import slot_table

    return slot_table.normal(u, outer, scale, dtype)


def gather_rows(idx: Tensor, ints: Tensor, floats: Tensor, frames: Tensor) -> Gathered:
    """Columns `idx` [B] of ints and floats [numbers, slots], rows `idx` of frames [slots, *frame]."""
    from stentor.kernels import slot_table

    return slot_table.gather(idx, ints, floats, frames)


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
    from stentor.kernels import slot_table

    return slot_table.commit(rows, length, ended, frame, table, states, stop_keeps)


def keep_rows(idx: Tensor, kept: Tensor, new: Tensor, column: Tensor) -> None:
    """column[idx] = new where kept [B] uint8."""
    from stentor.kernels import slot_table

    slot_table.keep(idx, kept, new, column)


def embed_told(
    codes: Tensor, offset: Tensor, table: Tensor, step: Tensor, told: Place, texts: Tensor, pad: int
) -> Tensor:
    """The sum of rows offset + codes of table [V, H], codes [B, books], and then the row of texts [T, H] that is told
    [slots, most] with frame step - 1, or `pad` after all of them: [B, H]."""
    from stentor.kernels import embed

    return embed.embed_told(codes, offset, table, step, told, texts, pad)


def embed_scaled(codes: Tensor, offset: Tensor, table: Tensor, tokens: Tensor, first: int, scale: float) -> Tensor:
    """(row `first` + codes[:, 0] of tokens [T, H], plus the sum of rows offset + codes of table [V, H]) / scale, codes
    [B, books]: [B, H]."""
    from stentor.kernels import embed

    return embed.embed_scaled(codes, offset, table, tokens, first, scale)


def embed_prompt(
    first: tuple[Tensor, Tensor],
    second: tuple[Tensor, Tensor],
    vectors: Tensor | None,
    frames: tuple[Tensor, Tensor, Tensor, Tensor],
) -> Tensor:
    """Prompt tokens [N, H]: rows index [N] of two tables, given as (index, table), none where an index is negative;
    vectors [N, H]; and frames, given as (codes [M, books], offset [books], table, places [M]), of which those at place
    N are left out. Every sum is rounded."""
    from stentor.kernels import embed

    return embed.embed_prompt(first, second, vectors, frames)


class FlowRows(NamedTuple):
    """Step sizes dt and rows `at` of `times` [K, H], both [rows, most]: of every number of steps, or of every row."""

    dt: Tensor
    at: Tensor
    times: Tensor


def patch_tokens(patches: Tensor, weight: Tensor, bias: Tensor, first: Tensor) -> Tensor:
    """`first` [..., H] and the projections of patches [N, P, D], rounded to its dtype, by weight [H, D] and bias:
    [N, 1 + P, H]."""
    from stentor.kernels import tokens

    return tokens.patch_tokens(patches, weight, bias, first)


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
    from stentor.kernels import tokens

    return tokens.flow_tokens(mu, last, z, projections, steps, tables, work)


def levels(x: Tensor, scale: float) -> Tensor:
    """round(tanh(x) * scale) / scale."""
    from stentor.kernels import tokens

    return tokens.levels(x, scale)


def join_halves(h: Tensor, rounded: Tensor, feat: Tensor, audio: Tensor) -> Tensor:
    """[N, 2H]: `rounded` where audio [N] bool, else h, and beside it feat; [N, H] each."""
    from stentor.kernels import tokens

    return tokens.join_halves(h, rounded, feat, audio)


def ends(x: Tensor, weight: Tensor) -> Tensor:
    """Whether the second of silu(x [N, H]) @ weight.T [2, H] is the larger: [N] bool."""
    from stentor.kernels import tokens

    return tokens.ends(x, weight)
