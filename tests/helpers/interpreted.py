"""Steps of the tiny checkpoints with every kernel interpreted and without any, in a process of its own.

TRITON_INTERPRET=1 python -m tests.helpers.interpreted [FRAMES] -> {family: [with kernels, without]}, frames as JSON. A prefill through
the padded static buffers that a GPU captures, then decode steps with a padding row. Codecs have tests of their own.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch

from stentor.engine.running import step
from stentor.engine.running.prefill_batch import BatchShape, PrefillBuffers, batch_shape, pieces_of
from stentor.kernels import switches
from tests.helpers.interpreter import prepare
from tests.helpers.tiny import Bench, checkpoint

OPTIONS: dict[str, dict[str, Any]] = {
    "fish_s2": {},
    "voxcpm2": {"flow_steps": 2},
    "qwen3_tts": {"top_k": 20},
    "qwen3_omni_talker": {"top_k": 20},
    "dots_tts": {"ignore_eos": True},
}


def frames(family: str, folder: Path, wanted: bool, count: int) -> Any:
    """The frames [count, ...] that a request begins with, and where in its text they are."""
    switches.AVAILABLE = wanted
    path = checkpoint("voxcpm2_window" if family == "voxcpm2" else family, folder)
    bench = Bench(path, "cpu", torch.float32)
    w, spec, padding = bench.runner, bench.model.spec, bench.sizes.slots
    assert w.kv.fused == wanted
    with torch.inference_mode():
        group = [bench.admit(family, 1, text="Hello.", **OPTIONS[family])]
        for kv in w.kv.frames.values():  # pages of its own for each frame
            kv.table[1, :count] = torch.arange(count)
        need, num_evals = batch_shape(pieces_of(group)), group[0][0].num_evals
        if wanted:
            size = BatchShape(need.tokens + 3, 1, 2 if spec.takes_reference else 0)
            packed = PrefillBuffers(spec, size, padding, bench.where)
            packed.write(pieces_of(group), size)
            step.prefill(bench.model, w.slots, w.kv, packed.batch(size))
            w._launch_first_frame([seq for seq, _ in group])
        else:
            w.prefill(group)
        w.idx[:2] = torch.tensor([1, padding])
        for _ in range(count - 1):
            w._decode(2, bench.sizes.max_pages, num_evals)
    made, attended = w.slots.frames[1, :count].flatten(1), w.slots.attended[1, :count]
    return (torch.cat((made, attended), 1) if attended.numel() else made).tolist()


def main() -> None:
    prepare()
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 2
    found = {}
    for family in OPTIONS:
        with tempfile.TemporaryDirectory() as folder:
            found[family] = [
                frames(family, Path(folder), wanted, count) for wanted in (True, False)
            ]
    print(json.dumps(found))


if __name__ == "__main__":
    main()
