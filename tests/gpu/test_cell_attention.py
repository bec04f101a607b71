"""Attention of cells in CUDA C++ on a GPU: as the module that it replaces, with all that it stores, twice the same bits."""

from __future__ import annotations

import pytest
import torch

from stentor.kernels.cuda_cpp.launch import available_on
from stentor.models.cosyvoice3 import hopper_attention
from tests.helpers.cell_attention import CASES, HEADS, SCALE, Call

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_cells_attend_as_the_module_does(name: str, dtype: torch.dtype) -> None:
    if not available_on(0):
        pytest.skip("attention of cells in CUDA C++ needs a Hopper GPU and cuda-bindings")
    call, again = Call(name, dtype, "cuda"), Call(name, dtype, "cuda")
    for c in (call, again):
        assert hopper_attention.fits(c.qkv, c.pages, HEADS, c.cells)
        hopper_attention.cell_attention(
            c.qkv, c.turns, c.count, c.out, c.pages, HEADS, c.cells, c.first, SCALE
        )
    call.check()
    assert torch.equal(call.out, again.out)
