"""One server for all tests of a process that do not disturb it, and one with the built-in voice."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.helpers.patience import STUCK_S
from tests.helpers.server_live import LOCAL, PROCESS, Live, process, processes, serving
from tests.helpers.server_remote import URL, VOICE, remote, why_not

HERE = Path(__file__).parent


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """With STENTOR_TEST_URL, only tests of the server that runs there."""
    if URL in os.environ:
        asks = _of_embedded_voice if VOICE in os.environ else _of_live
        out = [item for item in items if HERE in item.path.parents and not asks(item)]
        items[:] = [item for item in items if item not in out]
        config.hook.pytest_deselected(items=out)
        for item in items:
            if (why := why_not(item)) is not None:
                item.add_marker(pytest.mark.skip(reason=why))


def _of_live(item: pytest.Item) -> bool:
    """Whether a test asks the server of this file, wherever its engine is."""
    made = item.session._fixturemanager.getfixturedefs("live", item)
    ours = (
        "live" in getattr(item, "fixturenames", ())
        and made is not None
        and made[-1].func is live.__wrapped__
    )
    where = getattr(item, "callspec", None)
    return ours and (where is None or where.params.get("live") != PROCESS)


def _of_embedded_voice(item: pytest.Item) -> bool:
    return "embedded_voice" in getattr(item, "fixturenames", ())


@pytest.fixture(scope="session")
def live(request: pytest.FixtureRequest) -> Live:
    """Its engine is in this process, unless the test is marked `either_engine`."""
    found: Live = request.getfixturevalue(
        "live_apart" if getattr(request, "param", LOCAL) == PROCESS else "live_here"
    )
    return found


@pytest.fixture(scope="session")
def live_here(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    if (url := os.environ.get(URL)) is not None:
        with remote(url) as replicas:
            yield replicas
        return
    with serving(tmp_path_factory.mktemp("live") / "voices", request_timeout=STUCK_S) as running:
        yield running


@pytest.fixture(scope="session")
def live_apart(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    """A server as `stentor serve` runs it: its engine is in a process of its own."""
    settings = {"memory_gb": 0.01, "max_num_seqs": 8, "threads": 1, "request_timeout": STUCK_S}
    with serving(
        tmp_path_factory.mktemp("apart") / "voices", start=processes, **settings
    ) as running:
        yield running


@pytest.fixture(scope="module")
def embedded_voice(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of `stentor serve`, as a user first types it."""
    if (url := os.environ.get(URL)) is not None:
        yield url
        return
    flags = ("--voices-dir", str(tmp_path_factory.mktemp("voices")), "--memory-gb", "0.1")
    with process(*flags, model=()) as (_, found):
        yield found
