"""Attention of cells in CUDA C++, run on a CPU: as the module that it replaces, with all that it stores."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch

from stentor.kernels.cuda_cpp import nvrtc
from stentor.kernels.cuda_cpp.cluster import RESERVED
from stentor.kernels.cuda_cpp.product import SHARED_BYTES
from stentor.models.cosyvoice3 import hopper_attention
from stentor.models.cosyvoice3.codec_keys import KeptKeys, Turns
from stentor.models.cosyvoice3.hopper_attention import HEAD_DIM, TILES, Pages, Tile
from tests.helpers.cuda_emulator import emulated

if shutil.which("g++") is None:
    pytest.skip("g++ is not installed", allow_module_level=True)

HEADS, FRAMES, PAGES = 2, 50, 8
LOG2_E = 1.4426950408889634
CASES = {
    "one cell, no page": (1, [0], [50]),
    "one cell, ends early": (1, [3], [17]),
    "one cell, blocks that end in a page": (1, [5], [50]),
    "two cells, no page": (2, [0], [100]),
    "two cells, one page and six": (2, [1, 6], [100, 71]),
    "two cells, ends in the first": (2, [2], [8]),
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_cells_attend_as_the_module_does(name: str, dtype: torch.dtype, tmp_path: Path) -> None:
    cells, kept, frames = CASES[name]
    rows, tokens, dim = len(kept), cells * FRAMES, HEADS * HEAD_DIM
    torch.manual_seed(0)
    pool = torch.randn(rows * PAGES + 1, 2, 3, 2, 2, HEADS, FRAMES, HEAD_DIM).to(dtype)
    table = torch.randperm(rows * PAGES).view(rows, PAGES)
    filled, count = torch.tensor(kept), torch.tensor(frames)
    qkv = torch.randn(rows, 2, tokens, 3 * dim).to(dtype)
    turns = Turns(*torch.randn(2, rows, tokens, HEAD_DIM // 2))
    own, out = pool.clone(), torch.full((rows, 2, tokens, dim), float("nan"), dtype=dtype)
    for row in range(rows):  # what must not be read
        pool[table[row, kept[row] :]] = float("nan")
    pool[-1] = float("nan")
    want = KeptKeys(own, table, filled, count, cells).attend(1, 2, qkv.clone(), turns)
    tile, first = TILES[cells], (1 * 3 + 2) * 4 * dim * FRAMES
    given = hopper_attention.macros(FRAMES, cells, HEADS, PAGES, "bf16" if dtype == torch.bfloat16 else "f16", tile)
    launch = emulated(hopper_attention.SOURCE, given, tmp_path)
    pages, scale = Pages(pool, table, filled), LOG2_E * HEAD_DIM**-0.5
    arguments = hopper_attention.arguments(qkv, turns, count, out, pages, first, scale)
    launch((2 * rows * HEADS, 1), tile.shared_bytes(cells, PAGES), arguments)
    assert out.isfinite().all()
    exist = (torch.arange(tokens) < count[:, None])[:, None, :, None]
    torch.testing.assert_close((out * exist).float(), (want * exist).float(), atol=2e-2, rtol=2e-2)
    for row in range(rows):
        stored = table[row, kept[row] : kept[row] + cells]
        torch.testing.assert_close(pool[stored, 1, 2], own[stored, 1, 2], atol=2e-2, rtol=2e-2)
        assert pool[stored, 1, 1].isnan().all(), "another layer's place was written"
        assert pool[table[row, kept[row] + cells :]].isnan().all(), "a page of nobody was written"
    assert pool[-1].isnan().all()


def test_tiles_fit_the_chip() -> None:
    for cells, tile in TILES.items():
        assert tile.keys % 16 == 0
        assert tile.keys >= cells * FRAMES
        assert tile.ctas * (tile.shared_bytes(cells, 40) + RESERVED) <= SHARED_BYTES + RESERVED


def test_what_the_kernel_does_not_serve_is_left_to_others() -> None:
    qkv, pool = torch.zeros(8, 2, 100, 3 * 128, dtype=torch.bfloat16), torch.zeros(1, dtype=torch.bfloat16)
    pages = Pages(pool, torch.zeros(8, PAGES, dtype=torch.int64), torch.zeros(8, dtype=torch.int64))
    assert not hopper_attention.fits(qkv, pages, 2, 2)


@pytest.mark.skipif(not nvrtc.available(), reason="cuda-bindings and NVRTC are not installed")
@pytest.mark.parametrize("cells", TILES)
def test_the_kernel_compiles_for_a_hopper_gpu(cells: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nvrtc, "CACHE", tmp_path)
    tile: Tile = TILES[cells]
    given = {**hopper_attention.macros(FRAMES, cells, 16, 20, "f16", tile), "PDL": 1}
    assert nvrtc.Compiler().begin(hopper_attention.SOURCE, given, "sm_90a").result()[:4] == b"\x7fELF"
