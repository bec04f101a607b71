"""Run the built-in voice on CPUs that this machine does not have, in an emulator.

The run shows which products it chooses there, and whether its samples are right.

    python scripts/emulated_cpus.py --json FILE

Speed in an emulator means nothing, so none is measured. Needs an x86-64 Linux, `qemu-user-static`,
`debootstrap` and root. It takes some minutes and 600 MB below the temporary folder.

onnxruntime of the emulated aarch64 is 1.27: 1.32 reads the topology of caches from /sys, which is
that of the x86 host there, and does not survive it.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).parents[1]
TEXT = "Hello there."
SEED = 3
X86 = {"AVX2 without VNNI": "Haswell"}
AARCH64 = {"aarch64 with dot products": "neoverse-n1", "aarch64 without": "cortex-a72"}
RELEASE = "bookworm"
MIRROR = "http://deb.debian.org/debian"
PYTHON = "3.11"  # of that release
ONNXRUNTIME = "onnxruntime==1.27.0"
PLATFORMS = ("manylinux_2_28_aarch64", "manylinux_2_27_aarch64", "manylinux_2_17_aarch64")
SPEAK = f"""
import json, sys
import numpy as np
import onnxruntime
import stentor
from stentor.graphs.exactness import adds_exactly

folder = sys.argv[1]
for dtype in ("auto", "float32"):
    with stentor.TTS(device="cpu", dtype=dtype, threads=1) as tts:
        np.save(f"{{folder}}/{{dtype}}.npy", tts.generate({TEXT!r}, seed={SEED}).samples)
print(json.dumps({{"adds_exactly": adds_exactly(), "onnxruntime": onnxruntime.__version__}}))
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path, required=True)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        expected = spoken([sys.executable], folder / "native", {})
        rows = [{"cpu": "this machine", **expected.facts}]
        for label, cpu in X86.items():
            command = ["qemu-x86_64-static", "-cpu", cpu, sys.executable]
            rows.append(row(label, spoken(command, folder / cpu, {}), expected))
        system, environment = aarch64(folder)
        for label, cpu in AARCH64.items():
            python = str(system / "usr/bin" / f"python{PYTHON}")
            command = ["qemu-aarch64-static", "-cpu", cpu, python]
            rows.append(row(label, spoken(command, folder / cpu, environment), expected))
    args.json.write_text(json.dumps({"text": TEXT, "seed": SEED, "cpus": rows}, indent=1) + "\n")
    print(args.json.read_text())


class Speech:
    """Samples of each dtype that a CPU made, and facts about it."""

    def __init__(self, facts: dict[str, Any], samples: dict[str, np.ndarray]) -> None:
        self.facts = facts
        self.samples = samples


def spoken(python: list[str], folder: Path, environment: dict[str, str]) -> Speech:
    """Speak by this command of Python."""
    folder.mkdir()
    process = subprocess.run(
        [*python, "-c", SPEAK, str(folder)],
        env={**os.environ, **environment},
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    )
    facts = json.loads(process.stdout.splitlines()[-1])
    return Speech(facts, {d: np.load(folder / f"{d}.npy") for d in ("auto", "float32")})


def row(label: str, speech: Speech, expected: Speech) -> dict[str, Any]:
    """A row of the report. float32_difference: of float32 samples, as a share of the peak."""
    samples = speech.samples["float32"]
    reference = expected.samples["float32"]
    return {
        "cpu": label,
        **speech.facts,
        "samples": len(samples),
        "float32_difference": float(np.abs(samples - reference).max() / np.abs(reference).max()),
        "auto_is_float32": bool(np.array_equal(speech.samples["auto"], samples)),
    }


def aarch64(folder: Path) -> tuple[Path, dict[str, str]]:
    """Python of Debian for aarch64 with what stentor needs, and the environment to run it."""
    system = folder / "system"
    command = ["debootstrap", "--arch=arm64", "--foreign", "--variant=minbase"]
    command += ["--include=python3,libgomp1", RELEASE, str(system), MIRROR]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    for package in (system / "var/cache/apt/archives").glob("*.deb"):
        subprocess.run(["dpkg", "-x", str(package), str(system)], check=True)
    packages = folder / "packages"
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    needed = [d for d in project["dependencies"] if not d.startswith("onnxruntime")]
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--target", str(packages)]
    command += ["--only-binary", ":all:", "--python-version", PYTHON]
    command += [word for platform in PLATFORMS for word in ("--platform", platform)]
    subprocess.run([*command, *needed, ONNXRUNTIME], check=True)
    paths = os.pathsep.join((str(packages), str(ROOT)))
    return system, {"QEMU_LD_PREFIX": str(system), "PYTHONPATH": paths}


if __name__ == "__main__":
    main()
