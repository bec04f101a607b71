"""Attention over a reference, whose length may never come again, on CUDA."""

from __future__ import annotations

import pytest
import torch

from stentor.layers.attention import sdpa, sdpa_once
from stentor.layers.sliding_window import WindowKV

pytestmark = pytest.mark.gpu


@torch.inference_mode()
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
@pytest.mark.parametrize("masked", [False, True], ids=["causal", "window"])
def test_it_equals_the_librarys(dtype: torch.dtype, masked: bool) -> None:
    q, k, v = (torch.randn(1, 603, 4, 64, dtype=dtype, device="cuda") for _ in range(3))
    pos = torch.arange(603, device="cuda")[None]
    mask = WindowKV("", 128, pos, None).bias(dtype) if masked else None
    want = sdpa(
        q.double(),
        k.double(),
        v.double(),
        None if mask is None else mask.double(),
        causal=not masked,
    )
    got = sdpa_once(q, k, v, mask, causal=not masked)
    torch.testing.assert_close(got.double(), want, rtol=3e-3, atol=3e-3)
