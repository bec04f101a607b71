"""Run a CUDA C++ kernel of this tree on a CPU: its own source, compiled by g++ with the emulator's `device.cuh`."""

from __future__ import annotations

import ctypes
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path

from stentor.kernels.cuda_cpp.launch import SOURCES, defines

EMULATOR = Path(__file__).parents[1] / "kernels" / "emulator"


def emulated(
    file: Path, macros: Mapping[str, int | str], folder: Path
) -> Callable[[tuple[int, int], int, ctypes.Structure], None]:
    """A function that launches the kernel of a file with a grid, bytes of shared memory and arguments."""
    header = folder / "macros.h"
    header.write_text(defines({"PDL": 0, **macros}))
    library = folder / "kernel.so"
    command = [
        "g++", "-O1", "-w", "-std=c++17", "-shared", "-fPIC", f"-I{EMULATOR}", f"-I{SOURCES}", "-include", str(header),
        f'-DSOURCE="{file}"', f"-DLAUNCH={file.stem}", str(EMULATOR / "run.cpp"), "-o", str(library),
    ]  # fmt: skip
    subprocess.run(command, check=True)
    loaded = ctypes.CDLL(str(library))

    def launch(grid: tuple[int, int], shared_bytes: int, arguments: ctypes.Structure) -> None:
        loaded.launch(ctypes.byref(arguments), *grid, shared_bytes)

    return launch
