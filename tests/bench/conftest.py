"""What the benchmark's tests share."""

import asyncio

import pytest

pytest.importorskip("aiohttp", reason="the extra `bench` is not installed")


@pytest.fixture
def attempts():
    """Run a timing check up to three times.

    The figures are compared with the fake server's own time stamps, so sleeping too long does not matter; but a
    scheduler that takes the core away between the server's stamp and the client's does, and on a machine shared
    with other work it now and then does for more than 5 ms. A wrong definition fails every time.
    """

    def run(check):
        for attempt in range(3):
            try:
                return asyncio.run(check())
            except AssertionError:
                if attempt == 2:
                    raise
        return None

    return run
