"""Prints the frames that a checkpoint makes, with or without the kernels; run by tests in a process of its own.

python spoken.py CHECKPOINT DEVICE OPTIONS_JSON -> frames as JSON. With TRITON_INTERPRET=1 the kernels run on the CPU.
Prefill goes through the padded static buffers that a GPU captures.
"""

from __future__ import annotations

import json
import os
import sys

import torch

from stentor import TTS
from stentor.engine import step
from stentor.engine.packing import Group, Layout, StaticPrefill, layout
from stentor.engine.worker import Ticket, Worker
from stentor.layers import kernels

if os.environ.get("TRITON_INTERPRET") == "1":
    from triton.runtime import interpreter

    _patched = interpreter._patch_lang_tensor

    def _with_loop_bounds(tensor, scope):
        """Triton 3.6 reads a loop bound by int() of an array of one element, which numpy 2.4 no longer allows."""
        _patched(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.item()))

    interpreter._patch_lang_tensor = _with_loop_bounds


def static_prefill(self: Worker, group: Group) -> Ticket:
    """Worker.prefill without graphs, but with their buffers: more tokens, rows and frames than the group has."""
    need = layout(group)
    size = Layout(need.tokens + 7, need.rows + 1, need.frames + 2 if self.model.spec.takes_reference else 0)
    packed = StaticPrefill(self.model.spec, size, self.sizes.slots, self.device)
    packed.write(group, size)
    step.prefill(self.model, self.slots, self.kv, packed.batch(size, max(seq.work for seq, _ in group)))
    return self._ticket([seq for seq, _ in group])


def main() -> None:
    checkpoint, device, options = sys.argv[1], sys.argv[2], json.loads(sys.argv[3])
    fused = kernels.serve(torch.device(device), torch.float32)
    if fused and device == "cpu":
        Worker.prefill = static_prefill
    texts = options.pop("texts")
    with TTS(checkpoint, device=device, dtype="float32", slots=3, memory_gb=0.2) as tts:
        spoken = tts.generate(texts, **options)
        eager = tts.engine.health().eager_calls
    print(json.dumps({"fused": fused, "eager": eager, "frames": [s.frames.tolist() for s in spoken]}))


if __name__ == "__main__":
    main()
