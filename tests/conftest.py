"""Shared by all tests: one torch thread per worker (the suite runs in parallel), the gpu marker's skip, the fixture of
kernels' tests, what hypothesis does, what the garbage collector need not visit, and the order of the files.

Hypothesis makes the same examples every time, and no example is too slow: a run of the suite fails for a change of the
code, never for its luck or for a busy machine. `pytest --hypothesis-profile=search` looks elsewhere each time.
"""

import gc
import os
from collections import Counter
from collections.abc import Iterator

import pytest
import torch
from hypothesis import HealthCheck, settings

settings.register_profile("search", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("same", settings.get_profile("search"), derandomize=True)
settings.load_profile("same")
os.environ.setdefault("STENTOR_CONFIG", "")  # not the defaults of whoever runs the tests
gc.disable()  # until all tests are known: what is imported stays


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup() -> None:
    """The number that a thread sets is that of all threads that begin later: an engine of one test, those of others."""
    torch.set_num_threads(1)


def pytest_collection_finish() -> None:
    """Half a million objects of modules and tests live to the end: a collection of garbage need not visit them."""
    gc.freeze()
    gc.enable()


SWEEPS = (
    "tests/gpu",
    "tests/kernels",  # in an interpreter
    "tests/ray",
    "tests/server/web",  # in a browser
    "tests/voice",  # by a recogniser
    "tests/test_docs_blocks.py",
    "tests/server/test_deployment.py",
    "tests/engine/test_chunked_prefill.py",  # each mechanism with each family, which tests/parity does together
    "tests/engine/test_prefix_cache.py",
    "tests/engine/test_launcher.py",
    "tests/bench",
    "tests/helpers",  # tests of the tests' own helpers
    "tests/scripts/test_release.py",  # builds a wheel and an sdist
    "tests/scripts/test_replica_tests.py",
    "tests/server/engines/test_faults.py",  # processes that are killed or stuck
    "tests/server/test_stuck_clients.py",
)
"""Left to `scripts/test --all`, with all that is marked `slow`, where no path is named."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--all", action="store_true", help="run the slow tests and the sweeps too, as CI does"
    )


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Workers take whole files in this order: slow ones first and small ones last, so that none waits long at the end."""
    if not config.getoption("all") and config.args_source is not pytest.Config.ArgsSource.ARGS:
        swept = tuple(str(config.rootpath / path) for path in SWEEPS)
        left = {i for i in items if i.get_closest_marker("slow") or str(i.path).startswith(swept)}
        items[:] = [item for item in items if item not in left]
    slow = {item.path for item in items if item.get_closest_marker("slow")}
    tests = Counter(item.path for item in items)
    items.sort(key=lambda item: (item.path not in slow, -tests[item.path]))
    if not torch.cuda.is_available():
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
