"""Attention of cells in CUDA C++, run on a CPU: as the module that it replaces, with all that it stores."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch

from stentor.kernels.cuda_cpp import launch
from stentor.kernels.cuda_cpp.product import RESERVED, SHARED_BYTES
from stentor.kernels.hopper_gemm import DTYPES
from stentor.models.cosyvoice3 import hopper_attention
from stentor.models.cosyvoice3.hopper_attention import TILES, Pages, Tile
from tests.helpers.cell_attention import CASES, FRAMES, HEADS, PAGES, SCALE, Call
from tests.helpers.cuda_emulator import emulated

if shutil.which("g++") is None:
    pytest.skip("g++ is not installed", allow_module_level=True)


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_cells_attend_as_the_module_does(name: str, dtype: torch.dtype, tmp_path: Path) -> None:
    call = Call(name, dtype)
    tile = TILES[call.cells]
    given = hopper_attention.macros(FRAMES, call.cells, HEADS, PAGES, DTYPES[dtype], tile)
    run = emulated(hopper_attention.SOURCE, given, tmp_path)
    arguments = hopper_attention.arguments(
        call.qkv, call.turns, call.count, call.out, call.pages, call.first, SCALE
    )
    run((2 * len(call.kept) * HEADS, 1), tile.shared_bytes(call.cells, PAGES), arguments)
    call.check()


def test_tiles_fit_the_chip() -> None:
    for cells, tile in TILES.items():
        assert tile.keys % 16 == 0
        assert tile.keys >= cells * FRAMES
        assert tile.ctas * (tile.shared_bytes(cells, 40) + RESERVED) <= SHARED_BYTES + RESERVED


def test_what_the_kernel_does_not_serve_is_left_to_others() -> None:
    qkv, pool = (
        torch.zeros(8, 2, 100, 3 * 128, dtype=torch.bfloat16),
        torch.zeros(1, dtype=torch.bfloat16),
    )
    pages = Pages(pool, torch.zeros(8, PAGES, dtype=torch.int64), torch.zeros(8, dtype=torch.int64))
    assert not hopper_attention.fits(qkv, pages, 2, 2)


@pytest.mark.skipif(not launch.available(), reason="cuda-bindings and NVRTC are not installed")
@pytest.mark.parametrize("cells", TILES)
def test_the_kernel_compiles_for_a_hopper_gpu(
    cells: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launch, "CACHE", tmp_path)
    tile: Tile = TILES[cells]
    given = {**hopper_attention.macros(FRAMES, cells, 16, 20, "f16", tile), "PDL": 1}
    assert (
        launch.Compiler().begin(hopper_attention.SOURCE, given, "sm_90a").result()[:4] == b"\x7fELF"
    )
