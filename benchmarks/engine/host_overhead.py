"""Measure the engine's host work per decode step: scheduling, launching, reading reports, handing out audio.

Run: python benchmarks/engine/host_overhead.py [--rows 64] [--steps 2000] [--json host_overhead.json]
Needs: nothing but stentor. No GPU.

One small tensor operation replaces the device's work, so that only the engine's own work remains.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import sys
import time
from pathlib import Path

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # this tree, also where none is installed
import stentor
from stentor.engine.engine import Engine
from stentor.engine.sequence import LENGTH


def without_device_work(engine: Engine) -> None:
    """Every step makes one frame for every row up to its limit. Every codec call gives silence."""
    report, spec, limit = engine.runner.slots.report, engine.model.spec, engine.runner.slots.table["max_frames"]

    def decode(batch: int, max_pages: int, num_evals: int) -> None:
        report[:, 0] += 1
        report[:, 1] = (report[:, 0] >= limit) * LENGTH

    def silence(
        frames: torch.Tensor, state: dict[str, torch.Tensor], call: object
    ) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        return torch.zeros(frames.shape[0], frames.shape[1] * spec.hop), state

    engine.runner.decode_graphs.fn = decode
    engine.model.codec.decode = silence  # type: ignore[method-assign]


def measure(rows: int, steps: int) -> dict[str, float]:
    """Milliseconds of one engine step with `rows` streams running: median, mean and 99th percentile."""
    step_ms: list[float] = []
    plain = Engine._step

    def timed(self: Engine) -> None:
        started = time.perf_counter()
        plain(self)
        if self.scheduler.live and len(self.scheduler.live) == rows:
            step_ms.append((time.perf_counter() - started) * 1e3)

    Engine._step = timed  # type: ignore[method-assign]
    try:
        with stentor.TTS("dummy:toy", max_num_seqs=rows, memory_gb=0.2, max_frames=4096) as tts:
            req = tts.request("hello", seed=1, max_frames=min(steps, 900), min_frames=min(steps, 900))
            tts.speech(list(tts.submit(req)), 1)  # warm
            without_device_work(tts.engine)
            step_ms.clear()
            streams = [tts.submit(req) for _ in range(rows)]
            for stream in streams:
                for _ in stream:
                    pass
    finally:
        Engine._step = plain  # type: ignore[method-assign]
    return {
        "rows": rows,
        "steps": len(step_ms),
        "median_ms": statistics.median(step_ms),
        "mean_ms": statistics.fmean(step_ms),
        "p99_ms": float(np.percentile(step_ms, 99)),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 16, 64])
    parser.add_argument("--steps", type=int, default=800)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    torch.set_num_threads(1)
    results = [measure(rows, args.steps) for rows in args.rows]
    for r in results:
        print("{rows:4.0f} rows: median {median_ms:.3f} ms, mean {mean_ms:.3f} ms, p99 {p99_ms:.3f} ms".format(**r))
    if args.json is not None:
        facts = {"stentor": stentor.__version__, "torch": torch.__version__, "machine": platform.machine()}
        args.json.write_text(json.dumps({"facts": facts, "results": results}, indent=1) + "\n")


if __name__ == "__main__":
    main()
