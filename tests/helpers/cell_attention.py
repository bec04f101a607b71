"""Calls of attention over cells, with what the module gives for them and NaN in all that must not be read."""

from __future__ import annotations

import torch
from torch import Tensor

from stentor.models.cosyvoice3.codec_flow import KeptKeys, Turns
from stentor.models.cosyvoice3.hopper_attention import HEAD_DIM, Pages

HEADS, FRAMES, PAGES, STEPS, BLOCKS = 2, 50, 8, 2, 3
STEP, BLOCK = 1, 2  # of the call
SCALE = 1.4426950408889634 * HEAD_DIM**-0.5
CASES = {  # cells of a row, pages before them, frames
    "one cell, no page": (1, [0], [50]),
    "one cell, ends early": (1, [3], [17]),
    "one cell, blocks that end in a page": (1, [5], [50]),
    "two cells, no page": (2, [0], [100]),
    "two cells, one page and six": (2, [1, 6], [100, 71]),
    "two cells, ends in the first": (2, [2], [8]),
}


class Call:
    """One of CASES. A kernel writes `out` and the pages."""

    def __init__(self, name: str, dtype: torch.dtype, device: str = "cpu") -> None:
        torch.manual_seed(0)
        self.cells, self.kept, frames = CASES[name]
        rows, tokens, dim = len(self.kept), self.cells * FRAMES, HEADS * HEAD_DIM
        pool = torch.randn(rows * PAGES + 1, STEPS, BLOCKS, 2, 2, HEADS, FRAMES, HEAD_DIM).to(dtype)
        table = torch.randperm(rows * PAGES).view(rows, PAGES)
        filled, count = torch.tensor(self.kept), torch.tensor(frames)
        qkv = torch.randn(rows, 2, tokens, 3 * dim).to(dtype)
        turns = Turns(*torch.randn(2, rows, tokens, HEAD_DIM // 2))
        self._stored = pool.clone()
        keys = KeptKeys(self._stored, table, filled, count, self.cells)
        self._want, self._table = keys.attend(STEP, BLOCK, qkv.clone(), turns), table
        self._exist = (torch.arange(tokens) < count[:, None])[:, None, :, None]
        for row, kept in enumerate(self.kept):
            pool[table[row, kept:]] = float("nan")
        pool[-1] = float("nan")
        self.qkv, self.count = qkv.to(device), count.to(device)
        self.turns = Turns(*(t.to(device) for t in turns))
        self.out = torch.full((rows, 2, tokens, dim), float("nan"), dtype=dtype, device=device)
        self.pages = Pages(pool.to(device), table.to(device), filled.to(device))
        self.first = (STEP * BLOCKS + BLOCK) * 4 * dim * FRAMES

    def check(self) -> None:
        """Check that the kernel has written the right values, and nothing else."""
        out, pool = self.out.cpu(), self.pages.pool.cpu()
        assert out.isfinite().all()
        _close(out * self._exist, self._want * self._exist)
        for row, kept in enumerate(self.kept):
            stored = self._table[row, kept : kept + self.cells]
            _close(pool[stored, STEP, BLOCK], self._stored[stored, STEP, BLOCK])
            assert pool[stored, STEP, BLOCK - 1].isnan().all(), "another layer's place was written"
            assert pool[self._table[row, kept + self.cells :]].isnan().all(), (
                "a page of nobody was written"
            )
        assert pool[-1].isnan().all()


def _close(found: Tensor, want: Tensor) -> None:
    torch.testing.assert_close(found.float(), want.float(), atol=2e-2, rtol=2e-2)
