"""Where pip should take torch from. Prints the address of an index, or nothing if pip is to look
where it always does.

PyTorch has one index per build: for the CPU, and for each version of CUDA. The plain registry has
one build of torch for Linux, which brings 3 GB of CUDA libraries. So the CPU build is taken from
PyTorch's own index, or on a machine with a GPU the build for the newest CUDA that its driver runs.
An environment that names an index or links of its own wins, and where PyTorch's index does not
answer within a few seconds pip looks where it always does. What was chosen and why goes to standard
error.

Run by scripts/environment: python scripts/torch_index.py 2.13.0
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Callable

INDEX = "https://download.pytorch.org/whl"
SECONDS = 5.0  # for each answer of the index
CUDA = ("132", "130", "129", "128", "126")  # builds that may exist, the newest first
OWN = re.compile(r"^\S*\b(index-url|extra-index-url|find-links|no-index)=", re.MULTILINE)


def own_index(configuration: str) -> bool:
    """Whether `pip config list`, which also shows PIP_* of the environment, names an index or
    links."""
    return OWN.search(configuration) is not None


def driver_cuda(table: str) -> int | None:
    """The newest CUDA that the driver runs, such as 130 for 13.0, from what nvidia-smi prints. None
    without a GPU."""
    version = re.search(r"CUDA Version: (\d+)\.(\d+)", table)
    return None if version is None else 10 * int(version.group(1)) + int(version.group(2))


def choose(
    version: str, cuda: int | None, has: Callable[[str], bool], index: str = INDEX
) -> tuple[str, str]:
    """(address of the index or "", why). `has(address)`: whether the index there has this version
    of torch."""
    builds = ["cpu"] if cuda is None else [f"cu{c}" for c in CUDA if int(c) <= cuda]
    for build in builds:
        try:
            if has(f"{index}/{build}"):
                return f"{index}/{build}", f"the build {build} of PyTorch's index"
        except OSError as e:
            return "", f"pip's own index: PyTorch's index does not answer ({e})"
    return (
        "",
        f"pip's own index: PyTorch's has no torch {version} for {' or '.join(builds) or f'CUDA {cuda}'}",
    )


def listed(version: str) -> Callable[[str], bool]:
    """`has` for `choose`: one look at the index's page, without another try."""

    def has(address: str) -> bool:
        try:
            with urllib.request.urlopen(f"{address}/torch/", timeout=SECONDS) as page:
                return f"torch-{version}" in page.read().decode("utf-8", "replace")
        except urllib.error.HTTPError:
            return False

    return has


def _output(*command: str) -> str:
    """Output of a command, or "" if it fails."""
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout


def main() -> None:
    version = sys.argv[1]
    if own_index(_output(sys.executable, "-m", "pip", "config", "list")):
        address, why = "", "the index or links that this environment names"
    else:
        table = _output("nvidia-smi") if shutil.which("nvidia-smi") else ""
        address, why = choose(version, driver_cuda(table), listed(version))
    print(why, file=sys.stderr)
    print(address)


if __name__ == "__main__":
    main()
