"""Counts what a captured step launches, kernels included, without a GPU and without running a kernel.

TRITON_INTERPRET=1 python -m tests.helpers.launches [--write]     prints the counts as JSON; --write stores them

The step runs on the meta device, where tensors have no values; a kernel's launch is counted by name and does nothing.
Tiny checkpoints: full sizes have more layers, and as many launches per layer. Counts are those of the kernels as the GPU
gets them: `torch` is every operation that launches something.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import torch
from triton.runtime import interpreter

from stentor import registry
from stentor.engine import step
from stentor.engine.kv_cache import PagedKV
from stentor.engine.slot_table import SlotTable
from tests.helpers import meta_step as plain

STORED = Path(__file__).parent / "launches.json"
BATCHES = (1, 16, 64)
FAMILIES = ("fish_s2", "voxcpm2", "custom_voice")


class Launches(plain.Operations):
    """Operations and kernels while it is active."""

    def __init__(self) -> None:
        super().__init__()
        self.kernels: Counter[str] = Counter()

    def counts(self) -> dict[str, int]:
        return {"torch": self.count, **dict(sorted(self.kernels.items()))}


def launches(model: Any, run: Any) -> dict[str, int]:
    with torch.inference_mode(), Launches() as found:
        plain_run = interpreter.InterpretedFunction.run

        def count(self: Any, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> None:
            found.kernels[self.fn.__name__] += 1

        interpreter.InterpretedFunction.run = count
        try:
            run()
        finally:
            interpreter.InterpretedFunction.run = plain_run
    return found.counts()


def count(family: str, folder: Path) -> dict[str, dict[str, int]]:
    """Launches of one decode step by batch size, and of a prefill."""
    path = plain.checkpoint(family, folder)
    model = registry.load(path, torch.device("cpu"), torch.bfloat16, {})
    plain.to_meta(model, {})
    device, spec = torch.device("meta"), model.spec
    slots, kv = SlotTable(spec, 64, 64, device), PagedKV(spec.kv, 64, 16, 16, 8, device)
    out = {}
    for batch in BATCHES:
        idx = torch.zeros(batch, dtype=torch.int64, device=device)
        out[f"decode {batch}"] = launches(model, lambda idx=idx: step.decode(model, slots, kv, idx, 4, spec.num_evals))
    prompt = plain.prefill_batch(model, "meta")
    out["prefill"] = launches(model, lambda: step.prefill(model, slots, kv, prompt))
    return out


def main() -> None:
    found = {}
    for family in FAMILIES:
        with tempfile.TemporaryDirectory() as folder:
            found[family] = count(family, Path(folder))
    if "--write" in sys.argv:
        STORED.write_text(json.dumps(found, indent=1) + "\n")
    print(json.dumps(found))


if __name__ == "__main__":
    main()
