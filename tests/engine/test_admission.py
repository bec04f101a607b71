"""Cost of admission: a few launches and copies, as many for several requests as for one.

On the meta device every operation on a tensor of the "device" can be told from what the host does to its own memory.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from stentor import request
from stentor.config import EngineConfig
from stentor.engine.running.codec_runner import CodecRunner
from stentor.engine.running.device import Device
from stentor.engine.running.model_runner import ModelRunner
from stentor.engine.running.prefill_batch import PrefillBuffers, batch_shape, pieces_of
from stentor.engine.scheduling.sequence import RUNNING, Sequence
from stentor.layers.types import torch_dtype
from stentor.models.base import Prompt
from tests.helpers.meta_step import to_meta
from tests.helpers.tiny import FAMILIES, TEXT, VOICE, Bench, checkpoint

ROWS = {"fish_s2": 4, "voxcpm2": 4, "qwen3_tts": 6}
"""One copy to the device, then one write per dtype of numbers and per column of arrays."""
CODECS = 2  # a copy of the slots, and a write
PAGES = 2
PROMPTS = {"fish_s2": 2, "voxcpm2": 2, "qwen3_tts": 3}
"""One copy of the integers, and one per column of the prompt."""


class Launches(TorchDispatchMode):
    """Counts what a device would be given: operations that have to do with a tensor on the meta device."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        given = [x.is_meta for x in tree_leaves((args, kwargs)) if isinstance(x, torch.Tensor)]
        there = any(given) or any(
            isinstance(x, torch.Tensor) and x.is_meta for x in tree_leaves(out)
        )
        view = all(given) and any(
            r.alias_info is not None and not r.alias_info.is_write for r in func._schema.returns
        )
        self.count += there and not view and "empty" not in func.overloadpacket.__name__
        return out


def launches(run: Any) -> int:
    with torch.inference_mode(), Launches() as found:
        run()
    return found.count


def asked(bench: Bench, family: str, count: int) -> list[tuple[Sequence, Prompt, int]]:
    made = []
    for slot in range(count):
        req = request.build(bench.model.spec, TEXT, options={}, seed=slot, **VOICE[family])
        prompt = bench.prompt(req)
        seq = Sequence(
            slot,
            prompt.length,
            40,
            prompt.num_evals,
            0,
            0.1,
            True,
            slot=slot,
            num_scheduled=1,
            pages=[slot, 9],
        )
        made.append((seq, prompt, slot))
    return made


@pytest.mark.parametrize("family", FAMILIES)
def test_letting_requests_in_takes_a_handful_of_launches_however_many_they_are(family, tmp_path):
    bench = Bench(checkpoint(family, tmp_path), "cpu", torch.float32)
    new = asked(bench, family, 3)
    to_meta(bench.model, {})
    where = Device("meta")
    config = EngineConfig(max_num_seqs=4)
    runner = ModelRunner(bench.model, bench.sizes, config, where)
    codec = CodecRunner(bench.model, bench.sizes, config, where, runner.slots, runner.stream)
    for some in (new[:1], new):
        group = [(seq, prompt) for seq, prompt, _ in some]
        pieces = pieces_of(group)
        size = batch_shape(pieces)
        packed = PrefillBuffers(bench.model.spec, size, bench.sizes.slots, where)
        assert launches(lambda some=some: runner.admit(some)) == ROWS[family]
        assert launches(lambda g=group: codec.admit(g)) == CODECS
        assert launches(lambda some=some: runner.set_pages([seq for seq, _, _ in some])) == PAGES
        assert launches(lambda b=packed, p=pieces, s=size: b.write(p, s)) == PROMPTS[family]


@pytest.mark.parametrize("family", FAMILIES)
def test_an_admitted_row_holds_fills_and_what_the_request_says_and_nothing_of_the_last(
    family, tmp_path
):
    bench = Bench(checkpoint(family, tmp_path), "cpu", torch.float32)
    runner, slots = bench.runner, bench.runner.slots
    for column in (*slots.table.values(), *bench.codec.states.columns.values(), runner.kv.table):
        column.fill_(1)
    new = asked(bench, family, 4)[1:3]
    with torch.inference_mode():
        bench.write(new)
    for seq, prompt, seed in new:
        given = {
            "seed": seed,
            "max_frames": prompt.max_frames,
            "min_frames": prompt.min_frames,
            "stop": RUNNING,
            **prompt.columns,
        }
        for name, column in slots.columns.items():
            want = torch.full(column.shape, column.fill, dtype=torch_dtype(column.dtype))
            if name in given:
                value = torch.as_tensor(given[name]).to(torch_dtype(column.dtype))
                (want[: len(value)] if value.ndim else want).copy_(value)
            assert torch.equal(slots.table[name][seq.slot], want), name
        for name, column in bench.model.codec.columns.items():
            assert (bench.codec.states.columns[name][seq.slot] == column.fill).all(), name
        free = [bench.sizes.pages] * (bench.sizes.max_pages - 2)
        assert runner.kv.table[seq.slot].tolist() == [*seq.pages, *free]
    for column in (*slots.table.values(), *bench.codec.states.columns.values(), runner.kv.table):
        assert (column[[0, 3, 4]] == 1).all(), "rows of others"
