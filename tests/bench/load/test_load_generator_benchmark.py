"""The benchmark of the load generator runs, and every stream is complete. Its figures are in docs/benchmarking.md."""

import sys

import pytest


@pytest.mark.skipif(
    not sys.platform.startswith("linux"),
    reason="pins processes to cores and reads /proc: Linux only",
)
def test_every_byte_of_many_concurrent_streams_arrives():
    from benchmarks.server import load_generator

    row = load_generator.measure(streams=100, seconds=1.0, together=False)
    print(load_generator.table(row))
    assert row["completed"] == 100
