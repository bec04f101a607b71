"""Time ways to multiply few rows by weights in 8 bits on a CPU, on one thread. Prints JSON lines.

Run: python benchmarks/kernels/quantized_cpu.py [--json FILE]
Needs: nothing but stentor.

Microseconds of CPU time, medians. `float32` is the layer that is not quantised. `ours` is `quantized_linear`, int8 and
fp8. `int8 product` is torch's in bfloat16 (which ours uses up to 8 rows) and in float32. `widened` makes the weights
float in blocks (which ours uses beyond). `dynamic` quantises activations too, and `float16` holds weights in 16 bits.
`error` is that of the output, in parts of its size.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # this tree, also where none is installed
from stentor.layers.quantized import CPU_OUTPUTS, dequantize, quantize, quantized_linear

SHAPES = ((320, 1920), (1024, 6144))  # inputs and outputs: the embedded voice's, Qwen3-TTS 0.6B's
ROWS = (1, 8, 32)
REPEATS = 9


def microseconds(run: Callable[[], object]) -> float:
    taken = []
    for _ in range(REPEATS + 3):
        begun = time.process_time()
        run()
        taken.append((time.process_time() - begun) * 1e6)
    return round(statistics.median(taken[3:]), 1)


def ways(weight: Tensor) -> dict[str, Callable[[Tensor], Tensor]]:
    """Products of rows and `weight` [N, K]."""
    bits, scale = quantize(weight, torch.int8)
    eight = quantize(weight, torch.float8_e4m3fn)
    ones, ones16 = torch.ones(len(weight)), torch.ones(len(weight), dtype=torch.bfloat16)
    zeros = torch.zeros(len(weight), dtype=torch.int64)
    stored = torch.quantize_per_channel(weight, scale[:, 0].double(), zeros, 0, torch.qint8)
    dynamic = torch.ops.quantized.linear_prepack(stored, None)
    half = torch.ops.quantized.linear_prepack_fp16(weight, None)

    def widened(x: Tensor) -> Tensor:
        blocks = range(0, len(bits), CPU_OUTPUTS)
        parts = [dequantize(bits[i : i + CPU_OUTPUTS], scale[i : i + CPU_OUTPUTS], x.dtype) for i in blocks]
        return torch.cat([F.linear(x, part) for part in parts], -1)

    return {
        "float32": lambda x: F.linear(x, weight),
        "ours, int8": lambda x: quantized_linear(x, bits, scale, None),
        "ours, fp8": lambda x: quantized_linear(x, *eight, None),
        "int8 product in bfloat16": lambda x: (
            torch._weight_int8pack_mm(x.bfloat16(), bits, ones16).float() * scale[:, 0]
        ),
        "int8 product in float32": lambda x: torch._weight_int8pack_mm(x, bits, ones) * scale[:, 0],
        "widened": widened,
        "dynamic": lambda x: torch.ops.quantized.linear_dynamic(x, dynamic, True),
        "float16": lambda x: torch.ops.quantized.linear_dynamic_fp16(x, half),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    found: list[dict[str, Any]] = []
    for inputs, outputs in SHAPES:
        weight = torch.randn(outputs, inputs) / inputs**0.5
        for rows in ROWS:
            x = torch.randn(rows, inputs)
            want = x.double() @ weight.double().T
            row: dict[str, Any] = {"inputs": inputs, "outputs": outputs, "rows": rows, "us": {}, "error": {}}
            with torch.inference_mode():
                for name, run in ways(weight).items():
                    row["us"][name] = microseconds(lambda run=run, x=x: run(x))
                    row["error"][name] = round(float((run(x) - want).norm() / want.norm()), 5)
            found.append(row)
            print(json.dumps(row), flush=True)
    if args.json is not None:
        args.json.write_text(
            json.dumps({"cpu": torch.backends.cpu.get_cpu_capability(), "rows": found}, indent=1) + "\n"
        )


if __name__ == "__main__":
    main()
