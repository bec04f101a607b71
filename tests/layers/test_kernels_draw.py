"""Draws that filter their logits and write the next token, against the formulas; see test_kernels.py for how they run."""

from __future__ import annotations

import importlib.util
import os

import pytest
import torch
import torch.nn.functional as F

from stentor.kernels.buffers import empty_aligned
from stentor.kernels.types import MinFrames, RowRef, SampleOut, SamplingParams
from stentor.layers.sampling import penalize_seen, sample
from stentor.models.fish_s2 import sampling as fish_sampling
from stentor.models.fish_s2.sampling import rank

if importlib.util.find_spec("triton") is None:
    pytest.skip("Triton is not installed (pip install stentor[cuda])", allow_module_level=True)

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
if DEVICE == "cpu":
    os.environ["TRITON_INTERPRET"] = "1"  # what is imported while it is set is interpreted
from stentor.kernels import sampling  # noqa: E402
from stentor.models.fish_s2.kernels import sample_first_code, sample_ranked_into  # noqa: E402
from stentor.models.qwen3_tts.kernels import sample_first_codebook  # noqa: E402

os.environ.pop("TRITON_INTERPRET", None)

DTYPES = [torch.float32, torch.bfloat16]
HIDDEN = 40


@pytest.fixture(autouse=True)
def _seeded(monkeypatch):
    if DEVICE == "cpu":
        monkeypatch.setenv("TRITON_INTERPRET", "1")
    torch.manual_seed(7)
    with torch.inference_mode():
        yield


def random(*shape, dtype=torch.float32):
    return torch.randn(*shape, device=DEVICE).to(dtype)


def asked(batch: int, size: int) -> SamplingParams:
    """Parameters that switch each filter on and off."""
    temperature = torch.tensor([0.0, 0.7, 1.0, 1.3], device=DEVICE).repeat(batch)[:batch]
    top_k = torch.tensor([0, 5, size + 3, 1, 30], device=DEVICE).repeat(batch)[:batch]
    top_p = torch.tensor([1.0, 0.8, 0.3], device=DEVICE).repeat(batch)[:batch]
    return SamplingParams(torch.rand(batch, 3, device=DEVICE)[:, 1], temperature, top_k, top_p)


def check(into: SampleOut, want: torch.Tensor, most_differ: float = 0.0) -> None:
    """Codes, but for draws on a boundary; and the tokens that follow from them."""
    got = into.code.long()
    assert (got != want).float().mean() <= most_differ, (got, want)
    if into.x is not None:
        assert torch.equal(into.x[:, -1], F.embedding(got, into.table))
        if into.prefix is not None:
            assert torch.equal(into.x[:, 0], into.prefix)


def places(batch: int, size: int, dtype: torch.dtype, codes: torch.dtype):
    """Where draws may go: codes alone, one token, two tokens."""
    table = random(2 * size, HIDDEN, dtype=dtype)[size:]
    code = empty_aligned(3, batch, codes, torch.device(DEVICE))
    yield SampleOut(code[0])
    yield SampleOut(code[1], table, torch.full((batch, 1, HIDDEN), float("nan"), device=DEVICE, dtype=dtype))
    front = random(batch, 3, HIDDEN, dtype=dtype)[:, 2]
    yield SampleOut(code[2], table, torch.full((batch, 2, HIDDEN), float("nan"), device=DEVICE, dtype=dtype), front)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("batch", [1, 24])
def test_what_is_drawn_is_the_next_token(dtype, batch):
    size = 70
    logits, how = random(batch, size, dtype=dtype) * 3, asked(batch, size)
    for into in places(batch, size, dtype, torch.int32):
        sampling.sample_into(logits, how, into)
        check(into, sample(logits, *how), 0.05)
    for into in places(batch, size, dtype, torch.int64):
        sample_ranked_into(logits, how, into)
        check(into, fish_sampling.sample_ranked(rank(logits), *how), 0.05)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("batch", [1, 24])
def test_the_first_pick_is_behind_the_penalty_and_the_ids_that_cannot_be_drawn(dtype, batch):
    size, marks, end, slots = 70, 20, 61, 30
    logits, how = random(batch, size, dtype=dtype) * 3, asked(batch, size)
    logits[:, end] += 4 + 12.0 * (torch.arange(batch, device=DEVICE) % 3 == 1)  # some rows surely end
    seen = RowRef(torch.rand(slots, size, device=DEVICE) < 0.3, torch.randperm(slots, device=DEVICE)[:batch])
    penalty = torch.tensor([1.05, 1.0, 2.0], device=DEVICE).repeat(batch)[:batch]
    step, least = torch.arange(batch, device=DEVICE), torch.full((batch,), batch // 2, device=DEVICE)
    at, had = torch.arange(size, device=DEVICE), seen.table[seen.idx]
    barred = (at >= size - marks) & (at != end) | ((step < least)[:, None] & (at == end))
    want = sample(penalize_seen(logits.float(), had, penalty).masked_fill(barred, float("-inf")), *how)
    before = seen.table.clone()
    for into in places(batch, size, dtype, torch.int32):
        ended, now = sample_first_codebook(logits, how, into, seen, penalty, MinFrames(step, least), marks, end)
        check(into, want, 0.05)
        got = into.code.long()
        assert ended.dtype == now.dtype == torch.bool
        assert torch.equal(ended, got == end)
        assert torch.equal(now, had | (at == got[:, None]))
        assert torch.equal(seen.table, before)
        assert not ended[: batch // 2].any()
    if batch > 1:
        assert ended.any()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("batch", [1, 24])
def test_the_first_choice_is_made_again_if_it_repeats_and_may_end_in_time(dtype, batch):
    size, slots, most, books, window = 41, 30, 16, 11, 10
    logits, how = random(batch, size, dtype=dtype), asked(batch, size)
    logits[:, size - 1] += 2.0 * (torch.arange(batch, device=DEVICE) % 3 == 1)
    u = torch.rand(batch, 13, device=DEVICE)[:, :2]
    past = RowRef(
        torch.randint(0, 9, (slots, most, books), device=DEVICE), torch.randperm(slots, device=DEVICE)[:batch]
    )
    step, least = torch.arange(batch, device=DEVICE) % most, torch.full((batch,), 4, device=DEVICE)
    early = (torch.arange(size, device=DEVICE) == size - 1) & (step < least)[:, None]
    ranking = rank(logits.float().masked_fill(early, float("-inf")))
    once = fish_sampling.sample_ranked(ranking, u[:, 0], *how[1:])
    at = step[:, None] - torch.arange(1, window + 1, device=DEVICE)
    old = past.table[past.idx[:, None], at.clamp_min(0), 0]
    for row in range(0, batch, 2):  # every other row repeats itself, if it has a past that counts
        past.table[past.idx[row], :, 0] = once[row]
        old[row] = once[row]
    repeats = ((old == once[:, None]) & (at > 0)).any(-1)
    free = (how.temperature > 0).float()
    again = fish_sampling.sample_ranked(ranking, u[:, 1], free, how.top_k, torch.full_like(free, 0.9))
    want = torch.where(repeats, again, once)
    for into in places(batch, size, dtype, torch.int64):
        ended = sample_first_code(logits, how._replace(u=u), (1.0, 0.9), into, past, window, MinFrames(step, least))
        check(into, torch.where(ended, 0, want), 0.05)
        assert ((want == size - 1) != ended).float().mean() <= 0.05
        assert not ended[step < least].any()
    if batch > 1:
        assert ended.any()
        assert repeats.any()
        assert (again != once)[repeats].any()


@pytest.mark.skipif(DEVICE == "cuda", reason="the compiler takes minutes over a block of 131,072; arithmetic is shown")
def test_a_wide_vocabulary_is_counted_whole():
    size, k = 70_000, 66_000  # more than 16 bits count
    logits = torch.linspace(1, 0, size, device=DEVICE)[None]
    u, one = torch.full((1,), 0.999, device=DEVICE), torch.ones(1, device=DEVICE)
    drawn = int(sampling.sample(logits, u, one, torch.full((1,), k, device=DEVICE), one))
    assert 65_000 < drawn < k
