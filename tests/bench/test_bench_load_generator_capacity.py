"""The load generator carries 500 streams on one core with most of that core to spare.

A short version of benchmarks/server/load_generator.py, whose full figures are under benchmarks/results/. Judged by processor
time and completeness, which do not depend on what else the machine does; delays are printed.
"""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2]))


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="pins processes to cores and reads /proc: Linux only")
def test_500_concurrent_streams_take_a_fraction_of_one_core():
    from benchmarks.server import load_generator

    row = load_generator.measure(streams=500, seconds=4.0, together=False)
    print(load_generator.table(row))
    assert row["completed"] == 500
    assert row["peak_concurrency"] >= 450
    assert row["client_cpu_of_one_core"] < 0.6
