"""Servers whose model knows the times of words, and whose words nothing can time."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.helpers.server_live import Live, serving, toy


@pytest.fixture(scope="module")
def words(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    with serving(tmp_path_factory.mktemp("voices"), toy(kind="dummy:toy-words")) as live:
        yield live


@pytest.fixture(scope="module")
def deaf(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    with serving(tmp_path_factory.mktemp("voices"), toy(languages=("german",))) as live:
        yield live
