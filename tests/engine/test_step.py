"""Checks, without a GPU, for what would stop a capture or slow a captured step.

On the meta device there are no values: a step that runs there reads none, and no shape in it depends on one. Operations
are counted on the CPU, where each stands for about one launch; with the kernels in place there are far fewer.
"""

from __future__ import annotations

import importlib.util
import json
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from stentor import registry
from stentor.engine.running import step
from stentor.engine.running.kv_cache import PagedKV
from stentor.engine.running.slot_table import SlotTable
from stentor.engine.scheduling.sequence import Sequence
from stentor.layers.lora import LoraLinear
from stentor.layers.types import ADAPTER
from tests.helpers.child import python
from tests.helpers.meta_step import (
    FAMILIES,
    FIXTURES,
    Operations,
    cache,
    checkpoint,
    codec_inputs,
    load,
    prefill,
    prefill_batch,
    to_meta,
)
from tests.helpers.tiny import Bench

STORED = Path(__file__).parents[1] / "helpers" / "launches.json"
MOST = {
    "fish_s2": 1030,
    "voxcpm2": 940,
    "custom_voice": 1730,
    "base": 1730,
    "cosyvoice3": 300,
    "phonon": 220,
    "pocket_tts": 200,
    "dots_tts": 830,
    "vibevoice": 570,
    "vibevoice_dialogue": 1000,
    "qwen3_omni_talker": 830,
}
"""Operations of a decode step of the tiny checkpoints, a little above what they are: raise it only with a reason.
The last was the check of logits that are not finite, which costs plain PyTorch four operations a draw and kernels none."""


MORE = ("dots_tts", "phonon", "vibevoice", "vibevoice_dialogue")


@pytest.mark.parametrize("family", [*FAMILIES, *MORE])
def test_no_step_reads_a_value_or_has_a_shape_that_depends_on_one(family, tmp_path):
    model = load(family, tmp_path)
    to_meta(model, {})
    device = torch.device("meta")
    spec = model.spec
    slots, kv = SlotTable(spec, 4, 64, device), cache(spec, 4, 16, device)
    with torch.inference_mode():
        step.decode(
            model, slots, kv, torch.zeros(3, dtype=torch.int64, device=device), 4, spec.num_evals
        )
        batch = prefill_batch(model, "meta")
        none = batch.idx[:0]
        partial = replace(batch, idx=none, last=none, length=none)
        prefill(model, slots, kv, batch)
        for piece in (partial, replace(partial, step=batch.pos)):  # the last replays frames
            step.prefill(model, slots, kv, piece)
        frames, state, call = codec_inputs(model, 2, device)
        samples, _ = model.codec.decode(frames, state, call)
    assert samples.is_meta
    assert samples.shape == (2, frames.shape[1] * spec.hop + spec.codec_timing.late)


@pytest.mark.parametrize("family", [*FAMILIES, *MORE])
def test_a_step_launches_no_more_than_it_did(family, tmp_path):
    model = load(family, tmp_path)
    spec, device = model.spec, torch.device("cpu")
    slots, kv = SlotTable(spec, 4, 64, device), cache(spec, 4, 16, device)
    counts = []
    for batch in (1, 3):
        with torch.inference_mode(), Operations() as operations:
            step.decode(model, slots, kv, torch.arange(batch), 4, spec.num_evals)
        with torch.inference_mode(), Operations():
            prefill(model, slots, kv, prefill_batch(model, "cpu"))
        counts.append(operations.count)
    assert counts[0] == counts[1], "the number of launches does not depend on the batch"
    assert counts[0] <= MOST[family], counts
    assert counts[0] >= MOST[family] * 0.8, f"{counts}: fewer by far; lower the bound"


def test_a_step_with_adapters_reads_no_value_and_any_mix_launches_the_same():
    model = registry.load(
        FIXTURES / "voxcpm2", torch.device("cpu"), torch.float32, {"max_loras": 2}
    )
    layers = {id(m) for m in model.net.modules() if isinstance(m, LoraLinear)}
    spec, counts = model.spec, []
    slots, kv = (
        SlotTable(spec, 4, 64, torch.device("cpu")),
        PagedKV(spec.kv, 4, 16, 16, 8, torch.device("cpu")),
    )
    for mix in ([0, 0, 0], [1, 0, 2], [2, 2, 2]):
        slots.table[ADAPTER][:3] = torch.tensor(mix)
        with torch.inference_mode(), Operations() as operations:
            step.decode(model, slots, kv, torch.arange(3), 4, spec.num_evals)
            prefill(model, slots, kv, prefill_batch(model, "cpu"))
        counts.append(operations.count)
    assert len(layers) > 10
    assert len(set(counts)) == 1, counts
    to_meta(model, {})
    device = torch.device("meta")
    slots, kv = SlotTable(spec, 4, 64, device), PagedKV(spec.kv, 4, 16, 16, 8, device)
    with torch.inference_mode():
        step.decode(
            model, slots, kv, torch.zeros(3, dtype=torch.int64, device=device), 4, spec.num_evals
        )
        prefill(model, slots, kv, prefill_batch(model, "meta"))


def test_a_step_with_kernels_launches_no_more_than_is_stored():
    """tests/helpers/launches.json: what a captured step of each family launches, by kernel and batch size. A change that
    launches more is seen here; one that launches fewer stores its counts: python -m tests.helpers.launches --write."""
    if importlib.util.find_spec("triton") is None:
        pytest.skip("Triton is not installed (pip install stentor[cuda])")
    done = python("-m", "tests.helpers.launches", TRITON_INTERPRET="1", STENTOR_KERNELS_OFF="")
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout.splitlines()[-1])
    stored = json.loads(STORED.read_text())
    assert found.keys() == stored.keys()
    for family, cases in stored.items():
        of_library = found[family]["library"]
        assert not any(of_library.values()), (
            f"{family}: {of_library} do not go by layers that batch_invariant reaches"
        )
        for case, want in cases.items():
            got = found[family][case]
            assert sum(got.values()) <= sum(want.values()), f"{family} {case}: {got}, stored {want}"
            assert sum(got.values()) >= 0.9 * sum(want.values()), (
                f"{family} {case}: fewer by far; store them"
            )
            assert sum(v for k, v in got.items() if k != "torch") > 0


@pytest.mark.parametrize("family", FAMILIES)
def test_the_host_does_next_to_nothing_for_a_steady_step(family, tmp_path, monkeypatch):
    """One launch, one small copy back, one event; nothing is uploaded while the same rows run again."""
    bench = Bench(checkpoint(family, tmp_path), "cpu", torch.float32)
    rows = [
        bench.admit("qwen3_tts" if family == "custom_voice" else "", i)[0]
        for i in range(0 if family == "base" else 3)
    ]
    if family == "base":  # speaks only with a reference; any row will do for the host's part
        rows = [
            Sequence(i, 8, 40, bench.model.spec.num_evals, 0, 0.1, True, slot=i, num_scheduled=1)
            for i in range(3)
        ]
    calls: Counter[str] = Counter()
    runner = bench.runner
    for name in ("upload", "fill", "download", "event", "synchronize"):
        plain = getattr(runner.device, name)
        monkeypatch.setattr(
            runner.device, name, lambda *a, n=name, f=plain: (calls.update([n]), f(*a))[1]
        )
    runner.decode_graphs.fn = lambda *key: calls.update(["launch"])  # type: ignore[assignment]
    with torch.inference_mode():
        runner.decode(rows)  # these rows are new
        assert calls == {"fill": 1, "launch": 1, "download": 1, "event": 1}
        calls.clear()
        with Operations() as operations:
            ticket = runner.decode(rows)
    assert calls == {"launch": 1, "download": 1, "event": 1}
    assert operations.count == 1, "the copy of the report"
    numbers = 4 if bench.model.spec.hides_frames else 2  # step and stop, and what is heard
    assert ticket.report.numel() == numbers * (bench.sizes.slots + 1)
