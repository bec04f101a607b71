"""A test of replicas that fails shows the ends of Ray's logs: CI keeps nothing else of them."""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any

import pytest

LOGS: dict[str, Callable[[Any], str]] = {  # by the fixture that has started Ray
    "cluster": lambda made: made.running.told(),
    "node": lambda made: made.place.logs(),
}


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Function,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.failed:
        made = {name: value for name, value in item.funcargs.items() if name in LOGS}
        report.sections += [(f"Ray of {name}", LOGS[name](value)) for name, value in made.items()]
    return report
