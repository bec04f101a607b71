"""Compile every launch of the kernels' tests for every GPU of stentor/kernels/gpus.py, on any machine.

Run: python benchmarks/kernels/compile_targets.py [--json FILE]
Needs: triton with its ptxas. No GPU.

Prints, for each GPU, how many launches were compiled and the largest shared memory of a CTA beside what the GPU has. Ends
with 1 if a kernel does not compile or takes more.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path
from typing import Any

os.environ["TRITON_INTERPRET"] = "0"
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # this tree, also where none is installed

import triton

from stentor.kernels.gpus import COMPILED, has_pdl
from tests.helpers.compiled import Turns, compiled_cases
from tests.kernels.compile_kernels import ALL as SHARED
from tests.models.fish_s2.compile_kernels import ALL as FISH
from tests.models.qwen3_tts.compile_kernels import ALL as QWEN
from tests.models.voxcpm2.compile_kernels import ALL as VOX


def compiled() -> dict[str, Any]:
    found: dict[int, list[tuple[int, str]]] = {arch: [] for arch in COMPILED}
    kernels = set()
    turns = Turns(every=True)
    for cases, dtypes in (*SHARED, *FISH, *QWEN, *VOX):
        for what, kernel, arch, shared in compiled_cases(cases, dtypes, turns):
            found[arch].append((shared, what))
            kernels.add(kernel)
    gpus = {}
    for arch, gpu in COMPILED.items():
        shared, what = max(found[arch])
        gpus[f"sm_{arch}"] = {
            "examples": gpu.examples,
            "launches": len(found[arch]),
            "pdl": has_pdl(arch),
            "most_shared_bytes": shared,
            "of": what,
            "shared_bytes_of_the_gpu": gpu.shared_kib * 1024,
        }
    return {"triton": triton.__version__, "kernels": len(kernels), "gpus": gpus}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    found = compiled()
    print(json.dumps(found, indent=1))
    if args.json is not None:
        args.json.parent.mkdir(parents=True, exist_ok=True)
        args.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
