"""A pytest plugin: tensors that tests and kernels make lie between canaries, and a test in which one died fails.

python -m pytest -p tests.helpers.guarded tests/kernels/test_paged_attention.py

The canaries are bytes of 0xFF, which read as NaN or -1: what a kernel reads beyond its tensors shows in its result, and
what it writes there is found after the test. For machines on which compute-sanitizer does not run.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

BYTES = 4096  # on either side
MAKERS = (
    "empty",
    "empty_like",
    "zeros",
    "zeros_like",
    "ones",
    "full",
    "full_like",
    "rand",
    "randn",
    "arange",
)


class Guard:
    """Makes guarded tensors and remembers what surrounds them."""

    def __init__(self) -> None:
        self.held: list[
            tuple[Tensor, int]
        ] = []  # bytes with their canaries, and how many are inside

    def around(self, value: Tensor) -> Tensor:
        """A copy of `value`, contiguous if it was, between canaries."""
        plain = value.is_contiguous() and value.device.type != "meta" and not value.is_pinned()
        if not plain or value.dtype == torch.bool or value.layout != torch.strided:
            return value
        size = value.numel() * value.element_size()
        whole = torch.Tensor.new_full(
            value.new_zeros(0, dtype=torch.uint8), (size + 2 * BYTES,), 255
        )
        inside = whole[BYTES : BYTES + size].view(value.dtype).view(value.shape)
        inside.copy_(value)
        self.held.append((whole, size))
        return inside

    def check(self) -> int:
        """How many there were. AssertionError if one is surrounded by anything but what was put there."""
        for whole, size in self.held:
            assert bool((whole[:BYTES] == 255).all()), f"written before a tensor of {size} bytes"
            assert bool((whole[BYTES + size :] == 255).all()), (
                f"written behind a tensor of {size} bytes"
            )
        return len(self.held)


def guarded(make: Callable[..., Tensor], guard: Guard) -> Callable[..., Tensor]:
    def made(*args: Any, **kwargs: Any) -> Tensor:
        value = make(*args, **kwargs)
        return guard.around(value) if math.prod(value.shape) else value

    return made


@pytest.fixture(autouse=True)
def _guarded(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    guard = Guard()
    with torch.device(
        "cpu"
    ):  # on first use torch lists the makers that such a block concerns: as they are now
        torch.empty(0)
    for name in MAKERS:
        monkeypatch.setattr(torch, name, guarded(getattr(torch, name), guard))
    yield
    monkeypatch.undo()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    guard.check()
