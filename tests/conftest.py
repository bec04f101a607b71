"""Shared by all tests: one torch thread per worker (the suite runs in parallel), the gpu marker's skip, and the fixture
of kernels' tests."""

from collections.abc import Iterator

import pytest
import torch

torch.set_num_threads(1)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if torch.cuda.is_available():
        return
    skip = pytest.mark.skip(reason="needs a CUDA device; torch sees none")
    for item in items:
        if item.get_closest_marker("gpu"):
            item.add_marker(skip)


@pytest.fixture
def kernel_test(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """In inference mode and with the same random numbers every time; without a GPU, kernels are interpreted."""
    if not torch.cuda.is_available():
        monkeypatch.setenv("TRITON_INTERPRET", "1")
    torch.manual_seed(7)
    with torch.inference_mode():
        yield
