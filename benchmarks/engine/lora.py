"""Cost of adapters: streams that all have one, of many, against streams without any.

Run: python benchmarks/engine/lora.py --out lora.json                      32 adapters of rank 32, 64 streams, on a GPU
     python benchmarks/engine/lora.py --model tests/fixtures/voxcpm2 --device cpu --streams 4 --adapters 3 --rank 4 \
         --seconds 0.8 --rounds 1                                         a dry run without a GPU
Needs: a GPU and nothing but stentor (no server, no checkpoint).

Three settings: no slots for adapters, slots that no stream uses, and every stream with the next of the adapters. Each
prints audio seconds per second of streams of equal length that start together, the best of `--rounds`.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

sys.path.insert(
    0, str(Path(__file__).resolve().parents[2])
)  # this tree, also where none is installed
from stentor import TTS
from stentor.models.info import SpeechRequest
from stentor.models.lora import AdapterSlots

TEXT = "The quick brown fox jumps over the lazy dog, and then it sleeps in the warm afternoon sun."


def forced_length(tts: TTS, frames: int) -> dict[str, Any]:
    """Options with which a request makes so many frames, whatever the model says."""
    rest: dict[str, Any] = (
        {"ignore_eos": True} if "ignore_eos" in tts.spec.options else {"min_frames": frames}
    )
    return {"max_frames": frames, **rest}


def heard(tts: TTS, request: SpeechRequest) -> tuple[float, float]:
    """(when the first audio came, seconds of audio)."""
    first, samples = 0.0, 0
    for chunk in tts.submit(request):
        first, samples = first or time.perf_counter(), samples + len(chunk.samples)
    return first, samples / tts.sample_rate


def measure(
    tts: TTS, streams: int, seconds: float, rounds: int, loras: Sequence[str | None] = (None,)
) -> dict[str, Any]:
    """The best round of `streams` requests, which take the adapters in turn."""
    frames = max(2, round(seconds * tts.sample_rate / tts.spec.hop))
    options = forced_length(tts, frames)
    best: dict[str, Any] = {"audio_s_per_s": 0.0}
    for _ in range(rounds + 1):  # the first warms up
        requests = [
            tts.request(TEXT, seed=i, lora=loras[i % len(loras)], **options) for i in range(streams)
        ]
        started = time.perf_counter()
        with ThreadPoolExecutor(streams) as pool:
            answers = list(pool.map(lambda r: heard(tts, r), requests))
        wall = time.perf_counter() - started
        rate = sum(audio for _, audio in answers) / wall
        if rate > best["audio_s_per_s"]:
            firsts = sorted(first - started for first, _ in answers)
            best = {"audio_s_per_s": round(rate, 2), "ms_per_frame": round(wall * 1e3 / frames, 3)}
            best["ttfa_ms"] = [round(1e3 * firsts[i], 1) for i in (0, len(firsts) // 2, -1)]
    return best | {"eager_calls": tts.engine.side.eager_calls}


def random_adapter(slots: AdapterSlots, rank: int, folder: Path) -> Path:
    """A folder with random weights for every layer that has slots."""
    tensors = {}
    for name, (out, inputs) in slots.shapes.items():
        tensors[f"{name}.lora_A"] = torch.randn(rank, inputs, dtype=torch.bfloat16) / inputs**0.5
        tensors[f"{name}.lora_B"] = 0.01 * torch.randn(out, rank, dtype=torch.bfloat16)
    save_file(tensors, folder / "lora_weights.safetensors")
    return folder


def without_slots(a: argparse.Namespace, common: dict[str, Any]) -> dict[str, Any]:
    """The figures of a model that takes no adapter. It is gone when this returns."""
    with TTS(a.model, **common) as tts:
        return {"no slots": measure(tts, a.streams, a.seconds, a.rounds)}


def with_slots(a: argparse.Namespace, common: dict[str, Any]) -> dict[str, Any]:
    """Two engines, the first without adapters, the second with slots for them."""
    with TTS(a.model, max_loras=a.adapters, max_lora_rank=a.rank, **common) as tts:
        slots = tts._model.adapters
        found: dict[str, Any] = {"gib_of_slots": round(slots.bytes / 2**30, 3)}
        with tempfile.TemporaryDirectory() as folder:
            adapter = random_adapter(slots, a.rank, Path(folder))
            names = [f"adapter-{i}" for i in range(a.adapters)]
            for name in names:
                tts.load_lora(name, adapter)
        found["unused slots"] = measure(tts, a.streams, a.seconds, a.rounds)
        found["every stream"] = measure(tts, a.streams, a.seconds, a.rounds, names)
        return found


def main() -> None:
    p = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    p.add_argument("--model", default="dummy:voxcpm2")
    p.add_argument("--device", default="cuda")
    p.add_argument("--streams", type=int, default=64)
    p.add_argument("--adapters", type=int, default=32)
    p.add_argument("--rank", type=int, default=32)
    p.add_argument("--seconds", type=float, default=6.0, help="of audio per stream")
    p.add_argument("--rounds", type=int, default=3)
    p.add_argument("--memory-gb", type=float, default=None, help="for key-value pages")
    p.add_argument("--out", type=Path)
    a = p.parse_args()
    common = {"device": a.device, "max_num_seqs": a.streams, "memory_gb": a.memory_gb}
    found: dict[str, Any] = {
        "model": a.model,
        "streams": a.streams,
        "adapters": a.adapters,
        "rank": a.rank,
    }
    found |= without_slots(a, common) | with_slots(a, common)
    base = found["no slots"]["audio_s_per_s"]
    for setting in ("unused slots", "every stream"):
        found[setting]["less_percent"] = round(
            100 * (1 - found[setting]["audio_s_per_s"] / base), 1
        )
    print(json.dumps(found, indent=1))
    if a.out:
        a.out.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
