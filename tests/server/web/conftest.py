"""One browser for all tests of the page in a process, and the page of the server that they share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.helpers.chromium_page import Page, opened
from tests.helpers.served_page import READY
from tests.helpers.server_live import Live


@pytest.fixture(scope="session")
def tab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    with opened(tmp_path_factory.mktemp("chromium")) as page:
        yield page


@pytest.fixture
def page(tab: Page, live: Live) -> Page:
    tab.resize(1280, 800)
    tab.open(live.url, READY)
    return tab
