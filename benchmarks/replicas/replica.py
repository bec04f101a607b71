"""A replica on the device of device.py. Imports Ray Serve."""

from __future__ import annotations

from benchmarks.replicas import device
from stentor.ray.replica import Replica
from stentor.server.config import ServerConfig


class SlowReplica(Replica):
    """A replica whose steps take as long as the environment says."""

    async def __init__(self, config: ServerConfig) -> None:
        device.install()
        await super().__init__(config)
