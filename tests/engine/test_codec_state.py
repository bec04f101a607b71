"""Rows of the codec's state: what is stored is what is gathered, whatever its shape, type and layout."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from stentor.engine.running.codec_state import CodecStateTable
from stentor.layers.types import Column

COLUMNS = {
    "count": Column(dtype=torch.int64, fill=7),
    "tail": Column((6, 32), torch.float16),
    "odd": Column((3, 5), torch.float16, fill=0.5),
    "flag": Column((), torch.float32, fill=1.0),
    "keys": Column((4, 2, 8), torch.bfloat16),
    "wide": Column((2, 3), torch.float64),
}


def state(rows: int) -> dict[str, Tensor]:
    """Random values, some of them parts of larger tensors as a codec's are."""
    made = {}
    for i, (name, c) in enumerate(COLUMNS.items()):
        longer = (torch.randn(rows, 5 + i, *c.shape[1:]) * 100).to(c.dtype)
        made[name] = longer[:, -c.shape[0] :] if c.shape and c.shape[0] <= 5 + i else (
            (torch.randn(rows, *c.shape) * 100).to(c.dtype)
        )  # fmt: skip
    return made


def test_what_is_stored_in_some_rows_is_read_back_and_others_stay():
    block = CodecStateTable(COLUMNS, 6, torch.device("cpu"))
    rows, new = torch.tensor([4, 1, 3]), state(3)
    block.store(rows, new)
    for got in (block.gather(rows), {n: t[rows] for n, t in block.columns.items()}):
        assert got.keys() == COLUMNS.keys()
        for name, value in new.items():
            assert got[name].dtype == COLUMNS[name].dtype
            assert torch.equal(got[name], value), name
    for name, c in COLUMNS.items():
        assert (block.columns[name][[0, 2, 5]] == c.fill).all()
    block.reset(torch.tensor([1]))
    assert all((block.gather(torch.tensor([1]))[n] == c.fill).all() for n, c in COLUMNS.items())


def test_values_of_another_dtype_are_converted():
    block = CodecStateTable(COLUMNS, 2, torch.device("cpu"))
    new = {n: v.double() for n, v in state(1).items()}
    block.store(torch.tensor([0]), new)
    assert all(torch.equal(block.columns[n][0], v[0].to(COLUMNS[n].dtype)) for n, v in new.items())


class Launches(TorchDispatchMode):
    """Counts operations that are kernels on a GPU."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func.overloadpacket.__name__
        if name not in {
            "view",
            "slice",
            "expand",
            "reshape",
            "_unsafe_view",
            "split",
            "detach",
            "alias",
        }:
            self.names.append(name)
        return func(*args, **(kwargs or {}))


def test_a_row_of_many_columns_is_gathered_by_one_launch_and_stored_by_two():
    columns = {f"tail{i}": Column((6, 32), torch.float16) for i in range(40)} | {
        "count": Column(dtype=torch.int64)
    }
    block, rows = CodecStateTable(columns, 4, torch.device("cpu")), torch.tensor([2, 0])
    new = {n: torch.randn(2, 20, 32).half()[:, -6:] for n in columns if n != "count"} | {
        "count": torch.tensor([3, 4])
    }
    with Launches() as gathered:
        block.gather(rows)
    with Launches() as stored:
        block.store(rows, new)
    assert gathered.names == ["index"]
    assert stored.names == ["cat", "index_copy_"]
