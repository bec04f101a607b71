"""Every kernel compiles for a Hopper GPU, on any machine, within the shared memory that such a GPU has.

The interpreter (test_kernels.py) accepts more than the compiler does.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

if importlib.util.find_spec("triton") is None:
    pytest.skip("Triton is not installed (pip install stentor[cuda])", allow_module_level=True)


def test_every_kernel_compiles_for_the_gpu():
    script = Path(__file__).with_name("compile_kernels.py")
    path = os.pathsep.join([str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "PYTHONPATH": path, "TRITON_INTERPRET": "0"}
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stderr[-3000:]
    assert len(done.stdout.splitlines()) >= 20
