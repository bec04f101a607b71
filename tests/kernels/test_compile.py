"""Every kernel compiles for a Hopper GPU, on any machine, within the shared memory that such a GPU has.

Triton's interpreter, in which the other tests run on a CPU, accepts more than the compiler does.
"""

from __future__ import annotations

import importlib.util

import pytest

from tests.helpers.child import python

if importlib.util.find_spec("triton") is None:
    pytest.skip("Triton is not installed (pip install stentor[cuda])", allow_module_level=True)


def test_every_shared_kernel_compiles_for_the_gpu():
    done = python("-m", "tests.kernels.compile_kernels", TRITON_INTERPRET="0")
    assert done.returncode == 0, done.stderr[-3000:]
    assert len(done.stdout.splitlines()) >= 100
