"""Shared by all tests: one torch thread per worker (the suite runs in parallel), and the gpu marker's skip."""

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
