"""Calls of Kokoro on a GPU without the engine: time of each part, launches, and the longest kernels.

    python benchmarks/kokoro/gpu_calls.py --json FILE [--rounds 6] [--rows 1,8,64]
    python benchmarks/kokoro/gpu_calls.py --json FILE --device cpu --rounds 1 --rows 1      a dry run

Every round has texts of other lengths, as pieces have. `plan_ms` and `speak_ms` are medians of
whole calls. Of each part, `host_ms` is the time until its launches are made and `ms` until they have
run. The profile is of one call more.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile

from stentor import TTS
from stentor.models.kokoro.model import Kokoro
from stentor.models.piece_model import PieceRow
from stentor.request import build

MODEL = "dummy:kokoro-82m"
TEXT = (
    "The ferry left the harbour late, because the captain had waited for a crate of lemons. Nobody "
    "minded. It was warm, and the gulls were loud. At the second island two men came aboard with a "
    "ladder. They put it against the mast, and one of them climbed up. He looked at the sea."
)
LENGTHS = {"short": 24, "medium": 120, "long": 240}  # characters
TOP = 14
LAUNCHES = ("cudaLaunchKernel", "cuLaunchKernel", "cudaLaunchKernelExC", "cuLaunchKernelEx")


def synchronize() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def pieces(model: Kokoro, rows: int, length: int) -> list[PieceRow]:
    """Rows of texts of about this length, all different."""
    made = []
    for seed in range(rows):
        text = TEXT[: length + seed % 8].rpartition(" ")[0]
        made.append(PieceRow(model.prompts.build(build(model.spec, text, options={}), []), seed))
    return made


def spoken(model: Kokoro, rows: list[PieceRow]) -> tuple[float, float, float]:
    """Milliseconds of plan and of speak, and seconds of audio."""
    start = time.perf_counter()
    for row, planned in zip(rows, model.plan(rows), strict=True):
        row.planned = planned
    middle = time.perf_counter()
    audio = model.speak(rows)
    end = time.perf_counter()
    seconds = sum(map(len, audio)) / model.spec.sample_rate
    return 1e3 * (middle - start), 1e3 * (end - middle), seconds


@contextmanager
def timed_parts(model: Kokoro, times: dict[str, list[tuple[float, float]]]) -> Iterator[None]:
    """Time the parts of the calls inside, each by itself."""
    net = model.net
    modules: dict[str, Any] = {"bert": net.bert, "durations": net.durations}
    if net.fast is None:
        modules |= {"text": net.text_encoder, "curves": net.curves, "decoder": net.decoder}
    starts: dict[str, float] = {}

    def before(name: str) -> Callable[..., None]:
        def hook(*_: Any) -> None:
            synchronize()
            starts[name] = time.perf_counter()

        return hook

    def after(name: str) -> Callable[..., None]:
        def hook(*_: Any) -> None:
            host = time.perf_counter() - starts[name]
            synchronize()
            whole = time.perf_counter() - starts[name]
            times.setdefault(name, []).append((1e3 * host, 1e3 * whole))

        return hook

    handles = []
    for name, module in modules.items():
        handles.append(module.register_forward_pre_hook(before(name)))
        handles.append(module.register_forward_hook(after(name)))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def profiled(call: Callable[[], object]) -> dict[str, Any]:
    """Launches, milliseconds of the device, and the longest kernels and operations of a call."""
    activities = [ProfilerActivity.CPU]
    if torch.cuda.is_available():
        activities.append(ProfilerActivity.CUDA)
    with profile(activities=activities) as recorded:
        call()
        synchronize()
    averages = recorded.key_averages()
    kernels = [e for e in averages if e.device_type == DeviceType.CUDA]
    host = [e for e in averages if e.device_type == DeviceType.CPU]
    kernels.sort(key=lambda e: -e.self_device_time_total)
    host.sort(key=lambda e: -e.self_cpu_time_total)
    return {
        "launches": sum(e.count for e in host if e.key in LAUNCHES),
        "kernels": sum(e.count for e in kernels),
        "device_ms": sum(e.self_device_time_total for e in kernels) / 1e3,
        "longest": [(e.key[:70], e.count, e.self_device_time_total / 1e3) for e in kernels[:TOP]],
        "host": [(e.key[:50], e.count, e.self_cpu_time_total / 1e3) for e in host[:TOP]],
    }


def measured(model: Kokoro, rows: int, name: str, rounds: int) -> dict[str, Any]:
    """Figures of calls of so many rows."""
    length = LENGTHS[name]
    calls = [
        spoken(model, pieces(model, rows, length + 9 * number)) for number in range(rounds + 1)
    ]
    plan, speak, seconds = zip(*calls, strict=True)
    times: dict[str, list[tuple[float, float]]] = {}
    with timed_parts(model, times):
        for number in range(2):
            spoken(model, pieces(model, rows, length + 9 * number + 4))
    parts = {part: times[part][-1] for part in times}
    planned = pieces(model, rows, length)
    spoken(model, planned)
    return {
        "rows": rows,
        "text": name,
        "audio_seconds": seconds,
        "plan_ms": statistics.median(plan[1:]),
        "speak_ms": statistics.median(speak[1:]),
        "plans_ms": plan,
        "speaks_ms": speak,
        "parts": {part: {"host_ms": host, "ms": whole} for part, (host, whole) in parts.items()},
        "plan": profiled(lambda: model.plan(planned)),
        "speak": profiled(lambda: model.speak(planned)),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--json", type=Path, required=True)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--rows", default="1,8,64")
    args = parser.parse_args()
    began = time.perf_counter()
    results: dict[str, Any] = {"model": MODEL, "device": args.device, "calls": []}
    with TTS(MODEL, device=args.device) as tts:
        model = tts._model
        assert isinstance(model, Kokoro)
        results["load_seconds"] = time.perf_counter() - began
        results["by_kernels"] = model.net.fast is not None
        for rows in map(int, args.rows.split(",")):
            for name in LENGTHS:
                results["calls"].append(measured(model, rows, name, args.rounds))
                args.json.write_text(json.dumps(results, indent=1))
                call = results["calls"][-1]
                print(
                    f"{rows:3} {name:7} plan {call['plan_ms']:7.1f} ms, speak {call['speak_ms']:7.1f} ms, "
                    f"launches {call['plan']['launches']} and {call['speak']['launches']}, device "
                    f"{call['plan']['device_ms']:.1f} and {call['speak']['device_ms']:.1f} ms",
                    flush=True,
                )


if __name__ == "__main__":
    main()
