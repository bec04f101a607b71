"""One browser for all tests of the page in a process."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.helpers.chromium_page import Page, opened


@pytest.fixture(scope="session")
def tab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    with opened(tmp_path_factory.mktemp("chromium")) as page:
        yield page
