"""Kernels at both ends of a step against the formulas they stand for; see test_kernels.py for how they run here."""

from __future__ import annotations

import importlib.util
import os

import pytest
import torch
import torch.nn.functional as F

from stentor.engine.sequence import BROKEN, LENGTH, RUNNING, STOPPED
from stentor.engine.slot_table import SlotRows, SlotTable
from stentor.kernels import switches
from stentor.kernels.types import RowRef
from stentor.layers.rng import grid_normal, uniform
from stentor.layers.types import Column
from stentor.models.base import Emit, KVSpec, ModelSpec
from tests.helpers.child import python

if importlib.util.find_spec("triton") is None:
    pytest.skip("Triton is not installed (pip install stentor[cuda])", allow_module_level=True)

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
if DEVICE == "cpu":
    os.environ["TRITON_INTERPRET"] = "1"  # what is imported while it is set is interpreted
from stentor.kernels import kv_cache  # noqa: E402
from stentor.kernels import rng as rng_kernels  # noqa: E402
from stentor.models.fish_s2.kernels import embed_codes  # noqa: E402
from stentor.models.qwen3_tts.kernels import embed_codes_and_text, embed_prompt  # noqa: E402

os.environ.pop("TRITON_INTERPRET", None)

DTYPES = [torch.float32, torch.bfloat16]


@pytest.fixture(autouse=True)
def _seeded(monkeypatch):
    if DEVICE == "cpu":
        monkeypatch.setenv("TRITON_INTERPRET", "1")
    torch.manual_seed(7)
    with torch.inference_mode():
        yield


@pytest.fixture
def plain(monkeypatch):
    """The formulas, wherever they run."""
    monkeypatch.setattr(switches, "AVAILABLE", False)


def integers(*values: int):
    return torch.tensor(values, device=DEVICE)


@pytest.mark.parametrize("draws", [1, 16, 11, 256, 300])
def test_uniforms_are_the_same_to_the_last_bit(draws, plain):
    seed = integers(0, 1, 2**62, 2**63 - 1, -1, -(2**63), 1234567)
    step = integers(0, 5, 1, 4096, 2**31, 7, 2)
    got = rng_kernels.uniform(seed, step, draws)
    assert torch.equal(got, uniform(seed, step, draws))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("outer", "inner"), [(64, 4), (6, 2), (3, 8)])
def test_normals_lie_as_the_frame_does(dtype, outer, inner, plain):
    u = uniform(integers(3, 4, 5), integers(0, 9, 2), outer * inner)
    scale = torch.tensor([1.0, 0.0, 0.7], device=DEVICE)
    got, want = rng_kernels.grid_normal(u, outer, scale, dtype), grid_normal(u, outer, scale, dtype)
    assert got.shape == want.shape == (3, inner, outer)
    assert got.dtype == want.dtype
    assert (got[1] == 0).all()
    torch.testing.assert_close(got, want, atol=2e-6 if dtype == torch.float32 else 2e-2, rtol=1e-2)


def spec(frame: Column, stop_keeps: bool, columns: dict[str, Column]) -> ModelSpec:
    return ModelSpec(
        family="none", sample_rate=1, hop=1, frame=frame, kv=KVSpec(1, 1, 1), max_model_len=9, draws=1, columns=columns,
        prompt_rows={}, options={}, stop_keeps_frame=stop_keeps, reference_rate=1, reference_seconds=(0.0, 1.0),
    )  # fmt: skip


OWN = {"seen": Column((37,), torch.bool), "level": Column(fill=0.5), "told": Column((5,), torch.int32)}


def filled(made: ModelSpec) -> SlotTable:
    """A table of 6 slots whose rows are running, stopped, at their limit, or empty."""
    table = SlotTable(made, 6, 8, torch.device(DEVICE))
    for name, column in table.table.items():
        if name not in ("stop", "step"):
            column.copy_(torch.randint(0, 2 if column.dtype == torch.bool else 99, column.shape))
    table.table["stop"].copy_(integers(RUNNING, RUNNING, STOPPED, RUNNING, LENGTH, RUNNING, STOPPED))
    table.table["step"].copy_(integers(0, 3, 7, 7, 8, 5, 0))
    table.table["max_frames"].copy_(integers(1, 8, 8, 8, 8, 8, 0))
    table.table["min_frames"].copy_(integers(0, 4, 0, 0, 0, 0, 0))
    table.frames.copy_(torch.randint(0, 99, table.frames.shape))
    return table


def committed(table: SlotTable, out: Emit, idx: torch.Tensor, length: torch.Tensor | None) -> dict[str, torch.Tensor]:
    rows = table.rows(idx, 0)
    step_before = rows["step"].clone()
    table.commit(rows, out, length)
    assert torch.equal(rows["step"], step_before), "gathered rows are a copy"
    return {**table.table, "frames": table.frames}


FRAMES = [Column((4, 6)), Column((16,), torch.int32), Column((11,), torch.int64)]


@pytest.mark.parametrize("frame", FRAMES)
@pytest.mark.parametrize("stop_keeps", [True, False])
@pytest.mark.parametrize("counted", [True, False])
@pytest.mark.parametrize("rows", [[0, 1, 2, 3, 4, 5, 6, 6], [5], [3, 6, 6], [6]])
def test_a_step_writes_what_the_formulas_write(frame, stop_keeps, counted, rows, monkeypatch):
    made = spec(frame, stop_keeps, OWN)
    tables = [filled(made)]
    tables.append(SlotTable(made, 6, 8, torch.device(DEVICE)))
    for name, column in tables[0].table.items():
        tables[1].table[name].copy_(column)
    tables[1].frames.copy_(tables[0].frames)
    idx, batch = torch.tensor(rows, device=DEVICE), len(rows)
    value = torch.randint(0, 99, (*frame.shape, batch), device=DEVICE).movedim(-1, 0)  # rows lie apart
    if frame.dtype == torch.float32:
        value = value.to(torch.bfloat16)
        value[idx == 3, 1, 2] = float("nan")
        value[idx == 0, 0, 0] = float("inf")
    stop = (idx == 1) | (idx == 5)
    new = {
        "seen": torch.rand(batch, 37, device=DEVICE) < 0.5,
        "level": torch.rand(batch, device=DEVICE),
        "told": torch.randint(0, 9, (batch, 5), device=DEVICE),
    }
    for values in (value, *new.values()):
        values[idx == 6] = 1  # every padding row writes the same
    length = idx + 40 if counted else None
    out = Emit(value, stop, new)
    monkeypatch.setattr(switches, "AVAILABLE", False)
    want = committed(tables[0], out, idx, length)
    monkeypatch.setattr(switches, "AVAILABLE", True)
    monkeypatch.setattr(switches, "INTERPRETED", True)
    got = committed(tables[1], out, idx, length)
    for name in want:
        assert torch.equal(got[name], want[name]), name
    if frame.dtype == torch.float32 and len(rows) > 3:
        assert got["stop"][3] == BROKEN


@pytest.mark.parametrize("frame", FRAMES)
def test_rows_gathered_at_once_are_those_gathered_one_by_one(frame, monkeypatch):
    table = filled(spec(frame, True, OWN))
    for rows in ([2], [6, 0, 6], [0, 1, 2, 3, 4, 5, 6]):
        idx = torch.tensor(rows, device=DEVICE)
        monkeypatch.setattr(switches, "AVAILABLE", True)
        monkeypatch.setattr(switches, "INTERPRETED", True)
        got = SlotRows(table, idx, 0, {})
        for name, column in table.table.items():
            assert torch.equal(got[name], column[idx]), name
            assert got[name].dtype == column.dtype
            assert got[name].data_ptr() % 16 == 0


def test_every_kernel_of_this_file_compiles_for_the_gpu():
    done = python("-m", "tests.layers.compile_kernels_rows", TRITON_INTERPRET="0")
    assert done.returncode == 0, done.stderr[-3000:]
    assert len(done.stdout.splitlines()) >= 7


TOLERANCE = {torch.float32: 1e-6, torch.bfloat16: 2e-2}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("hidden", "codes"), [(48, torch.int32), (600, torch.int64)])
def test_a_frame_is_the_sum_of_its_codes_and_the_text_that_is_told(dtype, hidden, codes):
    books, size, slots, capacity, pad = 16, 9, 5, 12, 3
    table, texts = (torch.randn(n, hidden, device=DEVICE).to(dtype) for n in (books * size, 20))
    offset = torch.arange(books, device=DEVICE) * size
    frames = torch.randint(0, size, (4, books), device=DEVICE).to(codes)
    told = RowRef(torch.randint(0, 20, (slots, capacity), device=DEVICE).int(), integers(4, 0, 2, 1))
    step = integers(1, capacity, capacity + 1, 0)
    got = embed_codes_and_text(frames, offset, table, step, told, texts, pad)
    text = torch.stack((told.table[4, 0], told.table[0, -1], torch.tensor(pad, device=DEVICE), told.table[1, 0]))
    want = F.embedding(frames + offset, table).sum(1) + F.embedding(text.long(), texts)
    torch.testing.assert_close(got, want, atol=TOLERANCE[dtype], rtol=TOLERANCE[dtype])
    again = embed_codes(frames, offset, table, texts, 7, 11**0.5)
    want = (F.embedding(frames[:, 0] + 7, texts) + F.embedding(frames + offset, table).sum(1)) / 11**0.5
    torch.testing.assert_close(again, want, atol=TOLERANCE[dtype], rtol=TOLERANCE[dtype])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("heads", "dim"), [(2, 12), (8, 128), (8, 160)])
def test_tokens_go_into_the_pages_of_their_slots(dtype, heads, dim):
    page, pages, slots = 4, 20, 3
    pool = torch.randn(2, pages + 1, page, heads, dim, device=DEVICE).to(dtype)
    table = torch.randperm(pages, device=DEVICE)[: slots * 6].view(slots, 6)
    slot, pos = integers(0, 0, 2, 2, 1), integers(0, 5, 3, 23, 12)
    both = torch.randn(5, 3 * heads * dim, device=DEVICE).to(dtype)
    k, v = (both[:, i * heads * dim : (i + 1) * heads * dim].unflatten(1, (heads, dim)) for i in (0, 2))
    want = pool.clone()
    want[0, table[slot, pos // page], pos % page] = k
    want[1, table[slot, pos // page], pos % page] = v
    kv_cache.store_kv(pool, table, slot, pos, k.contiguous(), v)
    assert torch.equal(pool, want)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("frames", [0, 3])
@pytest.mark.parametrize("spoken", [True, False])
def test_a_prompt_is_the_sum_of_what_its_positions_have(dtype, frames, spoken):
    books, size, hidden, count = 4, 9, 300, 6
    texts, table = (torch.randn(n, hidden, device=DEVICE).to(dtype) for n in (20, books * size))
    offset = torch.arange(books, device=DEVICE) * size
    text, code = integers(-1, 3, 19, 0, -1, 5).int(), integers(7, -1, 2, 0, -1, 35).int()
    codes, places = torch.randint(0, size, (frames, books), device=DEVICE).int(), integers(4, count, 2)[:frames]
    vectors = torch.randn(count, hidden, device=DEVICE) if spoken else None
    got = embed_prompt((text, texts), (code, table), vectors, (codes, offset, table, places))
    want = sum(
        F.embedding(i.long().clamp_min(0), t).masked_fill((i < 0)[:, None], 0)
        for i, t in ((text, texts), (code, table))
    )
    want = want if vectors is None else want + vectors.to(dtype)
    for row, place in zip(F.embedding(codes + offset, table).sum(1), places, strict=True):
        if place < count:
            want[place] += row
    torch.testing.assert_close(got, want, atol=TOLERANCE[dtype], rtol=TOLERANCE[dtype])
