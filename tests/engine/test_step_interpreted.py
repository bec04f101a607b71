"""Whole steps, kernels interpreted on a CPU, give what the formulas give: prefill and decode of every family."""

from __future__ import annotations

import importlib.util
import json

import numpy as np
import pytest

from tests.helpers.child import python

if importlib.util.find_spec("triton") is None:
    pytest.skip("Triton is not installed (pip install stentor[cuda])", allow_module_level=True)


@pytest.mark.slow
def test_a_prefill_and_a_step_of_every_family_are_the_same_with_kernels_and_without():
    done = python("-m", "tests.helpers.interpreted", TRITON_INTERPRET="1", STENTOR_KERNELS_OFF="")
    assert done.returncode == 0, done.stderr[-3000:]
    for family, made in json.loads(done.stdout.splitlines()[-1]).items():
        fused, plain = (np.asarray(frames) for frames in made)
        assert len(plain) == 2
        assert np.ptp(plain[0]) > 0, f"{family}: frames that say something"
        assert fused.shape == plain.shape
        if plain.dtype.kind == "f":
            np.testing.assert_allclose(fused, plain, atol=1e-4, err_msg=family)
        else:
            assert np.array_equal(fused, plain), f"{family}: {fused} {plain}"
