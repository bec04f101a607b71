"""The proofs that need a GPU, in one run with a short table last.

Run: python benchmarks/gpu_check.py [--seconds 300] [--out DIR] [--only NAME ...]

modules     bfloat16, each module fed with float32 values from the CPU: cosine >= 0.999 (tiny checkpoints)
codes       float32: whole requests give the codes of the plain CPU path, nothing ran eagerly
captured    every captured graph equals its function, bit by bit; no hidden wait for the device in serving
company     500 requests per family that join, leave and are cancelled equal themselves alone; bfloat16 rows by rounding
kernels     each kernel against its formula
canaries    the same with canaries around every tensor
memcheck    the same under compute-sanitizer, where there is one that takes this device
racecheck   hazards in shared memory, likewise
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
KERNELS = ["tests/layers/test_kernels.py", "tests/layers/test_kernels_codec.py"]
SANITIZER = ["compute-sanitizer", "--target-processes", "all", "--error-exitcode", "9", "--print-limit", "5", "--tool"]
SECTIONS: dict[str, tuple[list[str], list[str]]] = {  # what runs pytest, and its arguments
    "company": ([], ["-s", "tests/gpu/test_company.py"]),
    "captured": ([], ["tests/gpu/test_captured.py"]),
    "modules": ([], ["-s", "tests/gpu/test_modules_in_bf16.py"]),
    "codes": ([], ["tests/gpu/test_whole_models.py"]),
    "kernels": ([], KERNELS),
    "canaries": ([], ["-p", "guarded", *KERNELS]),
    "memcheck": ([*SANITIZER, "memcheck"], ["-x", *KERNELS]),
    "racecheck": ([*SANITIZER, "racecheck"], ["-x", "-k", "bfloat16 or 2048", KERNELS[0]]),
}
TOGETHER = 4  # at a time


def run(name: str, end: float, out: Path) -> dict[str, Any]:
    front, arguments = SECTIONS[name]
    if front and shutil.which(front[0]) is None:
        return {"name": name, "verdict": f"not run: no {front[0]}"}
    command = [*front, sys.executable, "-m", "pytest", "-q", "--tb=short", "-p", "no:cacheprovider", "-W", "default"]
    command += [
        "-o",
        "faulthandler_timeout=100",
        *(a for a in arguments if not a.endswith(".py") or (ROOT / a).exists()),
    ]
    path = os.pathsep.join([str(ROOT), str(ROOT / "tests" / "gpu"), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "2"}
    if front:
        environment["PYTORCH_NO_CUDA_MEMORY_CACHING"] = "1"  # so that every tensor is an allocation that is watched
    began, log = time.monotonic(), out / f"gpu_check_{name}.txt"
    with log.open("w") as sink:
        child = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=sink, stderr=sink)
        try:
            code: int | None = child.wait(max(5.0, end - began))
        except subprocess.TimeoutExpired:
            child.kill()
            code = None
    return judged(name, code, log.read_text(), time.monotonic() - began)


def judged(name: str, code: int | None, text: str, seconds: float) -> dict[str, Any]:
    lines = [x for x in text.splitlines() if x.strip()]
    counts = next((x for x in reversed(lines) if re.search(r"\d+ (passed|failed|skipped|error)", x)), "no result")
    verdict = {0: "passed", None: "out of time"}.get(code, f"FAILED ({code})")
    if "not supported" in text and "SANITIZER" in text:
        verdict = "not run: the device is not supported"
    if " passed" not in counts and code == 0:
        verdict = "nothing ran"
    facts = [x.lstrip(".") for x in lines if re.match(r"\.*(qwen3_tts|voxcpm2|fish_s2) ", x)]
    summary = [x for x in lines if "ERROR SUMMARY" in x or "RACECHECK SUMMARY" in x][-1:]
    failed = [x for x in lines if x.startswith(("FAILED", "ERROR"))]
    return {
        "name": name, "verdict": verdict, "seconds": round(seconds, 1), "counts": counts, "facts": facts + summary,
        "failed": failed, "tail": [] if code == 0 else lines[-60:],
    }  # fmt: skip


def table(results: list[dict[str, Any]]) -> str:
    lines = []
    for r in results:
        for x in r.get("tail", [])[-25:]:
            lines.append(f"    {r['name']}: {x[:180]}")
    for r in results:
        lines.append(f"{r['name']:<10} {r['verdict']:<22} {r.get('seconds', 0):>6} s  {r.get('counts', '')}")
        lines += [f"    {x[:200]}" for x in [*r.get("facts", []), *r.get("failed", [])[:12]]]
    return "\n".join(lines)


def main() -> None:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--out", type=Path, default=Path("."))
    p.add_argument("--seconds", type=float, default=300.0)
    p.add_argument("--only", nargs="+", choices=SECTIONS, default=list(SECTIONS))
    a = p.parse_args()
    a.out.mkdir(parents=True, exist_ok=True)
    end = time.monotonic() + a.seconds
    with ThreadPoolExecutor(TOGETHER) as pool:
        results = list(pool.map(lambda name: run(name, end, a.out), a.only))
    with (a.out / "gpu_check.txt").open("w") as whole:
        for name in a.only:
            log = a.out / f"gpu_check_{name}.txt"
            if log.exists():
                whole.write(f"== {name}\n{log.read_text()[-400_000:]}\n")
                log.unlink()
    (a.out / "gpu_check.json").write_text(json.dumps(results, indent=1))
    print(table(results))


if __name__ == "__main__":
    main()
