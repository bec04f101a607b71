"""One server for all tests of a process that do not disturb it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.helpers.patience import STUCK_S
from tests.helpers.server_live import Live, serving


@pytest.fixture(scope="session")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    with serving(tmp_path_factory.mktemp("voices"), request_timeout=STUCK_S) as running:
        yield running
