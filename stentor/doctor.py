"""`stentor doctor`: show what runs on this machine and how fast, and what is missing for what."""

from __future__ import annotations

import http.client
import importlib.metadata
import json
import os
import platform
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from importlib.util import find_spec

import stentor
from stentor.errors import InvalidRequest
from stentor.graphs.exactness import adds_exactly
from stentor.host.installed import pip_install
from stentor.host.machine import MPS_CONTROL, cpus
from stentor.host.onnx_runtime import onnxruntime
from stentor.models import families
from stentor.output import player

SENTENCE = "The quick brown fox jumps over the lazy dog near the old stone bridge."
EXTRAS = {
    "serve": ("server", ("fastapi", "uvicorn", "av")),
    "mp3, opus": ("audio", ("av",)),
    "replicas": ("ray", ("ray",)),
    "traces": ("traces", ("opentelemetry-sdk", "opentelemetry-exporter-otlp-proto-http")),
    "announce": ("zeroconf", ("zeroconf",)),
    "bench": ("bench", ("aiohttp",)),
}
"""Purposes, each with the extra that serves it and distributions that come with that."""


def run(model: str | None) -> int:
    """Print facts about the machine and time one sentence. Returns 0 if the model speaks, else 1
    with the reason, or 2 if there is no such model."""
    print(f"stentor   {stentor.__version__}")
    print(f"python    {platform.python_version()} on {platform.platform(terse=True)}")
    print(f"cpu       {_count(cpus(), 'core')}")
    print(f"onnx      onnxruntime {onnxruntime.__version__}, {_products()}")
    for line in _torch():
        print(line)
    print(f"play      {_play()}")
    for purpose, (extra, packages) in EXTRAS.items():
        missing = [p for p in packages if not _installed(p)]
        if missing:
            state = f"not installed: {', '.join(missing)}; {pip_install(extra)}"
        else:
            state = "ready"
        print(f"{purpose:9s} {state}")
    for line in _families():
        print(f"families  {line}")
    status = _speak(model)
    if status or model is None or not _installed("uvicorn"):
        return status
    return _serve(model)


def _families() -> Iterator[str]:
    """One line for each package that brings families, and one for each problem."""
    all_families = families.families()
    for origin in dict.fromkeys(f.origin for f in all_families):
        yield f"{', '.join(f.name for f in all_families if f.origin == origin)} (from {origin})"
    yield from (f"{f.name} cannot be used: {f.problem}" for f in all_families if f.problem)
    yield from (f"refused, because names clash: {clash}" for clash in families.clashes())


def _products() -> str:
    """How the built-in voice's products run on this CPU."""
    if adds_exactly():
        return "products of 8 bits"
    return "products in float32: this CPU does not add those of 8 bits exactly"


def _torch() -> Iterator[str]:
    """Lines about torch and its device, or the line that installs it."""
    if find_spec("torch") is None:
        need = "not installed: nearly every model but the built-in voice needs it"
        yield f"torch     {need}; {pip_install('torch')}"
        return
    import torch

    from stentor.engine.running.device import Device, pick_device
    from stentor.kernels.gpus import known

    yield f"torch     {torch.__version__}, {_count(torch.get_num_threads(), 'thread')}"
    device = Device(pick_device("auto"))
    free = device.free_bytes()
    room = "" if free is None else f", {free / 2**30:.1f} GiB free"
    yield f"device    {device.describe()}{room}"
    yield f"gpu       {known(device.describe(), device.compute_capability())}"
    yield f"cuda      {_cuda(torch.version.cuda, device.compute_capability())}"
    if device.cuda:
        yield f"mps       {_mps()}"


def _cuda(version: str | None, capability: int | None) -> str:
    """Whether models run on a GPU, or the line that adds what is missing. version: of CUDA, for
    which torch was built."""
    if version is None:
        # a CPU build satisfies the range. The default index has builds for CUDA
        line = f"pip uninstall -y torch && {pip_install('cuda')}"
        return f"this torch is a CPU build; for an NVIDIA GPU: {line}"
    if capability is None:
        return "torch finds no GPU: nvidia-smi says whether the driver is there"
    if _installed("triton"):
        return "ready"
    return f"not installed: triton; {pip_install('cuda')}"


def _mps() -> str:
    """Whether models can share a GPU without taking turns."""
    if shutil.which(MPS_CONTROL) is None:
        return f"not installed: {MPS_CONTROL} of the NVIDIA driver; models on one GPU take turns"
    return "ready: several models run on one GPU at the same time"


def _play() -> str:
    """Whether `say --play` has something to play on, or what is missing."""
    try:
        player.library()
    except InvalidRequest as e:
        return e.message
    return "ready"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" + "s" * (number != 1)


def _installed(package: str) -> bool:
    try:
        importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return False
    return True


def _serve(model: str) -> int:
    """Speak through a server of the model as users run it, streamed and whole. Returns 0 or 1."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "stentor", "serve", model, "--port", str(port)]
    environment = {k: v for k, v in os.environ.items() if not k.startswith("STENTOR_")}
    with (
        tempfile.TemporaryDirectory() as voices,
        subprocess.Popen(
            [*command, "--voices-dir", voices],
            env=environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        ) as server,
    ):
        try:
            seconds = [_served(server, port, stream) for stream in (True, False)]
        except OSError as e:
            print(f"server    no: {e}")
            return 1
        finally:
            server.terminate()
    streamed, complete = seconds
    print(f"server    {streamed:.2f} s of audio streamed, {complete:.2f} s in a whole answer")
    return 0


def _served(server: subprocess.Popen[bytes], port: int, stream: bool) -> float:
    """Seconds of audio of one answer. Raises OSError if there is none."""
    url = f"http://127.0.0.1:{port}"
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # none for this machine
    while True:
        if server.poll() is not None:
            raise OSError(f"it ended with status {server.returncode}")
        try:
            with opener.open(f"{url}/ready"):
                break
        except OSError:  # it still loads the model
            time.sleep(0.1)
    body = {"input": SENTENCE, "seed": 0, "response_format": "pcm", "stream": stream}
    headers = {"Content-Type": "application/json"}
    request = urllib.request.Request(f"{url}/v1/audio/speech", json.dumps(body).encode(), headers)
    try:
        with opener.open(request) as answer:
            return len(answer.read()) / 2 / int(answer.headers["x-sample-rate"])
    except http.client.HTTPException as e:
        raise OSError(f"its {'stream' if stream else 'answer'} broke off: {e!r}") from None


def _speak(model: str | None) -> int:
    started = time.perf_counter()
    try:
        with stentor.TTS(model, max_num_seqs=1) as tts:
            loaded = time.perf_counter()
            first = 0.0
            seconds = 0.0
            for chunk in tts.stream(SENTENCE, seed=0):
                first = first or time.perf_counter() - loaded
                seconds += chunk.duration
            took = time.perf_counter() - loaded
            print(f"sizes     {tts.engine.sizes.describe()}")
            if model is None:
                name = "built-in voice"
            else:
                name = model
            print(
                f"speech    {name}: load {loaded - started:.2f} s, first audio {first:.2f} s, "
                f"{seconds:.2f} s of audio in {took:.2f} s, RTF {took / max(seconds, 1e-9):.2f}"
            )
    except stentor.StentorError as e:
        print(f"speech    no: {e}")
        if isinstance(e, stentor.ModelNotFound):
            return 2
        return 1
    return 0
