"""Gathering and committing rows by kernels, against `engine.running.slot_table` without them."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

import tests.helpers.kernel_tests  # noqa: F401  (first: it imports the kernels interpreted where there is no GPU)
from stentor.engine.running.slot_table import SlotRows, SlotTable
from stentor.engine.scheduling.sequence import BROKEN, LENGTH, RUNNING, STOPPED
from stentor.kernels import switches
from stentor.layers.types import Column
from stentor.models.base import Emit, KVSpec, ModelSpec
from stentor.models.info import ATTENDED_WIDTH, AlignmentHeads
from tests.helpers.kernel_tests import DEVICE, integers

pytestmark = pytest.mark.usefixtures("kernel_test")

OWN = {
    "seen": Column((37,), torch.bool),
    "level": Column(fill=0.5),
    "told": Column((5,), torch.int32),
}

HEADS = AlignmentHeads((0,), 1, 1, 1.0)
FRAMES = [Column((4, 6)), Column((16,), torch.int32), Column((11,), torch.int64)]


def spec(frame: Column, stop_keeps: bool, columns: dict[str, Column]) -> ModelSpec:
    return ModelSpec(
        family="none", sample_rate=1, hop=1, frame=frame, kv=KVSpec(1, 1, 1), hidden=(), max_model_len=9, draws=1, columns=columns,
        prompt_rows={}, options={}, stop_keeps_frame=stop_keeps, reference_rate=1, reference_seconds=(0.0, 1.0),
    )  # fmt: skip


def filled(made: ModelSpec) -> SlotTable:
    """A table of 6 slots whose rows are running, stopped, at their limit, or empty."""
    table = SlotTable(made, 6, 8, torch.device(DEVICE))
    for name, column in table.table.items():
        if name not in ("stop", "step"):
            column.copy_(torch.randint(0, 2 if column.dtype == torch.bool else 99, column.shape))
    table.table["stop"].copy_(
        integers(RUNNING, RUNNING, STOPPED, RUNNING, LENGTH, RUNNING, STOPPED)
    )
    table.table["step"].copy_(integers(0, 3, 7, 7, 8, 5, 0))
    if made.hides_frames:
        table.table["emitted"].copy_(integers(0, 2, 7, 1, 8, 0, 0))
    table.table["max_frames"].copy_(integers(1, 8, 8, 8, 8, 8, 0))
    table.table["min_frames"].copy_(integers(0, 4, 0, 0, 0, 0, 0))
    table.frames.copy_(torch.randint(0, 99, table.frames.shape))
    return table


def committed(
    table: SlotTable, out: Emit, idx: torch.Tensor, length: torch.Tensor | None
) -> dict[str, torch.Tensor]:
    rows = table.rows(idx, 0)
    step_before = rows["step"].clone()
    attended = (
        idx[:, None] + torch.arange(ATTENDED_WIDTH, device=DEVICE) / 16
        if table.attended.numel()
        else None
    )
    table.commit(rows, out, length, attended)
    assert torch.equal(rows["step"], step_before), "gathered rows are a copy"
    return {
        **table.table,
        "frames": table.frames,
        "emitted_at": table.emitted_at,
        "attended": table.attended,
    }


@pytest.mark.parametrize("frame", FRAMES)
@pytest.mark.parametrize("stop_keeps", [True, False])
@pytest.mark.parametrize(("counted", "hides"), [(True, False), (False, False), (False, True)])
@pytest.mark.parametrize("rows", [[0, 1, 2, 3, 4, 5, 6, 6], [5], [3, 6, 6], [6]])
def test_a_step_writes_what_the_formulas_write(
    frame, stop_keeps, counted, hides, rows, monkeypatch
):
    made = replace(
        spec(frame, stop_keeps, OWN), hides_frames=hides, alignment=HEADS if counted else None
    )
    tables = [filled(made)]
    tables.append(SlotTable(made, 6, 8, torch.device(DEVICE)))
    for name, column in tables[0].table.items():
        tables[1].table[name].copy_(column)
    tables[1].frames.copy_(tables[0].frames)
    idx, batch = torch.tensor(rows, device=DEVICE), len(rows)
    value = torch.randint(0, 99, (*frame.shape, batch), device=DEVICE).movedim(
        -1, 0
    )  # rows lie apart
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
    out = Emit(value, stop, new, idx % 2 == 0 if hides else None)
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
