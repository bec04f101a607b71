"""Facts about a run: this machine, its GPU during the load, and the server's own description."""

import asyncio
import platform
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path
from subprocess import DEVNULL, Popen
from typing import Any
from urllib.parse import urlsplit

import aiohttp

from stentor.host.machine import cpus, memory

_GPU_FIELDS = {
    "memory.total": "memory_total_mib",
    "memory.used": "memory_used_mib",
    "clocks.sm": "sm_clock_mhz",
    "clocks.mem": "memory_clock_mhz",
    "power.draw": "power_w",
    "temperature.gpu": "temperature_c",
}
"""Questions to `nvidia-smi`, and names of the answers. Its name and driver come before them."""
_ASKED = ("name", "driver_version", *_GPU_FIELDS)
_SERVER_PATHS = ("/version", "/info", "/model_info", "/v1/models", "/health")
_LARGEST_ANSWER = 20_000


def client_facts() -> dict[str, Any]:
    """The machine that measures: processor, memory, versions. No host or user name."""
    total = memory()
    packages = ("stentor", "torch", "numpy", "aiohttp")
    return {
        "platform": platform.platform(),
        "python": platform.python_version(),
        "processor": _processor(),
        "cores": cpus(),
        "memory_gb": None if total is None else round(total / 2**30, 1),
        "packages": {name: version for name in packages if (version := _version(name))},
    }


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    return next(
        (line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")),
        platform.processor(),
    )


def is_local(base_url: str) -> bool:
    """Whether the server runs on this machine, so that this machine's GPU is the server's."""
    return urlsplit(base_url).hostname in ("localhost", "127.0.0.1", "::1", "0.0.0.0")


async def server_facts(session: aiohttp.ClientSession, base_url: str) -> dict[str, Any]:
    """The server's own pages (version, model, engine), by path. A page that does not answer is left
    out."""
    answers = await asyncio.gather(
        *(_ask(session, base_url.rstrip("/") + path) for path in _SERVER_PATHS)
    )
    return {
        path: answer
        for path, answer in zip(_SERVER_PATHS, answers, strict=True)
        if answer is not None
    }


async def _ask(session: aiohttp.ClientSession, url: str) -> Any:
    try:
        async with session.get(url, timeout=aiohttp.ClientTimeout(total=5)) as response:
            if response.status != 200 or response.content_type != "application/json":
                return None
            if (response.content_length or 0) > _LARGEST_ANSWER:
                return None
            return await response.json()
    except (aiohttp.ClientError, TimeoutError, ValueError):
        return None


@contextmanager
def gpu_watch(
    local: bool = True, program: str = "nvidia-smi"
) -> Iterator[Callable[[], dict[str, Any]]]:
    """Sample this machine's GPUs while the block runs. The yielded function returns
    `{"gpus": [...]}` so far.

    Per GPU: name, driver, and the range of memory, clocks, power and temperature seen. One
    `nvidia-smi` process samples once a second into a file, so that it costs the load generator
    nothing. The function returns {} where there is no such program, no GPU, or it is not `local`
    (the server runs elsewhere).
    """
    path = shutil.which(program)
    if path is None or not local:
        yield dict
        return
    query = [
        path,
        f"--query-gpu=index,{','.join(_ASKED)}",
        "--format=csv,noheader,nounits",
        "-l",
        "1",
    ]
    with tempfile.NamedTemporaryFile("w", encoding="utf-8") as file:
        watcher = Popen(query, stdout=file, stderr=DEVNULL)
        try:
            yield lambda: _gpus(Path(file.name).read_text(encoding="utf-8"))
        finally:
            watcher.terminate()
            watcher.wait()


def _gpus(text: str) -> dict[str, Any]:
    samples: dict[str, list[list[str]]] = {}
    for row in text.splitlines():
        cells = [cell.strip() for cell in row.split(",")]
        if len(cells) == len(_ASKED) + 1 and cells[0].isdigit():
            samples.setdefault(cells[0], []).append(cells[1:])
    if samples:
        return {"gpus": [_gpu(index, rows) for index, rows in sorted(samples.items())]}
    return {}


def _gpu(index: str, rows: list[list[str]]) -> dict[str, Any]:
    columns = dict(zip(_ASKED, zip(*rows, strict=True), strict=True))
    gpu: dict[str, Any] = {
        "index": int(index),
        "name": columns["name"][0],
        "driver": columns["driver_version"][0],
    }
    for field, key in _GPU_FIELDS.items():
        values = [float(cell) for cell in columns[field] if cell.replace(".", "", 1).isdigit()]
        if values:
            gpu[key] = (
                max(values) if field == "memory.total" else {"min": min(values), "max": max(values)}
            )
    return gpu
