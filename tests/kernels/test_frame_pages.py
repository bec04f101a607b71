"""Attention over page sets by frame: the kernels of prompts give what plain PyTorch gives."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import tests.helpers.kernel_tests  # noqa: F401  (first: it imports the kernels interpreted where there is no GPU)
from stentor.engine.running.kv_cache import PagedKV
from stentor.layers.qk_norm_rope import NormRope
from stentor.models.base import FrameKVSpec, KVSpec
from tests.helpers.kernel_tests import DEVICE

pytestmark = pytest.mark.usefixtures("kernel_test")

ROWS, HEADS, DIM = 5, 2, 16
WHERE = torch.device(DEVICE)


def history(fused: bool) -> Tensor:
    """Four steps of three requests, each with the frame before, which is kept, and the one that is made, which sees all
    of itself. The second request begins a step later: its first step keeps nothing of a frame before."""
    frames = PagedKV(FrameKVSpec(layers=1, heads=HEADS, dim=DIM, rows=ROWS), 3, 20, ROWS, 10, WHERE)
    kv = PagedKV(KVSpec(1, HEADS, DIM), 3, 8, 4, 4, WHERE, {"made": frames})
    pages = torch.randperm(20, generator=torch.Generator().manual_seed(1))[:18]
    frames.table[:3, :6] = pages.view(3, 6).to(WHERE)
    kv.fused = frames.fused = fused
    generator, idx, out = (
        torch.Generator().manual_seed(2),
        torch.tensor([2, 0, 1], device=WHERE),
        [],
    )
    at = torch.arange(2 * ROWS, device=WHERE)
    for step in range(4):
        number = torch.tensor([step, max(0, step - 1), step], device=WHERE)
        pos = (number[:, None] - 1) * ROWS + at
        seen = torch.where(at < ROWS, pos, pos[:, -1:])
        kept = (at >= ROWS) | (number > 0)[:, None]
        q, k, v = (
            torch.randn(len(idx) * 2 * ROWS, HEADS, DIM, generator=generator).to(WHERE)
            for _ in range(3)
        )
        attended = kv.frames_of(idx, 4).view("made", pos, seen, kept)(0, q, k, v, NormRope())
        out.append(attended[kept.flatten()])
    return torch.cat(out)


def test_kernels_and_plain_pytorch_agree():
    torch.testing.assert_close(history(fused=True), history(fused=False), atol=2e-5, rtol=1e-5)
