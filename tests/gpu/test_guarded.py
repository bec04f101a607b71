"""The canaries around tensors: they find what is written outside, and kernels' tests run between them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from guarded import BYTES, Guard

HERE = Path(__file__).parent


@pytest.mark.parametrize("offset", [-1, 6])
def test_a_write_beside_a_tensor_is_found(offset):
    guard = Guard()
    inside = guard.around(torch.arange(6, dtype=torch.float32))
    inside += 1
    assert guard.check() == 1
    whole = guard.held[0][0]
    whole[BYTES : BYTES + 24].view(torch.float32)  # the tensor itself
    whole.view(torch.float32)[BYTES // 4 + offset] = 3.0
    with pytest.raises(AssertionError, match="written"):
        guard.check()


def test_kernels_write_only_where_they_should():
    """Some of the kernels' tests, between canaries; benchmarks/gpu_check.py runs all of them on a GPU."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "guarded", "-p", "no:cacheprovider"]
    command += ["tests/layers/test_kernels.py", "-k", "head_norms and 24-True or depth or local or gate"]
    path = os.pathsep.join([str(HERE), str(HERE.parents[1]), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        command,
        cwd=HERE.parents[1],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3000:]
    assert " passed" in done.stdout
