"""Run the checks that need a GPU, and print a short table last.

Run: python tools/gpu_check.py [--seconds 300] [--out DIR] [--only NAME ...]      from a plain copy of the tree
Needs: a GPU, pytest and the packages of `stentor[test]`, and compute-sanitizer for three of the checks.

modules     bfloat16, each module fed with float32 values from the CPU: cosine >= 0.999 (tiny checkpoints)
codes       float32: whole requests give the codes of the plain CPU path, nothing ran eagerly
captured    every captured graph equals its function, bit by bit; no hidden wait for the device in serving
devices     models on cuda:1, with cuda:0 as the current device, speak as on cuda:0 (a host with two GPUs)
company     500 requests per family that join, leave and are cancelled equal themselves alone, but for draws and levels
            that rounding decides and for what it grows to in latents, each measured; bfloat16 rows by rounding
kernels     each kernel against its formula
canaries    the same with canaries around every tensor
memcheck    the same under compute-sanitizer, where there is one that takes this device
racecheck   hazards in shared memory, likewise, in bfloat16
decoders    whole codec decoders under compute-sanitizer: the library's attention beside our kernels
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
STEP_KERNELS = (
    "experts",
    "paged_attention",
    "frame_codes",
    "prefill_attention",
    "short_attention",
    "gemv",
    "kv_cache",
    "norm_rope",
    "rng",
    "sampling",
)
STEP = [f"tests/kernels/test_{name}.py" for name in STEP_KERNELS]
STEP += [
    "tests/kernels/test_slot_table.py",
    "tests/gpu/test_skinny_gemm.py",
    "tests/gpu/test_cluster_gemm.py",
]
STEP += [f"tests/models/{family}/test_kernels.py" for family in ("fish_s2", "voxcpm2")]
CODECS = ["tests/kernels/test_conv1d.py", "tests/models/test_codec_kernels.py"]
KERNELS = [*STEP, *CODECS]
SANITIZER = [
    "compute-sanitizer",
    "--target-processes",
    "all",
    "--error-exitcode",
    "9",
    "--print-limit",
    "1000",
    "--tool",
]
DECODERS = "decoder_in_float16"
ONLY_OURS = ["-k", f"not {DECODERS} and not compile"]
RACES = [
    "-k",
    "(dtype1 or test_slot_table or test_rng) and not compile",
]  # pytest's name of the second dtype, if any
SECTIONS: dict[str, tuple[list[str], list[str]]] = {  # what runs pytest, and its arguments
    "kernels": ([], KERNELS),  # first: what it compiles, the same tests below find compiled
    "codes": ([], ["tests/gpu/test_whole_models.py"]),
    "captured": ([], ["tests/gpu/test_captured.py"]),
    "devices": ([], ["-rs", "tests/gpu/test_devices.py"]),
    "company": ([], ["-s", "tests/engine/test_batch_independence.py"]),
    "modules": ([], ["-s", "tests/models/test_bfloat16.py"]),
    "canaries": ([], ["-p", "tests.helpers.guarded", "-k", "not compile", *KERNELS]),
    "racecheck": ([*SANITIZER, "racecheck"], ["-x", *RACES, *STEP]),
    "memcheck": (
        [*SANITIZER, "memcheck", "--report-api-errors", "no"],
        ["-x", *ONLY_OURS, *KERNELS],
    ),
    "decoders": ([*SANITIZER, "memcheck", "--report-api-errors", "no"], ["-k", DECODERS, *CODECS]),
}
NOTES = {
    "memcheck": "without whole decoders, in which the library's attention runs: they are a section of their own. Calls "
    "that fail do not count: cuda-bindings looks for symbols that may be missing",
    "racecheck": "in bfloat16, rows in both; hazards within the libraries' own kernels are named and do not count",
}
LIMITS = {"racecheck": 120.0, "memcheck": 150.0, "decoders": 60.0}  # seconds
TOGETHER = 4  # at a time


def run(name: str, end: float, out: Path) -> dict[str, Any]:
    front, arguments = SECTIONS[name]
    if front and shutil.which(front[0]) is None:
        return {"name": name, "verdict": f"not run: no {front[0]}"}
    command = [
        *front,
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "--tb=short",
        "-p",
        "no:cacheprovider",
        "-W",
        "default",
    ]
    command += ["-o", "faulthandler_timeout=100", *arguments]
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "2"}
    if front:
        environment["PYTORCH_NO_CUDA_MEMORY_CACHING"] = (
            "1"  # so that every tensor is an allocation that is watched
        )
    began, log = time.monotonic(), out / f"gpu_check_{name}.txt"
    limit = max(5.0, min(end - began, LIMITS.get(name, float("inf"))))
    with log.open("w") as sink:
        child = subprocess.Popen(
            command, cwd=ROOT, env=environment, stdout=sink, stderr=sink, start_new_session=True
        )
        try:
            code: int | None = child.wait(limit)
        except subprocess.TimeoutExpired:
            os.killpg(child.pid, signal.SIGKILL)  # a sanitizer's pytest as well
            code = None
    text = "\n".join(x for x in log.read_text().splitlines() if not LIBRARY_FRAME.search(x))
    log.write_text(text)
    return judged(name, code, text, time.monotonic() - began)


LIBRARY_FRAME = re.compile(
    r"Saved host backtrace|Host Frame:.* in "
    r"(lib\S+|python3|(python|runner|main|_callers|_manager|_hooks|__\w+__|module|<frozen runpy>)(\.py)?:\d+)$"
)
RESULT = re.compile(r"\d+ (passed|failed|skipped|error|deselected).* in [\d.]+s")
RACING = re.compile(r"(?:Read|Write) access at (\w+)\+0x")
# whose own kernels order their copies as racecheck cannot see
LIBRARIES = (
    "cudnn",
    "nvjet",
    "cutlass",
    "cublas",
)
PROGRESS = re.compile(r"^([.sxFE]+)( *\[ *\d+%\])?(=+.*)?$")
FACT = re.compile(r"[.F]*((qwen3_tts|voxcpm2|fish_s2) .*)")


def judged(name: str, code: int | None, text: str, seconds: float) -> dict[str, Any]:
    """The verdict on a section from its output `text`. A `code` of None: it ran out of time."""
    lines = [x for x in text.splitlines() if x.strip()]
    counts = next((x for x in reversed(lines) if RESULT.search(x)), "")
    if not counts:
        begun = [m.group(1) for m in map(PROGRESS.match, lines) if m]
        counts = f"no result; {sum(x.count('.') for x in begun)} had passed"
    verdict = {0: "passed", None: "out of time"}.get(code, f"FAILED ({code})")
    if "not supported" in text and "SANITIZER" in text:
        verdict = "not run: the device is not supported"
    if code == 0 and not re.search(r"\b[1-9]\d* passed", counts):
        verdict = "nothing ran"
    racing = set(RACING.findall(text))
    held = code == 9 and " passed" in counts and " failed" not in counts
    if held and racing and all(name.startswith(LIBRARIES) for name in racing):
        verdict = "passed"
    facts = [m.group(1) for m in map(FACT.match, lines) if m]
    facts += [x.strip("= ") for x in lines if "ERROR SUMMARY" in x or "RACECHECK SUMMARY" in x][-1:]
    facts += [f"hazards in {name}" for name in sorted(racing)]
    guilty = sorted(
        {f"in the kernel {x}" for x in re.findall(r"=========     at (\w+)[^ ]*\+0x", text)}
    )
    failed = [x for x in lines if x.startswith(("FAILED", "ERROR"))]
    return {
        "name": name, "verdict": verdict, "seconds": round(seconds, 1), "counts": counts,
        "note": NOTES.get(name, ""), "facts": facts + guilty, "failed": failed,
        "tail": [] if verdict == "passed" else lines[-60:],
    }  # fmt: skip


def table(results: list[dict[str, Any]]) -> str:
    lines = []
    for r in results:
        for x in r.get("tail", [])[-25:]:
            lines.append(f"    {r['name']}: {x[:180]}")
    for r in results:
        lines.append(
            f"{r['name']:<10} {r['verdict']:<22} {r.get('seconds', 0):>6} s  {r.get('counts', '')}"
        )
        notes = [r["note"]] if r.get("note") else []
        lines += [
            f"    {x[:400]}" for x in [*notes, *r.get("facts", []), *r.get("failed", [])[:12]]
        ]
    return "\n".join(lines)


def main() -> None:
    p = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
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
