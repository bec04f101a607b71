"""The canaries around tensors: they find what is written outside, and kernels' tests run between them."""

from __future__ import annotations

import pytest
import torch

from tests.helpers.child import python
from tests.helpers.guarded import BYTES, Guard


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


DEVICE = """
import torch


def test_device():
    with torch.device('meta'):
        assert torch.empty(2).is_meta
"""


@pytest.mark.slow
def test_kernels_write_only_where_they_should_and_a_block_that_names_a_device_still_makes_tensors_there(
    tmp_path,
):
    """Some of the kernels' tests, between canaries, in a process of its own; tools/gpu_check.py runs all of them on a
    GPU. Modules made in such a block stayed on the CPU, and kernels refused their weights."""
    file = tmp_path / "test_device.py"
    file.write_text(DEVICE)
    files = (str(file), "tests/kernels/test_short_attention.py", "tests/kernels/test_norm_rope.py")
    chosen = "test_device or head_norms and 24-True or depth or local or gate"
    done = python(
        "-m",
        "pytest",
        "-q",
        "-p",
        "tests.helpers.guarded",
        "-p",
        "no:cacheprovider",
        *files,
        "-k",
        chosen,
    )
    assert done.returncode == 0, done.stdout[-3000:]
    assert " passed" in done.stdout
