"""`stentor doctor`: show what runs on this machine and how fast."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import time

import torch

import stentor
from stentor.engine.device import Device, pick_device
from stentor.kernels.gpus import known

SENTENCE = "The quick brown fox jumps over the lazy dog near the old stone bridge."
EXTRAS = {"server": ("fastapi", "uvicorn", "av"), "bench": ("aiohttp",), "cuda": ("triton",)}


def run(model: str | None) -> int:
    """Print facts about the machine and time one sentence. Returns 0 if the model speaks, else 1 with the
    reason, or 2 if there is no such model."""
    print(f"stentor   {stentor.__version__}")
    print(f"python    {platform.python_version()} on {platform.platform(terse=True)}")
    print(f"torch     {torch.__version__}, {torch.get_num_threads()} threads, {os.cpu_count()} cores")
    device = Device(pick_device("auto"))
    free = device.free_bytes()
    print(f"device    {device.describe()}" + ("" if free is None else f", {free / 2**30:.1f} GiB free"))
    print(f"gpu       {known(device.describe(), device.compute_capability())}")
    for extra, packages in EXTRAS.items():
        missing = [p for p in packages if not _installed(p)]
        print(f"{extra:9s} " + ("ready" if not missing else f"not installed: {', '.join(missing)} (stentor[{extra}])"))
    return _speak(model)


def _installed(package: str) -> bool:
    try:
        importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return False
    return True


def _speak(model: str | None) -> int:
    started = time.perf_counter()
    try:
        with stentor.TTS(model, max_num_seqs=1) as tts:
            loaded = time.perf_counter()
            first, seconds = 0.0, 0.0
            for chunk in tts.stream(SENTENCE, seed=0):
                first = first or time.perf_counter() - loaded
                seconds += chunk.duration
            took = time.perf_counter() - loaded
            print(f"sizes     {tts.engine.sizes.describe()}")
            print(
                f"speech    {tts.spec.family}: load {loaded - started:.2f} s, first audio {first:.2f} s, "
                f"{seconds:.2f} s of audio in {took:.2f} s, RTF {took / max(seconds, 1e-9):.2f}"
            )
    except stentor.StentorError as e:
        print(f"speech    no: {e}")
        return 2 if isinstance(e, stentor.ModelNotFound) else 1
    return 0
