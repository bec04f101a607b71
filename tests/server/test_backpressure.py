"""Work that ends with its connection."""

from __future__ import annotations

import asyncio
import gc
from typing import Any

import pytest

from stentor.server.backpressure import run_while_connected
from stentor.server.errors import invalid


def test_work_that_fails_while_its_session_ends_is_no_error_of_the_server() -> None:
    """Wrong settings of a session that is closed at the same time are such work."""
    told: list[dict[str, Any]] = []

    async def fails() -> None:
        raise invalid("cleanup", "must be another")

    async def receive() -> Any:
        await asyncio.Event().wait()

    async def main() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda loop, found: told.append(found))
        session = asyncio.create_task(run_while_connected(fails(), receive, 9.0, asyncio.Event()))
        await asyncio.sleep(0)  # it has begun
        session.cancel()
        with pytest.raises(asyncio.CancelledError):
            await session
        del session
        gc.collect()

    asyncio.run(main())
    assert told == []
