"""Time batches of VoxCPM2 requests whose `flow_steps` differ: what a mixture costs those who asked for the default.

Run: python benchmarks/engine/flow_classes.py [--out FILE]
     python benchmarks/engine/flow_classes.py --model tests/fixtures/voxcpm2 --device cpu --rows 4      a dry run
Needs: a GPU and nothing but stentor.

Every batch starts together and generates patches of equal number. Seconds are those of the whole batch, the median of
three, and `default_s` is when the last request with the default ended.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # this tree, also where none is installed
from benchmarks.timing import machine_speed
from stentor import TTS

TEXT = "The quick brown fox jumps over the lazy dog, and then it sleeps in the warm afternoon sun."
PATCHES = 40
DEFAULT = 10
REPEATS = 3


def mixtures(rows: int) -> dict[str, list[int]]:
    """flow_steps of each request by the name of the mixture."""
    return {
        f"{rows} x 10": [DEFAULT] * rows,
        f"{rows} x 4": [4] * rows,
        f"{rows} x 6": [6] * rows,
        f"{rows} x 25": [25] * rows,
        f"{rows - 1} x 10 and 1 x 11": [*[DEFAULT] * (rows - 1), 11],
        f"{rows - 1} x 10 and 1 x 4": [*[DEFAULT] * (rows - 1), 4],
        f"{rows // 2} x 10 and {rows // 2} x 4": [DEFAULT, 4] * (rows // 2),
    }


def run(tts: TTS, steps: list[int]) -> tuple[float, float]:
    """Seconds until the last request ended, and until the last with the default did."""
    options = {"min_frames": PATCHES, "max_frames": PATCHES}
    requests = [tts.request(TEXT, seed=i, flow_steps=n, **options) for i, n in enumerate(steps)]
    started = time.perf_counter()

    def listen(request: Any) -> float:
        for _ in tts.submit(request):
            pass
        return time.perf_counter() - started

    with ThreadPoolExecutor(len(requests)) as pool:
        ends = list(pool.map(listen, requests))
    return max(ends), max((e for e, n in zip(ends, steps, strict=True) if n == DEFAULT), default=max(ends))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="dummy:voxcpm2")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--rows", type=int, default=64)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    result: dict[str, Any] = {"machine": machine_speed(torch.device(args.device)), "torch": torch.__version__}
    with TTS(args.model, device=args.device, max_num_seqs=args.rows, capture_all=True) as tts:
        run(tts, [DEFAULT] * args.rows)
        for name, steps in mixtures(args.rows).items():
            eager = tts.engine.eager_calls
            times = [run(tts, steps) for _ in range(REPEATS)]
            whole, default = (statistics.median(t) for t in zip(*times, strict=True))
            result[name] = {
                "seconds": round(whole, 3),
                "default_s": round(default, 3),
                "eager_calls": tts.engine.eager_calls - eager,
            }
            print(name, result[name], flush=True)
            if args.out:
                args.out.write_text(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
