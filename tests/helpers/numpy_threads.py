"""Threads of numpy's matrix products in this process."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from threadpoolctl import threadpool_info, threadpool_limits


def counts() -> list[int]:
    """Threads of each library with numpy's products."""
    return [
        library["num_threads"] for library in threadpool_info() if "numpy" in library["filepath"]
    ]


@contextmanager
def two_before() -> Iterator[None]:
    """Two threads at first. At the end as many as there were."""
    with threadpool_limits(2, "blas"):
        if not counts():
            pytest.skip("nobody can set the threads of this numpy's products")
        yield
