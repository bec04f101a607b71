"""Counts what a captured step launches, kernels included, without a GPU and without running a kernel.

TRITON_INTERPRET=1 python -m tests.helpers.launches [--write]     prints the counts as JSON; --write stores them

The step runs on the meta device, where tensors have no values; a kernel's launch is counted by name and does nothing.
Tiny checkpoints: full sizes have more layers, and as many launches per layer. Counts are those of the kernels as the GPU
gets them: `torch` is every operation that launches something.

`library`, which is not stored, is how many products, convolutions and attentions of the library a prefill, a step and a codec call
launch inside `kernels.batch_invariant`.
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

from stentor import kernels, registry
from stentor.engine.running import step
from stentor.engine.running.slot_table import SlotTable
from stentor.models.codec_timing import UtteranceTiming
from tests.helpers import meta_step as plain

STORED = Path(__file__).parent / "launches.json"
BATCHES = (1, 16, 64)
FAMILIES = ("fish_s2", "voxcpm2", "custom_voice", "cosyvoice3", "dots_tts", "qwen3_omni_talker")


LIBRARY = ("mm", "bmm", "convolution", "scaled_dot_product")
"""Parts of the names of operations whose sums may follow the number of rows."""


class Launches(plain.Operations):
    """Operations and kernels while it is active."""

    def __init__(self) -> None:
        super().__init__()
        self.kernels: Counter[str] = Counter()
        self.library = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.library += any(part in func.overloadpacket.__name__ for part in LIBRARY)
        return super().__torch_dispatch__(func, types, args, kwargs)

    def counts(self) -> dict[str, int]:
        return {"torch": self.count, **dict(sorted(self.kernels.items()))}


def launches(run: Any) -> Launches:
    with torch.inference_mode(), Launches() as found:
        plain_run = interpreter.InterpretedFunction.run

        def count(self: Any, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> None:
            found.kernels[self.fn.__name__] += 1

        interpreter.InterpretedFunction.run = count
        try:
            run()
        finally:
            interpreter.InterpretedFunction.run = plain_run
    return found


def count(family: str, folder: Path) -> dict[str, dict[str, int]]:
    """Launches of one decode step by batch size, and of a prefill. Of a codec that decodes from an
    utterance's beginning, those of a chunk too."""
    path = plain.checkpoint(family, folder)
    options = {"codec_dtype": "float16"}
    model = registry.load(path, torch.device("cpu"), torch.bfloat16, options)
    plain.to_meta(model, {})
    device, spec = torch.device("meta"), model.spec
    slots, kv = SlotTable(spec, 64, 64, device), plain.cache(spec, 64, 16, device)
    out = {}
    for batch in BATCHES:
        idx = torch.zeros(batch, dtype=torch.int64, device=device)
        out[f"decode {batch}"] = launches(
            lambda idx=idx: step.decode(model, slots, kv, idx, 4, spec.num_evals)
        ).counts()
    prompt = plain.prefill_batch(model, "meta")
    out["prefill"] = launches(lambda: plain.prefill(model, slots, kv, prompt)).counts()
    inputs = plain.codec_inputs(model, 2, device)
    if isinstance(spec.codec_timing, UtteranceTiming):
        out["codec"] = launches(lambda: model.codec.decode(*inputs)).counts()
    if not spec.batch_invariant:
        return {**out, "library": {}}
    runs = {
        "decode": lambda: step.decode(model, slots, kv, idx, 4, spec.num_evals),
        "prefill": lambda: plain.prefill(model, slots, kv, prompt),
        "codec": lambda: model.codec.decode(*inputs),
    }
    with kernels.batch_invariant(True):
        out["library"] = {name: launches(run).library for name, run in runs.items()}
    return out


def main() -> None:
    found = {}
    for family in FAMILIES:
        with tempfile.TemporaryDirectory() as folder:
            found[family] = count(family, Path(folder))
    if "--write" in sys.argv:
        stored = {
            family: {k: v for k, v in cases.items() if k != "library"}
            for family, cases in found.items()
        }
        STORED.write_text(json.dumps(stored, indent=1) + "\n")
    print(json.dumps(found))


if __name__ == "__main__":
    main()
