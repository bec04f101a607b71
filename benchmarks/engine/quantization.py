"""Compare a model with itself in 8 bits, on a CPU: cosine of every layer, equal codes, memory, time. Prints a table.

Run: python benchmarks/engine/quantization.py [MODEL ...] [--quantization int8 fp8] [--json FILE]
     A MODEL is a directory, a Hub id, dummy:NAME, or `voice` for the embedded one. `--frames 8` makes it short.
Needs: nothing but stentor.

The float model speaks. Every layer that has 8 bits in the other computes its outputs for the same inputs too, and the
cosine is between the two. `equal codes` are those of both models' speech at temperature 0 (top_k 1), each on its own
frames, so a first difference changes what follows. Models of latents give the cosine of their frames instead, with the
same noise. Times are CPU seconds of this process per frame, the median of some utterances.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

sys.path.insert(
    0, str(Path(__file__).resolve().parents[2])
)  # this tree, also where none is installed
from stentor import TTS, Speech
from stentor.layers.linear import QuantizedLinear

TEXT = "When the rain stopped, we walked slowly along the river."
GREEDY = {"top_k": 1, "subtalker_top_k": 1, "repetition_penalty": 1.0}
REPEATS = 5


class Cosine:
    """Between the outputs of a float layer and of its twin for the same inputs, over all calls."""

    def __init__(self, layer: nn.Module, twin: nn.Module) -> None:
        self._twin, self._sums = twin, torch.zeros(3, dtype=torch.float64)
        self.remove = layer.register_forward_hook(self._compare).remove

    def _compare(self, layer: nn.Module, given: tuple[Tensor, ...], out: Tensor) -> None:
        a, b = out.double().flatten(), self._twin(given[0]).double().flatten()
        self._sums += torch.stack((a @ b, a @ a, b @ b))

    @property
    def value(self) -> float:
        both, first, second = self._sums.tolist()
        return float(both / (first * second) ** 0.5)


def layers(tts: TTS) -> Iterator[tuple[str, nn.Module]]:
    """All modules of a loaded model, by name."""
    for name, module in vars(tts._model).items():
        if isinstance(module, nn.Module):
            yield from ((f"{name}.{n}".removeprefix("_"), m) for n, m in module.named_modules())


def options(tts: TTS, frames: int, greedy: bool) -> dict[str, Any]:
    exact = {k: v for k, v in GREEDY.items() if greedy and k in tts.spec.options}
    return {**exact, "seed": 1, "min_frames": frames, "max_frames": frames}


def speak(tts: TTS, frames: int, greedy: bool = True) -> Speech:
    return tts.generate(TEXT, **options(tts, frames, greedy))


def cpu_ms(tts: TTS, frames: int) -> float:
    """CPU milliseconds per frame of a request, the median. The first request does not count."""
    taken = []
    for _ in range(REPEATS + 1):
        begun = time.process_time()
        speak(tts, frames)
        taken.append((time.process_time() - begun) * 1e3 / frames)
    return statistics.median(taken[1:])


def agreement(one: Speech, other: Speech) -> dict[str, float]:
    """How much of the frames is equal, or how near they are."""
    a, b = one.frames, other.frames
    n = min(len(a), len(b))
    a, b = a[:n], b[:n]
    if np.issubdtype(a.dtype, np.integer):
        differ = np.flatnonzero((a != b).reshape(n, -1).any(1))
        return {
            "equal_codes": round(float((a == b).mean()), 4),
            "equal_first_frames": int(differ[0]) if len(differ) else n,
        }
    x, y = a.astype(np.float64).ravel(), b.astype(np.float64).ravel()
    return {"frames_cosine": round(float(x @ y / np.sqrt((x @ x) * (y @ y))), 6)}


def measure(model: str | None, name: str, frames: int) -> dict[str, Any]:
    """One model in float32 and with `name`."""
    sizes: dict[str, Any] = {"device": "cpu", "threads": 1, "max_num_seqs": 1, "memory_gb": 0.1}
    with ExitStack() as open_:
        plain = open_.enter_context(TTS(model, **sizes))
        eight = open_.enter_context(TTS(model, quantization=name, **sizes))
        twins = {n: m for n, m in layers(eight) if isinstance(m, QuantizedLinear)}
        exact = {n: m for n, m in layers(plain) if n in twins}
        cosines = {n: Cosine(m, twins[n]) for n, m in exact.items()}
        with torch.inference_mode():
            spoken = speak(plain, frames)
        for cosine in cosines.values():
            cosine.remove()
        found = {n: round(c.value, 6) for n, c in cosines.items()}
        return {
            "model": model or "the built-in voice",
            "quantization": name,
            "frames": frames,
            "layers": len(found),
            "cosine_least": min(found.values()),
            "cosine_median": round(statistics.median(found.values()), 6),
            **agreement(spoken, speak(eight, frames)),
            "layer_mb": [round(_bytes(m.values()) / 1e6, 3) for m in (exact, twins)],
            "cpu_ms_per_frame": [round(cpu_ms(t, frames), 3) for t in (plain, eight)],
            "cosine": found,
        }


def _bytes(modules: Any) -> int:
    return sum(p.nbytes for m in modules for p in m.parameters())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("models", nargs="*", default=["voice"], metavar="MODEL")
    parser.add_argument("--quantization", nargs="+", default=["int8", "fp8"])
    parser.add_argument("--frames", type=int, default=24)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--layers", action="store_true", help="print the cosine of every layer")
    args = parser.parse_args()
    rows = []
    for model in args.models:
        for name in args.quantization:
            row = measure(None if model == "voice" else model, name, args.frames)
            rows.append(row)
            print(
                json.dumps({k: v for k, v in row.items() if k != "cosine" or args.layers}),
                flush=True,
            )
    if args.json is not None:
        args.json.parent.mkdir(parents=True, exist_ok=True)
        args.json.write_text(
            json.dumps({"torch": torch.__version__, "rows": rows}, indent=1) + "\n"
        )


if __name__ == "__main__":
    main()
