"""Announcement of the Wyoming port in the local network (mDNS, the extra `zeroconf`), by which Home
Assistant finds it."""

from __future__ import annotations

import logging
import socket
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import ifaddr
from zeroconf import InterfaceChoice
from zeroconf.asyncio import AsyncServiceInfo, AsyncZeroconf

log = logging.getLogger("stentor.server")

SERVICE = "_wyoming._tcp.local."
EVERYWHERE = ("", "0.0.0.0", "::")  # hosts of a server that listens on all interfaces


@asynccontextmanager
async def announced(name: str, host: str, port: int) -> AsyncIterator[None]:
    """Announce a Wyoming service inside. name: what Home Assistant shows; another service of that
    name makes it `name-2`. host, port: where the server listens. A network that takes no
    announcement is logged."""
    if host in EVERYWHERE:
        addresses = _addresses()
        interfaces: Sequence[str] | InterfaceChoice = InterfaceChoice.All
    else:
        addresses = [host]
        interfaces = [host]
    info = AsyncServiceInfo(
        SERVICE,
        f"{name}.{SERVICE}",
        port=port,
        parsed_addresses=addresses,
        server=f"{socket.gethostname().partition('.')[0]}.local.",
    )
    try:
        zeroconf = AsyncZeroconf(interfaces=interfaces)
    except OSError as e:
        log.warning("Wyoming is not announced: %s", e)
        yield
        return

    try:
        await (await zeroconf.async_register_service(info, allow_name_change=True))
        log.info("Wyoming is announced as %s at %s", info.name, ", ".join(addresses))
        yield
    finally:
        await zeroconf.async_unregister_all_services()
        await zeroconf.async_close()


def _addresses() -> list[str]:
    """The IPv4 addresses of this machine that others can reach."""
    adapters = [ip.ip for adapter in ifaddr.get_adapters() for ip in adapter.ips if ip.is_IPv4]
    return [str(ip) for ip in adapters if not str(ip).startswith("127.")]
