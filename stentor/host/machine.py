"""CPUs and memory that this process may use: a container or a scheduler may allow less than the
machine has."""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Iterator
from pathlib import Path

from threadpoolctl import ThreadpoolController

GROUPS = Path("/sys/fs/cgroup")  # of version 2, which systemd and containers have
OWN_GROUP = Path("/proc/self/cgroup")
MPS_CONTROL = "nvidia-cuda-mps-control"  # a program of the NVIDIA driver


def cpus() -> int:
    """CPUs that this process may keep busy: those it may run on, or fewer where a control group has
    a quota."""
    if sys.platform == "linux":
        allowed = len(os.sched_getaffinity(0))
    else:
        allowed = os.cpu_count() or 1
    return min(
        [allowed, *(math.ceil(int(quota) / int(period)) for quota, period in _limits("cpu.max"))]
    )


def memory() -> int | None:
    """Bytes of memory that this process may take: the machine's, or fewer where a control group has
    a limit. None where the system does not report it."""
    try:
        total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, OSError, ValueError):  # Windows has no sysconf
        return None
    return min([total, *(int(limit) for [limit] in _limits("memory.max"))])


def one_thread_for_numpy() -> None:
    """Have each product of numpy in this process take one thread from now on. numpy must have been
    imported.

    The aligner multiplies small matrices for many streams, in several threads or processes. With a
    thread for each core of the machine they wait for each other: on 32 cores 64 streams stood
    still. torch's products keep their threads.
    """
    libraries = ThreadpoolController()
    paths = [library["filepath"] for library in libraries.info() if "numpy" in library["filepath"]]
    libraries.select(filepath=paths).limit(limits=1)


def _limits(name: str) -> Iterator[list[str]]:
    """Yield the words of a limit of this process's control group and of each around it, where it
    limits anything."""
    try:
        lines = OWN_GROUP.read_text(encoding="utf-8").splitlines()
    except OSError:
        return
    group_path = next((line.removeprefix("0::/") for line in lines if line.startswith("0::/")), "")
    for group in (Path(group_path), *Path(group_path).parents):
        try:
            words = (GROUPS / group / name).read_text(encoding="ascii").split()
        except OSError:  # the root has no limits
            continue
        if words and words[0] != "max":
            yield words


def has_nvidia_gpu() -> bool:
    """Whether the system has a device file of an NVIDIA GPU. Asking CUDA would import torch."""
    dev = Path("/dev")
    return (dev / "dxg").exists() or any(dev.glob("nvidia[0-9]*"))
