"""One token through a whole transformer stack in one launch (`kernels_stack`): what a stack keeps for it."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch
import triton
from torch import Tensor

from stentor.layers.kernels import Pages, Turn
from stentor.layers.kernels_stack import COMPILED, PHASES, _stack

if TYPE_CHECKING:
    from stentor.layers.transformer import StackConfig

KEYS = 64
"""Keys per pass over the history, and the least that a program of its own attends to."""

LONGEST = 4096
"""Values of a vector that a program holds as a whole."""


class Shape(NamedTuple):
    """A stack's sizes. `heads` counts keys and values, each of `group` queries."""

    layers: int
    hidden: int
    heads: int
    group: int
    dim: int
    ffn: int

    @property
    def queries(self) -> int:
        return self.heads * self.group * self.dim

    @property
    def projected(self) -> int:
        return self.queries + 2 * self.heads * self.dim

    def suits(self, programs: int) -> bool:
        """Whether work divides evenly: every program has its pair of outputs of every product, or several."""
        even = all(n % (2 * programs) == 0 for n in (self.projected, self.hidden, self.ffn))
        held = max(self.hidden, self.queries) <= LONGEST and self.group <= 16
        return even and held and programs % self.heads == 0 and self.dim & (self.dim - 1) == 0 and self.dim >= 16


class Tiles(NamedTuple):
    """`elements`: weights of a tile; `ahead`: bytes of each product that a program asks for a phase early."""

    elements: int = 1 << 15
    ahead: int = 96 << 10
    warps: int = 16


class Cut(NamedTuple):
    """A program's share of a product: `tiles` of `rows` outputs or, with a long vector, of `depth` values of all of
    them; the first `ahead` are asked for early."""

    rows: int
    depth: int
    tiles: int
    ahead: int


def cut(width: int, size: int, programs: int, t: Tiles, gate: bool = False, deep: bool = False) -> Cut:
    """For `width` outputs (pairs of them with `gate`) of `size` weights each."""
    share, halves = -(-width // (2 * programs)) * 2, 1 + gate
    if deep:
        rows = triton.next_power_of_2(share)
        depth = max(64, min(triton.next_power_of_2(size), t.elements // rows))
        tiles = -(-size // depth)
    else:
        depth = triton.next_power_of_2(size)
        rows = max(2, min(triton.next_power_of_2(share), t.elements // (halves * depth)))
        tiles = -(-share // rows)
    return Cut(rows, depth, tiles, min(tiles, max(1, t.ahead // (2 * halves * rows * depth))))


class Resident:
    """Addresses of a stack's weights, and the places of packets.

    Two launches of one stack must not run at once, nor launches of two stacks: each takes the whole chip. They belong
    to one stream.
    """

    def __init__(self, shape: Shape, weights: list[list[Tensor]], programs: int) -> None:
        """weights: of each layer, input norm, QKV, norms of queries and keys (or anything), output projection, the
        norm after it, gate-up, down; bfloat16 and contiguous, never moved."""
        self.shape, self.programs = shape, programs
        device = weights[0][0].device
        self._weights = weights
        self._table = torch.tensor([[w.data_ptr() for w in layer] for layer in weights], device=device)
        parts = (programs // shape.heads) * shape.heads * shape.group
        sizes = (shape.projected // 2, parts * shape.dim, parts, shape.hidden // 2, shape.ffn // 2, shape.hidden // 2)
        self._packets = [torch.zeros(n, dtype=torch.int64, device=device) for n in (1, *sizes)]
        self._zero = torch.zeros(1, dtype=torch.int64, device=device)
        self.retile(Tiles())

    def retile(self, t: Tiles) -> None:
        """How each product is cut."""
        s, p = self.shape, self.programs
        self.tiles = t
        self._cuts = {
            "QKV": cut(s.projected, s.hidden, p, t),
            "O": cut(s.hidden, s.queries, p, t),
            "UP": cut(s.ffn, s.hidden, p, t, gate=True),
            "DOWN": cut(s.hidden, s.ffn, p, t, deep=True),
        }

    def __call__(
        self,
        x: Tensor,
        pages: Pages,
        pos: Tensor,
        eps: float,
        turn: Turn | None,
        head: tuple[Tensor, Tensor] | None = None,
    ) -> Tensor:
        """x [1, ..., hidden] of one token at `pos` [1] -> the stack's output before its final norm, or logits [1, V]
        with `head`: (final norm's weight, weight [V, hidden])."""
        s, p = self.shape, self.programs
        out = torch.empty_like(x)
        vocab = 0 if head is None else len(head[1])
        logits = torch.empty(1, vocab, dtype=x.dtype, device=x.device) if vocab else out
        norm, matrix = (x, x) if head is None else head
        table, slot = (self._zero, self._zero) if pages.table is None else (pages.table, pages.slot)
        cos, sin, switches, qk_eps = x, x, (False,) * 5, 0.0
        if turn is not None:
            cos, sin, norms = turn.cos, turn.sin, turn.norms
            switches = (True, norms is not None, norms is not None and norms[3], turn.interleaved, turn.in_float32)
            qk_eps = 0.0 if norms is None else norms[2]
        cuts = {**self._cuts, "HEAD": cut(vocab, s.hidden, p, self.tiles)}
        constants = {f"{n}_{k}": getattr(c, k.lower()) for n, c in cuts.items() for k in ("ROWS", "TILES", "AHEAD")}
        names = ("TURN", "NORM", "LATE", "INTERLEAVED", "IN_FLOAT32")
        last = s.layers * PHASES.value + 1
        for begin, end in [(0, last)] if COMPILED.value else [(i, i + 1) for i in range(last)]:
            _stack[(p,)](
                x, out, logits, self._table, norm, matrix, cos, sin, pages.pool, table, slot, pos, *self._packets,
                table.stride(0), pages.pool.stride(0), pages.pool.stride(1), pages.pool.stride(3), s.dim**-0.5, eps,
                qk_eps, begin, end,
                LAYERS=s.layers, HIDDEN=s.hidden, HEADS=s.heads, GROUP=s.group, DIM=s.dim, FFN=s.ffn, VOCAB=vocab,
                PAGE=pages.pool.shape[3], KEYS=KEYS, PROGRAMS=p, THREADS=32 * self.tiles.warps, WIDE=cuts["QKV"].depth, MIXED=cuts["O"].depth,
                DEPTH=cuts["DOWN"].depth, num_warps=self.tiles.warps, num_stages=1,
                launch_cooperative_grid=True, **constants, **dict(zip(names, switches, strict=True)),
            )  # fmt: skip
        if not COMPILED.value:
            self._packets[0].add_(s.layers + 1)
        return logits if vocab else out


def make(c: StackConfig, weights: list[list[Tensor]]) -> Resident | None:
    """For a stack of this configuration; None where work does not divide evenly over the chip's multiprocessors."""
    shape = Shape(c.layers, c.hidden, c.kv_heads, c.heads // c.kv_heads, c.head_dim, c.ffn)
    programs = next((p for p in _programs(weights[0][0].device) if shape.suits(p)), None)
    return None if programs is None else Resident(shape, weights, programs)


def _programs(device: torch.device) -> tuple[int, ...]:
    """How many may be on the chip at once: as many as a power of two allows; with the interpreter, what is quick."""
    if device.type != "cuda":
        return (4, 2)
    return (1 << (torch.cuda.get_device_properties(device).multi_processor_count.bit_length() - 1),)
