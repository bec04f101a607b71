"""Prints the frames that a checkpoint makes, with or without the kernels; run by tests in a process of its own.

python spoken.py CHECKPOINT DEVICE OPTIONS_JSON -> frames as JSON
"""

from __future__ import annotations

import json
import sys

import torch

from stentor import TTS, kernels


def main() -> None:
    checkpoint, device, options = sys.argv[1], sys.argv[2], json.loads(sys.argv[3])
    fused = kernels.paged_attention_supported(torch.device(device), torch.float32)
    texts = options.pop("texts")
    with TTS(checkpoint, device=device, dtype="float32", max_num_seqs=3, memory_gb=0.2) as tts:
        spoken = tts.generate(texts, **options)
        eager = tts.engine.health().eager_calls
    print(
        json.dumps({"fused": fused, "eager": eager, "frames": [s.frames.tolist() for s in spoken]})
    )


if __name__ == "__main__":
    main()
