"""Compare a budget of memory with what the card shows for the process, and with what torch has taken of it.

Run: python benchmarks/engine/budget.py [--model dummy:qwen3-tts-0.6b-base] [--gib 4] [--out FILE]
     python benchmarks/engine/budget.py --model dummy:toy --device cpu          a dry run without a GPU
Needs: a GPU that no other process uses, and nvidia-smi.

`process` is the driver's figure for this process, `card` what the whole card has taken since before the first call of
CUDA. Both are read after streams in a cloned voice and in prompts of several lengths have run.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch

sys.path.insert(
    0, str(Path(__file__).resolve().parents[2])
)  # this tree, also where none is installed
from stentor import TTS, Reference

TEXT = "The quick brown fox jumps over the lazy dog. "
GIB = 2**30


def smi(query: str) -> list[str]:
    command = ["nvidia-smi", query, "--format=csv,noheader,nounits"]
    command += ["--id=" + os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0]]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stdout.split("\n")


def card_gib() -> float:
    return int(smi("--query-gpu=memory.used")[0]) / 1024


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default="dummy:qwen3-tts-0.6b-base")
    parser.add_argument("--gib", type=float, default=4.0)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    cuda = args.device != "cpu"
    before = card_gib() if cuda else 0.0
    report: dict[str, Any] = {"model": args.model, "budget": args.gib}
    voice = np.random.default_rng(0).standard_normal(24_000 * 6).astype(np.float32) * 0.1
    with TTS(args.model, device=args.device, max_memory_gb=args.gib) as tts:
        report["ready"] = figures(before) if cuda else {}
        options: dict[str, Any] = (
            {"reference": Reference((voice, 24_000), TEXT)} if args.model.endswith("base") else {}
        )
        tts.generate([TEXT * n for n in (1, 2, 8)], seed=1, max_frames=50, **options)
        report["served"] = figures(before) if cuda else {}
    print(json.dumps(report), flush=True)
    if args.out is not None:
        args.out.parent.mkdir(parents=True, exist_ok=True)
        args.out.write_text(json.dumps(report, indent=1) + "\n")


def figures(before: float) -> dict[str, Any]:
    """GiB by card, process and torch."""
    return {
        "card": round(card_gib() - before, 3),
        "process": smi("--query-compute-apps=used_memory"),
        "torch": round(torch.cuda.memory_reserved() / GIB, 3),
    }


if __name__ == "__main__":
    main()
