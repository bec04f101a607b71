"""Wyoming's announcement, read by another node of the loopback network as Home Assistant reads it."""

from __future__ import annotations

import asyncio

import pytest
from zeroconf import ServiceStateChange, Zeroconf
from zeroconf.asyncio import AsyncServiceBrowser, AsyncServiceInfo, AsyncZeroconf

from stentor.errors import InvalidRequest
from stentor.server.config import ServerConfig
from stentor.server.doors.discovery import SERVICE, announced
from tests.helpers.patience import STUCK_S

HERE = "127.0.0.1"


class Browser:
    """A node that looks for Wyoming services."""

    def __init__(self) -> None:
        self.changes: asyncio.Queue[tuple[str, ServiceStateChange]] = asyncio.Queue()
        self.node = AsyncZeroconf(interfaces=[HERE])
        self.browser = AsyncServiceBrowser(self.node.zeroconf, [SERVICE], handlers=[self.note])

    def note(
        self, zeroconf: Zeroconf, service_type: str, name: str, state_change: ServiceStateChange
    ) -> None:
        self.changes.put_nowait((name, state_change))

    async def wait_for(self, name: str, change: ServiceStateChange) -> None:
        while await asyncio.wait_for(self.changes.get(), STUCK_S) != (name, change):
            pass

    async def close(self) -> None:
        await self.browser.async_cancel()
        await self.node.async_close()


def test_the_port_is_announced_and_taken_back() -> None:
    async def run() -> None:
        name = f"a voice.{SERVICE}"
        browser = Browser()
        try:
            async with announced("a voice", HERE, 10200):
                await browser.wait_for(name, ServiceStateChange.Added)
                info = AsyncServiceInfo(SERVICE, name)
                assert await info.async_request(browser.node.zeroconf, 1000 * STUCK_S)
                assert (info.parsed_addresses(), info.port) == ([HERE], 10200)
            await browser.wait_for(name, ServiceStateChange.Removed)
        finally:
            await browser.close()

    asyncio.run(run())


@pytest.mark.parametrize(
    "fields",
    [
        {"host": "0.0.0.0"},
        {"host": "127.0.0.1", "wyoming_port": 10200},
        {"host": "0.0.0.0", "wyoming_port": 10200, "wyoming_zeroconf": ""},
        {"host": "0.0.0.0", "wyoming_port": 10200, "wyoming_zeroconf": "a.b"},
        {"host": "0.0.0.0", "wyoming_port": 10200, "wyoming_zeroconf": "x" * 64},
    ],
)
def test_an_announcement_that_nobody_could_follow_is_refused(fields: dict[str, object]) -> None:
    with pytest.raises(InvalidRequest, match="wyoming_zeroconf"):
        ServerConfig(**{"models": ("dummy:toy",), "wyoming_zeroconf": "stentor", **fields})  # type: ignore[arg-type]
