"""Kernels of frames of codes, against their reference implementations."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import tests.helpers.kernel_tests  # noqa: F401  (first: it imports the kernels interpreted where there is no GPU)
from stentor.kernels.constants import VECTOR_ID
from stentor.kernels.frame_codes import embed_codes_and_text, embed_prompt, sample_first_codebook
from stentor.kernels.types import MinFrames, RowRef
from stentor.layers.sampling import penalize_seen, sample
from tests.helpers.kernel_tests import DEVICE, DTYPES, integers, random
from tests.helpers.samplers import check_sample, sample_outs, sampling_params

pytestmark = pytest.mark.usefixtures("kernel_test")

TOLERANCE = {torch.float32: 1e-6, torch.bfloat16: 2e-2}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("hidden", "codes"), [(48, torch.int32), (600, torch.int64)])
def test_a_frame_is_the_sum_of_its_codes_and_its_text(dtype, hidden, codes):
    books, size, slots, capacity, pad = 16, 9, 5, 12, 3
    table, texts = (torch.randn(n, hidden, device=DEVICE).to(dtype) for n in (books * size, 20))
    offset = torch.arange(books, device=DEVICE) * size
    frames = torch.randint(0, size, (4, books), device=DEVICE).to(codes)
    text_ids = RowRef(
        torch.randint(0, 20, (slots, capacity), device=DEVICE).int(), integers(4, 0, 2, 1)
    )
    step = integers(1, capacity, capacity + 1, 0)
    got = embed_codes_and_text(frames, offset, table, step, text_ids, texts, pad)
    text = torch.stack(
        (
            text_ids.table[4, 0],
            text_ids.table[0, -1],
            torch.tensor(pad, device=DEVICE),
            text_ids.table[1, 0],
        )
    )
    want = F.embedding(frames + offset, table).sum(1) + F.embedding(text.long(), texts)
    torch.testing.assert_close(got, want, atol=TOLERANCE[dtype], rtol=TOLERANCE[dtype])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("frames", [0, 3])
@pytest.mark.parametrize("spoken", [True, False])
def test_a_prompt_is_the_sum_of_what_its_positions_have(dtype, frames, spoken):
    books, size, hidden, count = 4, 9, 300, 6
    texts, table = (torch.randn(n, hidden, device=DEVICE).to(dtype) for n in (20, books * size))
    offset = torch.arange(books, device=DEVICE) * size
    text, code = (
        integers(-1, 3, 19, 0, -1, 5).int(),
        integers(7, VECTOR_ID, 2, 0, -1, VECTOR_ID).int(),
    )
    codes, places = (
        torch.randint(0, size, (frames, books), device=DEVICE).int(),
        integers(4, count, 2)[:frames],
    )
    vectors = (
        RowRef(torch.randn(3, hidden, device=DEVICE), integers(0, 2, 0, 1, 1, 0))
        if spoken
        else None
    )
    got = embed_prompt((text, texts), (code, table), vectors, (codes, offset, table, places))
    want = sum(
        F.embedding(i.long().clamp_min(0), t).masked_fill((i < 0)[:, None], 0)
        for i, t in ((text, texts), (code, table))
    )
    for at in (1, 5) if vectors is not None else ():
        want[at] += vectors.table[vectors.idx[at]].to(dtype)
    for row, place in zip(F.embedding(codes + offset, table).sum(1), places, strict=True):
        if place < count:
            want[place] += row
    torch.testing.assert_close(got, want, atol=TOLERANCE[dtype], rtol=TOLERANCE[dtype])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("batch", [1, 24])
def test_the_first_pick_is_behind_the_penalty_and_the_ids_that_cannot_be_drawn(dtype, batch):
    size, marks, end, slots = 70, 20, 61, 30
    logits, how = random(batch, size, dtype=dtype) * 3, sampling_params(batch, size)
    logits[:, end] += 4 + 12.0 * (
        torch.arange(batch, device=DEVICE) % 3 == 1
    )  # some rows surely end
    seen = RowRef(
        torch.rand(slots, size, device=DEVICE) < 0.3, torch.randperm(slots, device=DEVICE)[:batch]
    )
    penalty = torch.tensor([1.05, 1.0, 2.0], device=DEVICE).repeat(batch)[:batch]
    step, least = (
        torch.arange(batch, device=DEVICE),
        torch.full((batch,), batch // 2, device=DEVICE),
    )
    at, had = torch.arange(size, device=DEVICE), seen.table[seen.idx]
    barred = (at >= size - marks) & (at != end) | ((step < least)[:, None] & (at == end))
    want = sample(
        penalize_seen(logits.float(), had, penalty).masked_fill(barred, float("-inf")), *how
    )
    before = seen.table.clone()
    for out in sample_outs(batch, size, dtype, torch.int32):
        ended, now = sample_first_codebook(
            logits, how, out, seen, penalty, MinFrames(step, least), marks, end
        )
        check_sample(out, want, 0.05)
        got = out.code.long()
        assert ended.dtype == now.dtype == torch.bool
        assert torch.equal(ended, got == end)
        assert torch.equal(now, had | (at == got[:, None]))
        assert torch.equal(seen.table, before)
        assert not ended[: batch // 2].any()
    if batch > 1:
        assert ended.any()
