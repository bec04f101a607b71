"""Time how reference audio gets to the rate of a model: soxr on the host, and its filters on the device.

Run: python benchmarks/engine/resampling.py [--device cuda] [--seconds 28] [--out FILE]
Needs: nothing but stentor. A few seconds.

Milliseconds, medians: soxr, the product with its upload and wait, the filters of a pair of rates once, and the largest
difference of a sample. On a CPU the product is timed too, which nothing uses there.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from stentor.audio import Recording
from stentor.engine.device import Device
from stentor.engine.resampler import Filters, filters, resampled

PAIRS = ((24_000, 16_000), (24_000, 44_100), (44_100, 24_000), (48_000, 24_000), (48_000, 44_100), (48_000, 16_000))
REPEATS = 15


def timed(work: Callable[[], Any]) -> tuple[float, Any]:
    """Milliseconds, median, and the result."""
    work()
    times = []
    for _ in range(REPEATS):
        began = time.perf_counter()
        result = work()
        times.append(1e3 * (time.perf_counter() - began))
    return round(statistics.median(times), 3), result


def pair(source: int, target: int, device: Device, seconds: float) -> dict[str, float]:
    samples = np.random.default_rng(0).uniform(-0.5, 0.5, int(seconds * source)).astype(np.float32)
    began = time.perf_counter()
    made = filters(source, target)
    once = round(1e3 * (time.perf_counter() - began), 1)
    assert made is not None
    there = Filters(made.before, made.step, made.matrix.to(device.torch), made.first.to(device.torch))

    def on_device() -> torch.Tensor:
        found = resampled(torch.from_numpy(samples).to(device.torch), source, target, there)
        device.synchronize()
        return found

    host, want = timed(lambda: Recording(samples, source).at(target))
    product, found = timed(on_device)
    error = float(np.abs(found.cpu().numpy() - want).max())
    return {"soxr ms": host, "product ms": product, "filters once ms": once, "error": error}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--seconds", type=float, default=28.0)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    device = Device(args.device)
    with torch.inference_mode():
        found = {f"{source} to {target}": pair(source, target, device, args.seconds) for source, target in PAIRS}
    for rates, figures in found.items():
        print(rates, json.dumps(figures))
    if args.out:
        args.out.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
