"""A Ray of this machine alone, which `stentor serve --replicas` and `stentor batch --replicas`
start and end."""

from __future__ import annotations

import os
from typing import Any

from stentor.host.machine import cpus

# audio never lies in it. Ray's 30 % of all memory may not fit into /dev/shm
OBJECT_STORE_BYTES = 200_000_000
# Ray's 30 s are too few on a machine that is busy
VARIABLES = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_raylet_start_wait_time_s": "120"}


def prepare() -> None:
    """Set what Ray reads when it is imported, before that. What a user has set stays."""
    for name, value in VARIABLES.items():
        os.environ.setdefault(name, value)


def own_ray(replicas: int) -> dict[str, Any]:
    """Arguments of `ray.init`. Each replica counts as a core for Ray, also where there are
    fewer."""
    return {
        "address": "local",  # not the cluster that somebody else runs on this machine
        "num_cpus": max(replicas, cpus()),
        "object_store_memory": OBJECT_STORE_BYTES,
        "include_dashboard": False,
        "_node_ip_address": "127.0.0.1",
    }
