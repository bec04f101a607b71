"""Helpers of kernels' tests: they run on a GPU as they are, elsewhere in Triton's interpreter.

Import this module before any module with kernels: without a GPU it imports all of them interpreted. The fixture
`kernel_test` (tests/conftest.py) runs a test like that.
"""

from __future__ import annotations

import importlib
import os
from importlib.util import find_spec
from pkgutil import iter_modules

import pytest
import torch
from torch import Tensor

from stentor import (
    kernels,
)  # reads TRITON_INTERPRET before it is set here: kernels serve no other test

if find_spec("triton") is None:
    pytest.skip("Triton is not installed (pip install stentor[cuda])", allow_module_level=True)

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
DTYPES = [torch.float32, torch.bfloat16]
DOTS = DTYPES if DEVICE == "cuda" else [torch.float32]  # interpreted, tl.dot has no bfloat16
TOLERANCE = {
    torch.float32: 2e-5,
    torch.bfloat16: 1.2e-2 if DEVICE == "cuda" else 3e-2,
}  # the interpreter truncates
FAMILIES = ("cosyvoice3", "fish_s2", "kokoro", "vibevoice", "voxcpm2")
COSYVOICE = ("attention_kernels", "live_text_kernels")
MORE = (
    "stentor.models.dots_tts.codec_kernels",
    "stentor.models.kokoro.lstm_kernels",
    *(f"stentor.models.cosyvoice3.{m}" for m in COSYVOICE),
)


def _interpret() -> None:
    """Import the kernels interpreted, and prepare the interpreter."""
    os.environ["TRITON_INTERPRET"] = "1"
    own = (m.name for m in iter_modules(kernels.__path__, "stentor.kernels.") if not m.ispkg)
    for name in (*own, *(f"stentor.models.{f}.kernels" for f in FAMILIES), *MORE):
        importlib.import_module(name)
    os.environ.pop("TRITON_INTERPRET")
    from tests.helpers.interpreter import prepare

    prepare()


if DEVICE == "cpu":
    _interpret()


def close(got: Tensor, want: Tensor) -> None:
    """Equal in dtype and shape, and to the tolerance of the dtype in value."""
    assert got.dtype == want.dtype
    assert got.shape == want.shape
    error = (got.float() - want.float()).norm() / want.float().norm()
    assert error <= TOLERANCE[want.dtype], error


def random(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(*shape, device=DEVICE).to(dtype)


def integers(*values: int) -> Tensor:
    return torch.tensor(values, device=DEVICE)
