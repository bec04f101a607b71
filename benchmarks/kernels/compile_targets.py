"""Compile every launch of the kernels' tests for every GPU of stentor/kernels/gpus.py, on any machine.

Run: python benchmarks/kernels/compile_targets.py [--gpus 86 90] [--serving] [--json FILE]
Needs: triton with its ptxas. No GPU.

Prints, for each GPU, how many launches were compiled and the largest shared memory of a CTA beside what the GPU has.
Ends with 1 if a kernel does not compile or takes more. --serving: in the dtype of serving alone, bfloat16.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path
from typing import Any

os.environ["TRITON_INTERPRET"] = "0"
sys.path.insert(
    0, str(Path(__file__).resolve().parents[2])
)  # this tree, also where none is installed

import triton

from stentor.kernels.gpus import COMPILED, has_pdl
from tests.helpers.compiled import compiled_cases
from tests.kernels.compile_kernels import ALL as SHARED
from tests.models.cosyvoice3.compile_kernels import ALL as COSY
from tests.models.dots_tts.compile_kernels import ALL as DOTS
from tests.models.fish_s2.compile_kernels import ALL as FISH
from tests.models.kokoro.compile_kernels import ALL as KOKORO
from tests.models.vibevoice.compile_kernels import ALL as VIBE
from tests.models.voxcpm2.compile_kernels import ALL as VOX


def of_gpu(arch: int, serving: bool) -> dict[str, Any]:
    found: list[tuple[int, str]] = []
    kernels = set()
    for cases, dtypes in (*SHARED, *COSY, *DOTS, *FISH, *KOKORO, *VIBE, *VOX):
        for what, kernel, _, shared in compiled_cases(
            cases, dtypes[:1] if serving else dtypes, lambda _: (arch,)
        ):
            found.append((shared, what))
            kernels.add(kernel)
    shared, what = max(found)
    return {
        "examples": COMPILED[arch].examples,
        "kernels": len(kernels),
        "launches": len(found),
        "pdl": has_pdl(arch),
        "most_shared_bytes": shared,
        "of": what,
        "shared_bytes_of_the_gpu": COMPILED[arch].shared_kib * 1024,
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--gpus", type=int, nargs="*", default=list(COMPILED), choices=list(COMPILED)
    )
    parser.add_argument("--serving", action="store_true")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    found: dict[str, Any] = {
        "triton": triton.__version__,
        "dtypes": "bfloat16" if args.serving else "all",
        "gpus": {},
    }
    if args.json is not None and args.json.exists():  # of other GPUs
        found["gpus"] = json.loads(args.json.read_text())["gpus"]
    for arch in args.gpus:
        found["gpus"][f"sm_{arch}"] = of_gpu(arch, args.serving)
        print(f"sm_{arch}", json.dumps(found["gpus"][f"sm_{arch}"]), flush=True)
        if args.json is not None:
            args.json.parent.mkdir(parents=True, exist_ok=True)
            args.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
