"""The real client, over a Unix socket: `VirtualTimeLoop` needs it."""

import asyncio

import aiohttp

from stentor.bench.load.client import Client
from stentor.bench.load.record import Exchange
from stentor.bench.metrics.decode import decode
from stentor.bench.metrics.measure import RequestResult, measure

URL = "http://localhost"


class UnixClient(Client):
    """Reaches every host through the socket at `path`; its clock is the loop's."""

    def __init__(self, target, spool, path):
        super().__init__(target, spool, asyncio.get_running_loop().time)
        self._path = path

    def _connector(self):
        return aiohttp.UnixConnector(self._path, limit=0)


def result_of(
    prompt, reply, spool, framing, assumed_rate=24000, silence_is_audio=False
) -> RequestResult:
    """The figures of one reply that was sent when it was due."""
    return measure(
        Exchange(prompt, reply.sent, reply.sent, reply),
        decode(reply, spool.get(reply.body), framing, assumed_rate),
        silence_is_audio,
    )
